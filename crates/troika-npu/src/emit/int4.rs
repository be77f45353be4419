//! Numbers of 4 bits as ONNX has them: of stored blocks `[k, n]`, with scales for blocks of `k`, and of
//! rows `[n, k]`, with one for each.

use half::f16;
use troika_graph::DType;
use troika_graph::blocks::dequantize;
use troika_graph::quantize::row_int4;

/// Whether a type has 4-bit blocks with one scale each.
pub(super) fn has_int4_blocks(dtype: DType) -> bool {
    dtype == DType::Q4_0 || dtype.has_zero_points()
}

/// Signed 4-bit numbers, two in a byte, with what they count.
pub(super) struct PackedInt4 {
    pub numbers: Vec<u8>,
    pub scales: Vec<f32>,
    /// Zero points; `None` if all are 0.
    pub zeros: Option<Vec<u8>>,
}

/// Packs such blocks of `n` rows of `k` columns. It is exact but for zero points of 16.
pub(super) fn pack_blocks(dtype: DType, bytes: &[u8], n: usize, k: usize) -> PackedInt4 {
    let len = dtype.block_len();
    let count = k / len;
    let mut numbers = vec![0_i8; n * k];
    let (mut scales, mut zeros) = (vec![0.0; count * n], vec![0_i8; count * n]);
    let mut values = vec![0.0; len];
    let row = count * dtype.block_bytes();
    for (i, row) in bytes.chunks_exact(row).take(n).enumerate() {
        for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
            dequantize(dtype, block, &mut values);
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
            // Both types count from 0 to 15; scales are made positive, as compilers want them.
            let zero = if dtype == DType::Q4_0 { 8.0 } else { f32::from(block[2]) };
            let zero = if scale < 0.0 { 15.0 - zero } else { zero } - 8.0;
            let scale = if scale == 0.0 { 1.0 } else { scale.abs() };
            scales[b * n + i] = scale;
            zeros[b * n + i] = zero.clamp(-8.0, 7.0) as i8;
            for (j, v) in values.iter().enumerate() {
                let number = (v / scale + zero).round_ties_even().clamp(-8.0, 7.0);
                numbers[(b * len + j) * n + i] = number as i8;
            }
        }
    }
    let zeros = zeros.iter().any(|z| *z != 0).then(|| nibbles(&zeros));
    PackedInt4 { numbers: nibbles(&numbers), scales, zeros }
}

/// Rounds rows of `k` columns to signed 4-bit numbers, with a scale for each row.
pub(super) fn int4_rows(values: &[f32], k: usize) -> (Vec<i8>, Vec<f32>) {
    let (k, mut numbers) = (k.max(1), vec![0; values.len()]);
    let rows = values.chunks_exact(k).zip(numbers.chunks_exact_mut(k));
    let scales = rows.map(|(row, numbers)| row_int4(row, numbers)).collect();
    (numbers, scales)
}

/// Two numbers in a byte, the first in its lower half.
pub(crate) fn nibbles(numbers: &[i8]) -> Vec<u8> {
    let half = |number: Option<&i8>| number.map_or(0, |n| *n as u8 & 15);
    let pair = |pair: &[i8]| half(pair.first()) | half(pair.get(1)) << 4;
    numbers.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use troika_graph::quantize::quantize;
    use troika_graph::{DType, blocks::dequantize};

    use super::{has_int4_blocks, pack_blocks};

    #[test]
    fn packed_blocks_stand_for_the_stored_values() {
        let (n, k) = (3, 64);
        let x: Vec<f32> = (0..n * k).map(|i| ((i * 37 % 101) as f32 - 40.0) / 50.0).collect();
        for dtype in [DType::Q4_0, DType::Q4_G32] {
            let mut bytes = vec![0; dtype.row_bytes(n * k).unwrap()];
            assert!(quantize(dtype, &x, &mut bytes));
            let mut stored = vec![0.0; n * k];
            dequantize(dtype, &bytes, &mut stored);
            assert!(has_int4_blocks(dtype));
            let packed = pack_blocks(dtype, &bytes, n, k);
            let number = |list: &[u8], at: usize| {
                let nibble = list[at / 2] >> (at % 2 * 4) & 15;
                f32::from(((nibble << 4) as i8) >> 4)
            };
            for (i, expected) in stored.iter().enumerate() {
                let (row, col) = (i / k, i % k);
                let block = col / 32 * n + row;
                let zero = packed.zeros.as_ref().map_or(0.0, |z| number(z, block));
                let got = (number(&packed.numbers, col * n + row) - zero) * packed.scales[block];
                assert!((got - expected).abs() < 1e-6, "{dtype} {i}: {got} {expected}");
            }
        }
        assert!(!has_int4_blocks(DType::Q8_0));
    }
}
