//! The plain reference.

use super::Norm;

/// Normalises one group, in f64.
pub fn norm(norm: Norm<'_>, x: &[f32], y: &mut [f32]) {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let square = |shift: f64| x.iter().map(|x| (f64::from(*x) - shift).powi(2)).sum::<f64>() / n;
    for (i, y) in y.iter_mut().enumerate() {
        let x = f64::from(x[i]);
        *y = match norm {
            Norm::Rms { weight, eps, offset } => {
                let w = weight.map_or(1.0, |w| f64::from(offset) + f64::from(w[i]));
                (x / (square(0.0) + f64::from(eps)).sqrt() * w) as f32
            }
            Norm::Layer { weight, bias, eps } => {
                let z = (x - mean) / (square(mean) + f64::from(eps)).sqrt();
                let b = bias.map_or(0.0, |b| f64::from(b[i]));
                (z * f64::from(weight[i]) + b) as f32
            }
        };
    }
}
