//! Finds numbers that are not finite.

use troika_graph::DType;

/// Whether any element (or block scale) is NaN or infinite.
pub(crate) fn has_non_finite(dtype: DType, bytes: &[u8]) -> bool {
    match dtype {
        // An exponent of all ones; testing bits lets the loop be vectorised.
        DType::F32 => any(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => any(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::BF16 => any(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        DType::I32 => false,
        _ => bytes
            .chunks_exact(dtype.block_bytes())
            .any(|block| troika_graph::blocks::has_infinite_scale(dtype, block)),
    }
}

fn any<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> bool {
    bytes.as_chunks().0.iter().fold(false, |bad, b| bad | is_bad(*b))
}
