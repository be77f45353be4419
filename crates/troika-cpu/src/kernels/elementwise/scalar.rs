//! The plain reference.

use troika_graph::Activation;

use super::{Element, gelu};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `act(g)`, or with `u` `act(g) * u`.
pub fn activate(act: Activation, g: f32, u: Option<f32>) -> f32 {
    let (x, u) = (f64::from(g), u.map(f64::from));
    let y = match act {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => f64::from(gelu(g)),
        Activation::GeluTanh => {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + z.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ClampedSwiglu { alpha, limit } => {
            let limit = f64::from(limit);
            let g = x.min(limit);
            let u = u.unwrap_or(0.0).clamp(-limit, limit);
            return (g * sigmoid(f64::from(alpha) * g) * (u + 1.0)) as f32;
        }
    };
    (y * u.unwrap_or(1.0)) as f32
}

/// One element of any op.
pub fn element(op: Element, a: f32, b: f32) -> f32 {
    match op {
        Element::Activate(act) => activate(act, a, None),
        Element::Gate(act) => activate(act, a, Some(b)),
        Element::Add => a + b,
        Element::Scale(f) => a * f,
        Element::Clamp(limit) => a.clamp(-limit, limit),
        Element::SoftCap(cap) => (f64::from(cap) * (f64::from(a) / f64::from(cap)).tanh()) as f32,
    }
}
