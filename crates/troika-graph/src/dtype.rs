//! Element and block types of tensors.

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements. Quantized types store blocks of consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of a single.
    BF16,
    /// 32-bit signed integers (token ids, positions, expert ids).
    I32,
    /// 32 x int8 with an f16 scale.
    Q8_0,
    /// 32 x 4 bit with an f16 scale.
    Q4_0,
    /// 32 x 4 bit with an f16 scale and minimum.
    Q4_1,
    /// 32 x 5 bit with an f16 scale.
    Q5_0,
    /// 32 x 5 bit with an f16 scale and minimum.
    Q5_1,
    /// 256 x 2 bit in 16 groups with 4-bit scales and minima.
    Q2_K,
    /// 256 x 3 bit in 16 groups with 6-bit scales.
    Q3_K,
    /// 256 x 4 bit in 8 groups with 6-bit scales and minima.
    Q4_K,
    /// 256 x 5 bit in 8 groups with 6-bit scales and minima.
    Q5_K,
    /// 256 x 6 bit in 16 groups with 8-bit scales.
    Q6_K,
    /// 32 x fp4 (E2M1) with a shared E8M0 exponent.
    MXFP4,
    /// 32 x 4 bit with an f16 scale and an 8-bit zero point, as in GPTQ and AWQ checkpoints.
    Q4_G32,
    /// 64 x 4 bit, like [`DType::Q4_G32`].
    Q4_G64,
    /// 128 x 4 bit, like [`DType::Q4_G32`].
    Q4_G128,
}

impl DType {
    /// The types that weights can have.
    pub const WEIGHTS: [DType; 17] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::MXFP4,
        DType::Q4_G32,
        DType::Q4_G64,
        DType::Q4_G128,
    ];

    /// Elements in one block (1 for plain types).
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => 1,
            DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::MXFP4 => {
                32
            }
            DType::Q4_G32 => 32,
            DType::Q4_G64 => 64,
            DType::Q4_G128 => 128,
            DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// Bytes of one block (of one element for plain types).
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q2_K => 84,
            DType::Q3_K => 110,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
            DType::MXFP4 => 17,
            DType::Q4_G32 => 19,
            DType::Q4_G64 => 35,
            DType::Q4_G128 => 67,
        }
    }

    /// Bytes of a row of `cols` elements; `None` if blocks would not be whole, or on overflow.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether elements are plain floats (f32, f16, bf16).
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether the type stores quantized blocks.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether there are products with whole numbers ([`crate::ActivationFormat::Int`]).
    pub const fn has_integer_path(self) -> bool {
        matches!(self, DType::Q8_0 | DType::Q4_0 | DType::Q4_K | DType::Q5_K | DType::Q6_K)
            || self.has_zero_points()
    }

    /// Whether values use all bits of a byte.
    pub const fn uses_all_bits(self) -> bool {
        matches!(self, DType::Q8_0)
    }

    /// Whether blocks have an f16 scale, a zero point and 4-bit values ([`DType::Q4_G32`] and
    /// similar).
    pub const fn has_zero_points(self) -> bool {
        matches!(self, DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128)
    }

    /// The usual name, as GGUF tools print it (`F32`, `Q4_K`, ...).
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I32 => "I32",
            DType::Q8_0 => "Q8_0",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q2_K => "Q2_K",
            DType::Q3_K => "Q3_K",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
            DType::MXFP4 => "MXFP4",
            DType::Q4_G32 => "Q4_G32",
            DType::Q4_G64 => "Q4_G64",
            DType::Q4_G128 => "Q4_G128",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
