//! The plain reference.

use troika_graph::blocks;

use super::WeightView;

/// `y = x * W^T + b`, element by element, summed in f64.
pub fn linear(weight: WeightView<'_>, bias: Option<&[f32]>, x: &[f32], y: &mut [f32]) {
    let mut row = vec![0.0; weight.cols];
    for (n, bytes) in weight.bytes.chunks_exact(weight.row_bytes()).enumerate() {
        blocks::dequantize(weight.dtype, bytes, &mut row);
        for (x, y) in x.chunks_exact(weight.cols).zip(y.chunks_exact_mut(weight.rows)) {
            let dot: f64 = x.iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            y[n] = (dot + bias.map_or(0.0, |b| f64::from(b[n]))) as f32;
        }
    }
}
