//! Weights as files have them, in the layouts of [`WeightFormat`]: exact, row by row.

use std::ops::Range;

use half::f16;
use troika_graph::DType;
use troika_graph::blocks::{self, BlockParts};

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
        match format {
            WeightFormat::Q8_0 | WeightFormat::Q8_1 if dtype != DType::Q8_0 => {
                bytes(dtype, row, out)
            }
            WeightFormat::Codes16 | WeightFormat::Codes256 => codes(dtype, row, out),
            WeightFormat::TwoBits => one_scale(dtype, row, out, 2),
            WeightFormat::OneBit => one_scale(dtype, row, out, 1),
            WeightFormat::Grid16 | WeightFormat::Grid32 => few_bits(dtype, row, out, false),
            WeightFormat::Shift16 | WeightFormat::Shift32 => few_bits(dtype, row, out, true),
            _ => repack_row(dtype, row, out),
        }
    }
    true
}

/// One row.
fn repack_row(dtype: DType, row: &[u8], out: &mut [u8]) {
    let (len, count) = (dtype.block_bytes(), row.len() / dtype.block_bytes());
    let each = || row.chunks_exact(len);
    match dtype {
        // Scales (and minima) come first in a block, or last.
        DType::Q8_0 | DType::Q4_0 => apart(row, len, 0..2, out),
        DType::Q4_1 => apart(row, len, 0..4, out),
        DType::MXFP4 => apart(row, len, 0..1, out),
        DType::Q6_K => apart(row, len, 208..210, out),
        DType::Q2_K => apart(row, len, 80..84, out),
        DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => {
            // A group's scale and zero point serve all its blocks of 32.
            let per_group = (len - 3) / 16;
            let (quants, scales) = out.split_at_mut(count * per_group * 16);
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

/// Levels as bytes, then a scale (and minimum) of each 32, as f16 like the block's.
fn bytes(dtype: DType, row: &[u8], out: &mut [u8]) {
    let (len, mut parts) = (dtype.block_len(), BlockParts::default());
    let size = if dtype.has_minimum() { 4 } else { 2 };
    let (quants, scales) = out.split_at_mut(row.len() / dtype.block_bytes() * len);
    scales.fill(0);
    let to = quants.chunks_exact_mut(len).zip(scales.chunks_exact_mut(len / 32 * size));
    for (block, (q, s)) in row.chunks_exact(dtype.block_bytes()).zip(to) {
        parts.take(dtype, block);
        q.copy_from_slice(bytemuck::cast_slice(&parts.levels[..len]));
        for s in s.chunks_exact_mut(size) {
            s.copy_from_slice(&block[dtype.scale_at().unwrap_or(0)..][..size]);
        }
    }
}

/// The codebook, nibbles of levels, then scales: those of types with numbers for scales as these, and
/// what they are multiplied with.
fn codes(dtype: DType, row: &[u8], out: &mut [u8]) {
    let Some(codebook) = dtype.codebook() else { return };
    let mut code_of = [0u8; 256];
    for (code, level) in codebook.iter().enumerate().rev() {
        code_of[usize::from(*level as u8)] = code as u8;
    }
    let (len, mut parts) = (dtype.block_len(), BlockParts::default());
    let columns = row.len() / dtype.block_bytes() * len;
    let (table, out) = out.split_at_mut(16);
    table.copy_from_slice(bytemuck::cast_slice(codebook));
    let (quants, scales) = out.split_at_mut(columns / 2);
    scales.fill(0);
    let mut quants = quants.chunks_exact_mut(16);
    for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        parts.take(dtype, block);
        for (levels, q) in parts.levels[..len].chunks_exact(32).zip(&mut quants) {
            for (i, q) in q.iter_mut().enumerate() {
                let code = |level: i8| code_of[usize::from(level as u8)];
                *q = code(levels[i]) | code(levels[i + 16]) << 4;
            }
        }
        let unit = blocks::units(dtype, block)[0];
        for i in 0..len / 16 {
            let (scale, at) = (parts.scales[16 * i / dtype.group_len()], b * len / 16 + i);
            if WeightFormat::of(dtype) == Some(WeightFormat::Codes16) {
                scales[2 * at..2 * at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            } else {
                scales[at] = (scale / unit) as i8 as u8;
            }
        }
        if len == 256 {
            let at = columns / 16 + 4 * b;
            scales[at..at + 4].copy_from_slice(&unit.to_le_bytes());
        }
    }
}

/// Levels of `bits` bits from -1 on, one or two apart, a unit of them after another; then the scale of
/// each unit.
fn one_scale(dtype: DType, row: &[u8], out: &mut [u8], bits: usize) {
    let (len, unit, mut parts) = (dtype.block_len(), 128 / bits, BlockParts::default());
    let columns = row.len() / dtype.block_bytes() * len;
    out.fill(0);
    let (quants, scales) = out.split_at_mut(columns * bits / 8);
    let mut to = quants.chunks_exact_mut(16).zip(scales.chunks_exact_mut(2));
    for block in row.chunks_exact(dtype.block_bytes()) {
        parts.take(dtype, block);
        for (levels, (q, s)) in parts.levels[..len].chunks_exact(unit).zip(&mut to) {
            for (i, level) in levels.iter().enumerate() {
                q[i % 16] |= ((level + 1) as u8 * bits as u8 / 2) << (i / 16 * bits);
            }
            s.copy_from_slice(&block[dtype.scale_at().unwrap_or(0)..][..2]);
        }
    }
}

/// Codes of two bits and a third one (of each eight levels, if they are `shifted`), then what the
/// scales of 16 or 32 levels are multiples of, as nibbles and as f16 numbers.
fn few_bits(dtype: DType, row: &[u8], out: &mut [u8], shifted: bool) {
    let (blocks, mut parts) = (row.len() / dtype.block_bytes(), BlockParts::default());
    out.fill(0);
    let (low, rest) = out.split_at_mut(64 * blocks);
    let (high, rest) = rest.split_at_mut(if shifted { 4 } else { 32 } * blocks);
    let (numbers, scales) = rest.split_at_mut(128 / dtype.group_len() * blocks);
    for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        parts.take(dtype, block);
        for (i, &level) in parts.levels.iter().enumerate() {
            let at = 256 * b + i;
            let (code, third) = match shifted {
                true => ((level + 9) / 8, level & 7 == 7),
                false => (i8::from(level.abs() > 8) + i8::from(level.abs() > 25), level < 0),
            };
            low[at / 64 * 16 + at % 16] |= (code as u8) << (at % 64 / 16 * 2);
            let (byte, bit) = if shifted {
                (at / 64, at % 64 / 8)
            } else {
                (at / 128 * 16 + at % 16, at % 128 / 16)
            };
            high[byte] |= u8::from(third) << bit;
        }
        let unit = blocks::units(dtype, block)[0];
        for (g, scale) in parts.scales[..256 / dtype.group_len()].iter().enumerate() {
            let at = 256 / dtype.group_len() * b + g;
            numbers[at / 2] |= ((scale / unit) as u8 / 2) << (at % 2 * 4);
        }
        scales[2 * b..2 * b + 2].copy_from_slice(&f16::from_f32(8.0 * unit).to_le_bytes());
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
    fn weights_take_little_more_than_in_files() {
        for &dtype in DType::WEIGHTS {
            let Some(format) = WeightFormat::of(dtype) else { continue };
            let (own, file) = (format.row_bytes(4096), dtype.row_bytes(4096).unwrap());
            // The most: Q5_0 as Q8_0, and IQ2_XXS.
            assert!(100 * own <= 155 * file, "{dtype}: {own} bytes for {file}");
        }
    }

    #[test]
    fn plain_rows_are_padded() {
        let x = [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
        let mut out = vec![7; WeightFormat::F32.row_bytes(3)];
        assert!(repack(DType::F32, &x, 3, &mut out));
        assert_eq!((&out[..12], &out[12..]), (&x[..], &[0; 52][..]));
    }
}
