//! Random weights of a model's shape, for measurements.

use half::bf16;
use troika_device::{WeightBytes, WeightData};
use troika_graph::DType;

use crate::spec::Need;

/// A weight's random bf16 values, within 1 / sqrt(cols) so that activations keep their size;
/// vectors are ones.
pub(super) fn weight(need: Need, seed: u64) -> WeightData {
    let n = need.rows * need.cols;
    let mut out = Vec::with_capacity(n * 2);
    if need.rows == 1 {
        let one = bf16::ONE.to_le_bytes();
        (0..n).for_each(|_| out.extend(one));
    } else {
        let spread = 1.7 / (need.cols as f32).sqrt();
        let table: [[u8; 2]; 256] = std::array::from_fn(|i| {
            bf16::from_f32((i as f32 / 127.5 - 1.0) * spread).to_le_bytes()
        });
        // xorshift64*: eight table indices a step. Quality hardly matters, speed does.
        let mut state = seed | 1;
        while out.len() < n * 2 {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D);
            bits.to_le_bytes().iter().for_each(|&b| out.extend(table[usize::from(b)]));
        }
        out.truncate(n * 2);
    }
    let bytes = WeightBytes::owned(out);
    WeightData { dtype: DType::BF16, rows: need.rows, cols: need.cols, bytes }
}
