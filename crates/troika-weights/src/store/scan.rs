//! Finds numbers that are not finite.

use half::f16;
use troika_graph::DType;

/// Whether any element (or block scale) is NaN or infinite.
pub(crate) fn has_non_finite(dtype: DType, bytes: &[u8]) -> bool {
    let word = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let bad_f16 = |b: &[u8]| !f16::from_bits(word(b)).is_finite();
    match dtype {
        // An exponent of all ones; testing bits lets the loop be vectorised.
        DType::F32 => bytes
            .as_chunks::<4>()
            .0
            .iter()
            .fold(false, |bad, b| bad | (u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000)),
        DType::F16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .fold(false, |bad, b| bad | (u16::from_le_bytes(*b) & 0x7c00 == 0x7c00)),
        DType::BF16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .fold(false, |bad, b| bad | (u16::from_le_bytes(*b) & 0x7f80 == 0x7f80)),
        DType::I32 => false,
        DType::MXFP4 => bytes.chunks_exact(dtype.block_bytes()).any(|block| block[0] == 0xff),
        _ => {
            let scales: &[usize] = match dtype {
                DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
                DType::Q2_K => &[80, 82],
                DType::Q3_K => &[108],
                DType::Q6_K => &[208],
                _ => &[0],
            };
            bytes
                .chunks_exact(dtype.block_bytes())
                .any(|block| scales.iter().any(|&at| bad_f16(&block[at..])))
        }
    }
}
