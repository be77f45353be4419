// What a gated delta rule keeps of its state, and its shares of new values. A thread computes a
// column of a row: first the decays, then a share for each head.

// Whether decays have a bound.
override BOUNDED: u32 = 0;

struct Params {
    rows: u32,
    heads: u32,
    // Decays of a head.
    channels: u32,
    beta_scale: f32,
    // The bound of a decay's logarithm.
    least: f32,
    decay: u32,
    decay_stride: u32,
    beta: u32,
    beta_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

// Below zero.
@group(0) @binding(0) var<storage, read> rates: array<f32>;
@group(0) @binding(1) var<storage, read_write> decay: array<f32>;
@group(0) @binding(2) var<storage, read_write> beta: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let decays = p.heads * p.channels;
    if at.x >= decays + p.heads {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        var v = 0.0;
        if at.x >= decays {
            v = p.beta_scale * sigmoid(beta[p.beta + row * p.beta_stride + at.x - decays]);
        } else {
            let rate = rates[at.x / p.channels];
            v = decay[p.decay + row * p.decay_stride + at.x];
            if BOUNDED == 1u {
                v = exp(p.least * sigmoid(-rate * v));
            } else {
                v = exp(rate * softplus(v));
            }
        }
        y[p.y + row * p.y_stride + at.x] = v;
    }
}
