//! Random weights in a model's shape, for measurements.

use half::{bf16, f16};
use troika_device::{WeightBytes, WeightData};
use troika_graph::DType;
use troika_graph::blocks::set_scales;
use troika_model::spec::WeightRequirement;

/// Random values of a weight, within 1.7 / sqrt(cols) so that activations keep their size; vectors
/// are ones.
pub(crate) fn weight(need: WeightRequirement, dtype: DType, seed: u64) -> WeightData {
    let n = need.rows * need.cols;
    let bytes = if need.rows == 1 {
        bf16::ONE.to_le_bytes().repeat(n)
    } else {
        let spread = 1.7 / (need.cols as f32).sqrt();
        match dtype {
            DType::F32 => plain(n, seed, |x| (x * spread).to_le_bytes()),
            DType::F16 => plain(n, seed, |x| f16::from_f32(x * spread).to_le_bytes()),
            DType::BF16 => plain(n, seed, |x| bf16::from_f32(x * spread).to_le_bytes()),
            _ => blocks(n, seed, dtype, spread),
        }
    };
    WeightData { dtype, rows: need.rows, cols: need.cols, bytes: WeightBytes::owned(bytes) }
}

/// Random bytes by xorshift64*: speed matters more than quality.
fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 8);
    let mut state = seed | 1;
    while out.len() < bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        out.extend(state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Numbers between -1 and 1 in 256 steps, converted.
fn plain<const N: usize>(n: usize, seed: u64, number: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    let table: [[u8; N]; 256] = std::array::from_fn(|i| number(i as f32 / 127.5 - 1.0));
    let mut out = Vec::with_capacity(n * N);
    random(n, seed).iter().for_each(|&b| out.extend(table[usize::from(b)]));
    out
}

/// Blocks of random values, with scales that give the wanted spread.
fn blocks(n: usize, seed: u64, dtype: DType, spread: f32) -> Vec<u8> {
    let mut out = random(n / dtype.block_len() * dtype.block_bytes(), seed);
    // As evenly distributed numbers have.
    set_scales(dtype, &mut out, spread / 3f32.sqrt());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use troika_model::spec::{Key, WeightRole};

    #[test]
    fn values_of_all_types_have_the_spread_asked_for() {
        for &dtype in DType::WEIGHTS {
            let (rows, cols) = (64, 512);
            let key = Key::model(WeightRole::Head);
            let w = weight(WeightRequirement { key, rows, cols }, dtype, 7);
            assert_eq!(w.dtype, dtype);
            let mut x = vec![0.0; rows * cols];
            troika_graph::blocks::dequantize(dtype, &w.bytes, &mut x);
            let n = x.len() as f32;
            let mean = x.iter().sum::<f32>() / n * 512f32.sqrt();
            let sd = (x.iter().map(|x| x * x).sum::<f32>() / n).sqrt() * 512f32.sqrt();
            // Exponents alone give steps of two.
            let near = if dtype == DType::MXFP4 { 0.65..1.5 } else { 0.85..1.15 };
            assert!(near.contains(&sd) && mean.abs() < 0.07, "{dtype}: {sd} {mean}");
        }
    }
}
