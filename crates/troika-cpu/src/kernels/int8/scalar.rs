//! The plain reference: the same integers and the same order of f32 additions, from the blocks as
//! they lie in the file.

use half::f16;
use troika_graph::{ActivationFormat, DType};

use super::layout::{GROUP, quants, zero};
use super::quantize::{Quantization, QuantizedGroup, ZeroPointCorrection, group};
use crate::kernels::linear::{WeightView, scale_min};
use crate::kernels::simd::Portable;

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The scales of the halves of group `i` of a block, and its minimum.
fn scales(dtype: DType, block: &[u8], i: usize) -> ([f32; 2], f32) {
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            let [s, m] = scale_min(i, &block[4..16]);
            let (d, dmin) = (half_at(block, 0), half_at(block, 2));
            ([d * f32::from(s); 2], dmin * f32::from(m))
        }
        DType::Q6_K => {
            let s = |j: usize| half_at(block, 208) * f32::from(block[192 + 2 * i + j] as i8);
            ([s(0), s(1)], 0.0)
        }
        _ if dtype.has_zero_points() => {
            let d = half_at(block, 0);
            ([d; 2], d * f32::from(block[2]))
        }
        _ => ([half_at(block, 0); 2], 0.0),
    }
}

fn dot(dtype: DType, row: &[u8], x: &[f32], quantization: Quantization) -> f32 {
    let per_block = dtype.block_len() / GROUP;
    let mut sum = 0.0f32;
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let block = &row[g / per_block * dtype.block_bytes()..][..dtype.block_bytes()];
        let (mut a, mut w): (QuantizedGroup, _) = (bytemuck::Zeroable::zeroed(), [0; GROUP]);
        group::<Portable>(x, quantization, &mut a);
        quants(dtype, block, g % per_block, &mut w);
        let (scales, min) = scales(dtype, block, g % per_block);
        let product = |i: usize| i32::from(a.q[i]) * (i32::from(w[i]) - zero(dtype));
        if dtype == DType::Q6_K {
            for (half, scale) in scales.into_iter().enumerate() {
                let ints: i32 = (half * 16..half * 16 + 16).map(product).sum();
                sum = (ints as f32 * scale).mul_add(a.scale, sum);
            }
        } else {
            let ints: i32 = (0..GROUP).map(product).sum();
            sum = (ints as f32 * scales[0]).mul_add(a.scale, sum);
        }
        if quantization.correction == ZeroPointCorrection::Sum {
            sum = min.mul_add(f32::from_bits(a.zero_point_correction[0]), sum);
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
