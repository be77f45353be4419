//! The plain reference.

use super::{Expert, Operands};
use crate::kernels::elementwise::scalar::activate;
use crate::kernels::linear::WeightView;
use crate::kernels::linear::scalar::linear;

/// Experts of one row after another.
pub fn experts(x: &Operands<'_, Expert<'_, WeightView<'_>>>, y: &mut [f32]) {
    y.fill(0.0);
    for (row, y) in y.chunks_exact_mut(x.k).enumerate() {
        let input = &x.x[row * x.k..][..x.k];
        for slot in row * x.top_k..(row + 1) * x.top_k {
            let place = x.slice.place(x.ids[slot] as usize, x.experts);
            let Some(e) = place.map(x.expert) else { continue };
            let (mut gate, mut up) = (vec![0.0; x.inter], vec![0.0; x.inter]);
            linear(e.gate, e.bias[0], input, &mut gate);
            linear(e.up, e.bias[1], input, &mut up);
            let hidden: Vec<f32> =
                gate.iter().zip(&up).map(|(g, u)| activate(x.act, *g, Some(*u))).collect();
            let mut down = vec![0.0; x.k];
            linear(e.down, e.bias[2], &hidden, &mut down);
            y.iter_mut().zip(&down).for_each(|(y, d)| *y += x.weights[slot] * d);
        }
    }
}
