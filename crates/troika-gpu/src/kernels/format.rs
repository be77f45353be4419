//! How weights lie on the device.

use troika_graph::DType;

/// The layout of a weight's rows. A row is a whole number of 16-byte words ("units" below), padded
/// with zeros; the columns are padded to 16 (plain numbers) or are whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// f32.
    F32,
    /// Pairs of f16.
    F16,
    /// Pairs of bf16.
    Bf16,
    /// 32 bytes a block, then the f16 scales of all blocks: `d * q`. Q8_0, and Q5_0 exactly.
    Q8_0,
    /// As Q8_0 with an f16 scale and minimum: `d * q + m`. Q5_1 exactly.
    Q8_1,
    /// 32 nibbles a block in Q4_0's order, then the f16 scales: `d * (q - 8)`.
    Q4_0,
    /// 32 nibbles a block, then f16 scales and minima: `d * q + m`.
    Q4_1,
    /// 32 nibbles a block, then f16 scales and zero points: `d * (q - z)`. Int4 with zero points of
    /// every group size.
    Q4Z,
    /// 32 nibbles a block that stand for E2M1 numbers, then the exponents' bytes.
    Mxfp4,
    /// The blocks of a GGUF file, 144 bytes each.
    Q4K,
    /// The blocks of a GGUF file, 176 bytes each.
    Q5K,
    /// 208 bytes of each of a GGUF file's blocks (all but its scale), then the f16 scales.
    Q6K,
    /// 80 bytes of each of a GGUF file's blocks (all but the last two numbers), then these.
    Q2K,
    /// The codebook ([`DType::codebook`]), nibbles in Q4_0's order, then f16 scales by 16.
    Codes16,
    /// The codebook, nibbles in Q4_0's order, a whole number for each 16, then f32 scales of these by
    /// 256.
    Codes256,
    /// 64 numbers of two bits a unit, then f16 scales: `d * (q - 1)`.
    TwoBits,
    /// 128 numbers of one bit a unit, then f16 scales: `d * (2 * q - 1)`.
    OneBit,
    /// Points of IQ2's grids: numbers of two bits and signs, numbers of four bits for the scale of each
    /// 16, then f16 scales of 256.
    Grid16,
    /// The same with a scale for each 32.
    Grid32,
    /// Points of IQ1's grid: numbers of two bits, the shift of each eight, then scales as in
    /// [`WeightFormat::Grid16`].
    Shift16,
    /// The same with a scale for each 32.
    Shift32,
}

impl WeightFormat {
    /// The format that holds a type's weights exactly; `None` for types that weights do not have.
    pub const fn of(dtype: DType) -> Option<WeightFormat> {
        Some(match dtype {
            DType::F32 => WeightFormat::F32,
            DType::F16 => WeightFormat::F16,
            DType::BF16 => WeightFormat::Bf16,
            DType::Q8_0 | DType::Q5_0 => WeightFormat::Q8_0,
            DType::Q5_1 => WeightFormat::Q8_1,
            DType::Q4_0 => WeightFormat::Q4_0,
            DType::Q4_1 => WeightFormat::Q4_1,
            DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => WeightFormat::Q4Z,
            DType::MXFP4 => WeightFormat::Mxfp4,
            DType::Q4_K => WeightFormat::Q4K,
            DType::Q5_K => WeightFormat::Q5K,
            DType::Q6_K => WeightFormat::Q6K,
            DType::Q2_K => WeightFormat::Q2K,
            DType::IQ4_NL | DType::NVFP4 | DType::F4_G16 => WeightFormat::Codes16,
            DType::Q3_K | DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => WeightFormat::Codes256,
            DType::TQ1_0 | DType::TQ2_0 | DType::Q2_0 => WeightFormat::TwoBits,
            DType::Q1_0 => WeightFormat::OneBit,
            DType::IQ2_XS | DType::IQ2_S => WeightFormat::Grid16,
            DType::IQ2_XXS => WeightFormat::Grid32,
            DType::IQ1_M => WeightFormat::Shift16,
            DType::IQ1_S => WeightFormat::Shift32,
            DType::I32 => return None,
        })
    }

    /// Whether weights are whole numbers of at most eight bits, with scales and minima.
    pub const fn is_whole_numbers(self) -> bool {
        !matches!(self, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)
    }

    /// Elements of a block: rows of `cols` elements have whole blocks of weights.
    pub const fn block(self) -> u32 {
        use WeightFormat as W;
        match self {
            W::F32 | W::F16 | W::Bf16 => 1,
            W::Q2K | W::Q4K | W::Q5K | W::Q6K | W::Codes256 => 256,
            W::Grid16 | W::Grid32 | W::Shift16 | W::Shift32 => 256,
            W::TwoBits => 64,
            W::OneBit => 128,
            _ => 32,
        }
    }

    /// 16-byte units of a row of `cols` elements.
    pub const fn row_units(self, cols: u32) -> u32 {
        let blocks = cols.div_ceil(self.block());
        match self {
            WeightFormat::F32 => 4 * cols.div_ceil(16),
            WeightFormat::F16 | WeightFormat::Bf16 => 2 * cols.div_ceil(16),
            WeightFormat::Q8_0 => 2 * blocks + blocks.div_ceil(8),
            WeightFormat::Q8_1 => 2 * blocks + blocks.div_ceil(4),
            WeightFormat::Q4_0 => blocks + blocks.div_ceil(8),
            WeightFormat::Q4_1 | WeightFormat::Q4Z => blocks + blocks.div_ceil(4),
            WeightFormat::Mxfp4 => blocks + blocks.div_ceil(16),
            WeightFormat::Q4K => 9 * blocks,
            WeightFormat::Q5K => 11 * blocks,
            WeightFormat::Q6K => 13 * blocks + blocks.div_ceil(8),
            WeightFormat::Q2K => 5 * blocks + blocks.div_ceil(4),
            WeightFormat::Codes16 => 1 + blocks + blocks.div_ceil(4),
            WeightFormat::Codes256 => 1 + 9 * blocks + blocks.div_ceil(4),
            WeightFormat::TwoBits | WeightFormat::OneBit => blocks + blocks.div_ceil(8),
            WeightFormat::Grid16 => 6 * blocks + (10 * blocks).div_ceil(16),
            WeightFormat::Grid32 => 6 * blocks + (6 * blocks).div_ceil(16),
            WeightFormat::Shift16 => 4 * blocks + (14 * blocks).div_ceil(16),
            WeightFormat::Shift32 => 4 * blocks + (10 * blocks).div_ceil(16),
        }
    }

    /// Bytes of a row of `cols` elements.
    pub const fn row_bytes(self, cols: u32) -> usize {
        16 * self.row_units(cols) as usize
    }
}
