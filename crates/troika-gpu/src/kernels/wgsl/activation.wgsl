// Activation functions, without infinities on the way.

override ACT: u32 = 0;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(clamp(-x, -80.0, 80.0)));
}

// By a series: logarithms of numbers near 1 are not exact everywhere.
fn softplus(x: f32) -> f32 {
    let e = exp(max(-abs(x), -80.0));
    let z = e / (2.0 + e);
    let s = z * z;
    return max(x, 0.0) + 2.0 * z * (1.0 + s * (0.33333333 + s * (0.2 + s * (0.14285714
        + s * (0.11111111 + s * (0.090909091 + s * 0.076923077))))));
}

fn tanh_of(x: f32) -> f32 {
    if abs(x) < 0.1 {
        let s = x * x;
        return x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * -0.053968254)));
    }
    return 1.0 - 2.0 / (exp(clamp(2.0 * x, -40.0, 40.0)) + 1.0);
}

// The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf_of(x: f32) -> f32 {
    let a = abs(x);
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741
        + t * (-1.453152027 + t * 1.061405429))));
    let e = 1.0 - p * exp(-min(a * a, 80.0));
    return select(e, -e, x < 0.0);
}

// The activation of a gate `g`; `numbers` are its parameters.
fn activated(g: f32, numbers: vec2<f32>) -> f32 {
    switch ACT {
        case 0u: {
            return g * sigmoid(g);
        }
        case 1u: {
            return 0.5 * g * (1.0 + erf_of(g * 0.70710678));
        }
        case 2u: {
            return g * sigmoid(g * (1.5957692 + 0.071354816 * g * g));
        }
        case 3u: {
            return max(g, 0.0);
        }
        case 5u: {
            return max(g, 0.0) * max(g, 0.0);
        }
        case 6u: {
            return sigmoid(g);
        }
        case 7u: {
            return softplus(g);
        }
        case 8u: {
            let curve = numbers.y * (exp(max(min(g, -1e-6), -80.0)) - 1.0 - g);
            return select(curve, numbers.x * g * g, g > 0.0) + 0.5 * g;
        }
        default: {
            let top = min(g, numbers.y);
            return top * sigmoid(numbers.x * top);
        }
    }
}

// What an activated gate is multiplied by.
fn gated(u: f32, numbers: vec2<f32>) -> f32 {
    if ACT == 4u {
        return clamp(u, -numbers.y, numbers.y) + 1.0;
    }
    return u;
}
