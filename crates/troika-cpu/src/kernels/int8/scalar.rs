//! The plain reference: the same integers and the same order of f32 additions, from the blocks as
//! they lie in the file.

use troika_graph::blocks::BlockParts;
use troika_graph::{ActivationFormat, DType};

use super::quantize::{Quantization, QuantizedGroup, group};
use crate::kernels::linear::WeightView;
use crate::kernels::quantized::format::{Format, with_format};
use crate::kernels::quantized::{GROUP, GroupScales};
use crate::kernels::simd::{Lanes, Portable};

fn dot(dtype: DType, row: &[u8], x: &[f32], quantization: Quantization) -> f32 {
    let per_block = dtype.block_len() / GROUP;
    let (subs, min) = with_format!(dtype, F => (F::SUBS, F::MIN));
    let each = GROUP / subs;
    let (mut sum, mut parts) = (0.0f32, BlockParts::default());
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let block = &row[g / per_block * dtype.block_bytes()..][..dtype.block_bytes()];
        let mut a: QuantizedGroup = bytemuck::Zeroable::zeroed();
        group::<Portable>(x, Portable::largest_magnitude(x), quantization, &mut a);
        parts.take(dtype, block);
        let levels = &parts.levels[g % per_block * GROUP..];
        let scales = GroupScales::new(dtype, block, &parts, g % per_block);
        for sub in 0..subs {
            let product = |i: usize| i32::from(a.q[i]) * i32::from(levels[i]);
            let ints: i32 = (sub * each..(sub + 1) * each).map(product).sum();
            sum = (ints as f32 * scales.scales[sub]).mul_add(a.scale, sum);
        }
        for sub in 0..if min { subs } else { 0 } {
            let x = f32::from_bits(a.zero_point_correction[sub]);
            sum = scales.mins[sub].mul_add(x, sum);
        }
    }
    sum
}

/// `y = x * W^T + b` with activations in eight or seven bits.
pub fn linear(
    weight: WeightView<'_>,
    bias: Option<&[f32]>,
    x: &[f32],
    activations: ActivationFormat,
    y: &mut [f32],
) {
    let quantization = Quantization::of(weight.dtype, activations);
    for (n, row) in weight.bytes.chunks_exact(weight.row_bytes()).enumerate() {
        for (x, y) in x.chunks_exact(weight.cols).zip(y.chunks_exact_mut(weight.rows)) {
            y[n] = dot(weight.dtype, row, x, quantization) + bias.map_or(0.0, |b| b[n]);
        }
    }
}
