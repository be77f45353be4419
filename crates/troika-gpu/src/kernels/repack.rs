//! Weights as files have them, in the layouts of [`WeightFormat`]: exact, row by row.

use std::ops::Range;

use half::f16;
use troika_graph::DType;

use super::WeightFormat;

/// Writes rows of `cols` elements of a type to the format's layout. `rows` are whole rows of the
/// file, and `out` has [`WeightFormat::row_bytes`] for each; returns `false`, with nothing written,
/// if lengths differ or the type has no format.
pub fn repack(dtype: DType, rows: &[u8], cols: u32, out: &mut [u8]) -> bool {
    let (Some(format), Some(row)) = (WeightFormat::of(dtype), dtype.row_bytes(cols as usize))
    else {
        return false;
    };
    let to = format.row_bytes(cols);
    if row == 0 || !rows.len().is_multiple_of(row) || rows.len() / row * to != out.len() {
        return false;
    }
    for (row, out) in rows.chunks_exact(row).zip(out.chunks_exact_mut(to)) {
        repack_row(dtype, row, out);
    }
    true
}

/// One row.
fn repack_row(dtype: DType, row: &[u8], out: &mut [u8]) {
    let (len, blocks) = (dtype.block_bytes(), row.len() / dtype.block_bytes());
    let each = || row.chunks_exact(len);
    match dtype {
        // Scales (and minima) come first in a block, or last.
        DType::Q8_0 | DType::Q4_0 => apart(row, len, 0..2, out),
        DType::Q4_1 => apart(row, len, 0..4, out),
        DType::MXFP4 => apart(row, len, 0..1, out),
        DType::Q6_K => apart(row, len, 208..210, out),
        DType::Q5_0 | DType::Q5_1 => {
            let head = if dtype == DType::Q5_0 { 2 } else { 4 };
            let (quants, scales) = out.split_at_mut(blocks * 32);
            scales.fill(0);
            let parts = quants.chunks_exact_mut(32).zip(scales.chunks_exact_mut(head));
            for (block, (q, s)) in each().zip(parts) {
                s.copy_from_slice(&block[..head]);
                let high = &block[head..head + 4];
                for i in 0..32 {
                    let nibble = block[head + 4 + i % 16] >> (i / 16 * 4) & 15;
                    let bit = high[i / 8] >> (i % 8) & 1;
                    let zero = if dtype == DType::Q5_0 { 16 } else { 0 };
                    q[i] = (nibble | bit << 4).wrapping_sub(zero);
                }
            }
        }
        DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => {
            // A group's scale and zero point serve all its blocks of 32.
            let per_group = (len - 3) / 16;
            let (quants, scales) = out.split_at_mut(blocks * per_group * 16);
            scales.fill(0);
            let mut parts = quants.chunks_exact_mut(16).zip(scales.chunks_exact_mut(4));
            for block in each() {
                let zero = f16::from_f32(f32::from(block[2])).to_le_bytes();
                for nibbles in block[3..].chunks_exact(16) {
                    let Some((q, s)) = parts.next() else { return };
                    s[..2].copy_from_slice(&block[..2]);
                    s[2..].copy_from_slice(&zero);
                    q.copy_from_slice(nibbles);
                }
            }
        }
        DType::Q2_K | DType::Q3_K => {
            let (quants, scales) = out.split_at_mut(blocks * 256);
            let parts = quants.chunks_exact_mut(256).zip(scales.chunks_exact_mut(128));
            for (block, (q, s)) in each().zip(parts) {
                if dtype == DType::Q2_K { q2_k(block, q, s) } else { q3_k(block, q, s) }
            }
        }
        // Rows as they are, padded.
        _ => {
            let (same, rest) = out.split_at_mut(row.len());
            same.copy_from_slice(row);
            rest.fill(0);
        }
    }
}

/// The numbers of all blocks, then the scales, which are at a place of each block.
fn apart(row: &[u8], len: usize, scale: Range<usize>, out: &mut [u8]) {
    let numbers = if scale.start == 0 { scale.end..len } else { 0..scale.start };
    let (quants, scales) = out.split_at_mut(row.len() / len * numbers.len());
    scales.fill(0);
    let parts = quants.chunks_exact_mut(numbers.len()).zip(scales.chunks_exact_mut(scale.len()));
    for (block, (q, s)) in row.chunks_exact(len).zip(parts) {
        q.copy_from_slice(&block[numbers.clone()]);
        s.copy_from_slice(&block[scale.clone()]);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// A group's scale and what is subtracted from its numbers.
fn put_scale(out: &mut [u8], group: usize, scale: f32, minimum: f32) {
    out[8 * group..8 * group + 4].copy_from_slice(&scale.to_le_bytes());
    out[8 * group + 4..8 * group + 8].copy_from_slice(&minimum.to_le_bytes());
}

/// 16 groups of 16; a byte holds four numbers, which are 32 elements apart.
fn q2_k(block: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    let (d, min) = (half_at(block, 80), half_at(block, 82));
    for (group, q) in quants.chunks_exact_mut(16).enumerate() {
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let s = block[group];
        put_scale(scales, group, d * f32::from(s & 15), min * f32::from(s >> 4));
        let from = &block[16 + half * 32 + side * 16..][..16];
        q.iter_mut().zip(from).for_each(|(q, b)| *q = b >> shift & 3);
    }
}

/// As Q2_K, with a third bit in a mask and signed scales of six bits.
fn q3_k(block: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    let d = half_at(block, 108);
    let packed = &block[96..108];
    for (group, q) in quants.chunks_exact_mut(16).enumerate() {
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        put_scale(scales, group, d * (f32::from(low | high << 4) - 32.0), 0.0);
        for (i, q) in q.iter_mut().enumerate() {
            let low = block[32 + half * 32 + side * 16 + i] >> shift & 3;
            let high = block[side * 16 + i] >> (group / 2) & 1;
            *q = (low | high << 2).wrapping_sub(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{WeightFormat, repack};
    use troika_graph::DType;

    #[test]
    fn lengths_are_checked() {
        let row = WeightFormat::Q8_0.row_bytes(64);
        assert!(repack(DType::Q8_0, &[1; 136], 64, &mut vec![0; 2 * row]));
        assert!(!repack(DType::Q8_0, &[1; 136], 64, &mut vec![0; row]));
        assert!(!repack(DType::Q8_0, &[1; 135], 64, &mut vec![0; 2 * row]));
        assert!(!repack(DType::Q8_0, &[1; 68], 63, &mut vec![0; row]));
        assert!(!repack(DType::I32, &[1; 4], 1, &mut [0; 4]));
    }

    #[test]
    fn plain_rows_are_padded() {
        let x = [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
        let mut out = vec![7; WeightFormat::F32.row_bytes(3)];
        assert!(repack(DType::F32, &x, 3, &mut out));
        assert_eq!((&out[..12], &out[12..]), (&x[..], &[0; 52][..]));
    }
}
