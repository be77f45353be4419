//! A block of a quantized type, taken apart.

use half::f16;

/// A block taken apart. Element `i` of group `g` is `scales[g] * levels[i]`, for types that have
/// minima plus `mins[g]`. These operations in f32, each rounded, give the very bits of ggml.
#[derive(Clone, Copy, Debug)]
pub struct BlockParts {
    /// A whole number for each element.
    pub levels: [i8; 256],
    /// A scale for each group of [`DType::group_len`](crate::DType::group_len) elements.
    pub scales: [f32; 16],
    /// What is added to each group, for types that [have minima](crate::DType::has_minimum).
    pub mins: [f32; 16],
}

impl Default for BlockParts {
    fn default() -> BlockParts {
        BlockParts { levels: [0; 256], scales: [0.0; 16], mins: [0.0; 16] }
    }
}

pub(crate) fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

pub(crate) fn bits_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
