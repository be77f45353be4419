//! Element and block types of tensors: one table of all that is asked about them.

use serde::{Deserialize, Serialize};

/// What the table of types says about one of them.
struct TypeInfo {
    /// Its number in GGUF files; `None`: Troika's own type, which no GGUF file has.
    gguf: Option<u32>,
    len: usize,
    bytes: usize,
    group: usize,
    codebook: Option<&'static [i8; 16]>,
    scale: Option<usize>,
    minima: bool,
}

impl TypeInfo {
    /// Plain numbers.
    const fn plain(gguf: Option<u32>, bytes: usize) -> TypeInfo {
        let (codebook, scale, minima) = (None, None, false);
        TypeInfo { gguf, len: 1, bytes, group: 1, codebook, scale, minima }
    }

    /// Blocks of `len` values with a scale for each 32, of more than 16 levels.
    const fn blocks(gguf: Option<u32>, len: usize, bytes: usize) -> TypeInfo {
        TypeInfo { len, group: 32, ..TypeInfo::plain(gguf, bytes) }
    }

    /// A scale for each 16 values.
    const fn by_sixteen(self) -> TypeInfo {
        TypeInfo { group: 16, ..self }
    }

    /// All levels.
    const fn levels(self, codebook: &'static [i8; 16]) -> TypeInfo {
        TypeInfo { codebook: Some(codebook), ..self }
    }

    /// Where the block has its f16 scale.
    const fn scale_at(self, at: usize) -> TypeInfo {
        TypeInfo { scale: Some(at), ..self }
    }

    /// Groups have minima, too.
    const fn with_minima(self) -> TypeInfo {
        TypeInfo { minima: true, ..self }
    }
}

/// Codes of four bits that count from zero.
const UP: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Codes of four bits that count from -8.
const CENTRED: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
/// Twice the values of E2M1, with the sign in the fourth bit (OCP Microscaling Formats, table 5).
/// As in ggml, minus zero is zero.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The nonlinear steps of IQ4_NL and IQ4_XS.
const NONLINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The coordinates of IQ2 grids with both signs.
const IQ2: [i8; 16] = [8, 25, 43, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The coordinates of the IQ3_XXS grid with both signs.
const IQ3_XXS: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];
/// The coordinates of the IQ3_S grid with both signs.
const IQ3_S: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
/// Eight times -1, 0 and 1, each shifted up or down by an eighth: IQ1.
const IQ1: [i8; 16] = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Codes of one or two bits that count from -1.
const FROM_MINUS_ONE: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes the enum, the list of weight types and what the table says.
macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $info:expr;)*) => {
        /// The type of a tensor's elements. Quantized types store blocks of consecutive elements of
        /// a row. Each value is a whole number, its *level*, times the scale of its group; types
        /// with minima add the minimum of the group ([`crate::blocks::BlockParts`]).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(non_camel_case_types)]
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            /// All types, integers first.
            const ALL: &[DType] = &[$(DType::$name),*];

            const fn info(self) -> &'static TypeInfo {
                match self {
                    $(DType::$name => const { &$info },)*
                }
            }

            /// The usual name, as GGUF tools print it (`F32`, `Q4_K`, ...).
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$name => stringify!($name),)*
                }
            }
        }
    };
}

types! {
    /// 32-bit signed integers (token ids, positions, expert ids).
    I32 = TypeInfo::plain(Some(26), 4);
    /// IEEE 754 single precision.
    F32 = TypeInfo::plain(Some(0), 4);
    /// IEEE 754 half precision.
    F16 = TypeInfo::plain(Some(1), 2);
    /// bfloat16: the upper half of a single.
    BF16 = TypeInfo::plain(Some(30), 2);
    /// 32 x int8 with an f16 scale.
    Q8_0 = TypeInfo::blocks(Some(8), 32, 34).scale_at(0);
    /// 32 x 4 bit with an f16 scale.
    Q4_0 = TypeInfo::blocks(Some(2), 32, 18).levels(&CENTRED).scale_at(0);
    /// 32 x 4 bit with an f16 scale and minimum.
    Q4_1 = TypeInfo::blocks(Some(3), 32, 20).levels(&UP).scale_at(0).with_minima();
    /// 32 x 5 bit with an f16 scale.
    Q5_0 = TypeInfo::blocks(Some(6), 32, 22).scale_at(0);
    /// 32 x 5 bit with an f16 scale and minimum.
    Q5_1 = TypeInfo::blocks(Some(7), 32, 24).scale_at(0).with_minima();
    /// 256 x 2 bit in 16 groups with 4-bit scales and minima.
    Q2_K = TypeInfo::blocks(Some(10), 256, 84).by_sixteen().levels(&UP).scale_at(80).with_minima();
    /// 256 x 3 bit in 16 groups with 6-bit scales.
    Q3_K = TypeInfo::blocks(Some(11), 256, 110).by_sixteen().levels(&CENTRED).scale_at(108);
    /// 256 x 4 bit in 8 groups with 6-bit scales and minima.
    Q4_K = TypeInfo::blocks(Some(12), 256, 144).levels(&UP).scale_at(0).with_minima();
    /// 256 x 5 bit in 8 groups with 6-bit scales and minima.
    Q5_K = TypeInfo::blocks(Some(13), 256, 176).scale_at(0).with_minima();
    /// 256 x 6 bit in 16 groups with 8-bit scales.
    Q6_K = TypeInfo::blocks(Some(14), 256, 210).by_sixteen().scale_at(208);
    /// 256 values of a grid of 256 points in eight dimensions, with 4-bit scales.
    IQ2_XXS = TypeInfo::blocks(Some(16), 256, 66).levels(&IQ2).scale_at(0);
    /// 256 values of a grid of 512 points in eight dimensions, in 16 groups with 4-bit scales.
    IQ2_XS = TypeInfo::blocks(Some(17), 256, 74).by_sixteen().levels(&IQ2).scale_at(0);
    /// 256 values of a grid of 1024 points in eight dimensions, in 16 groups with 4-bit scales.
    IQ2_S = TypeInfo::blocks(Some(22), 256, 82).by_sixteen().levels(&IQ2).scale_at(0);
    /// 256 values of a grid of 256 points in four dimensions, with 4-bit scales.
    IQ3_XXS = TypeInfo::blocks(Some(18), 256, 98).levels(&IQ3_XXS).scale_at(0);
    /// 256 values of a grid of 512 points in four dimensions, with 4-bit scales.
    IQ3_S = TypeInfo::blocks(Some(21), 256, 110).levels(&IQ3_S).scale_at(0);
    /// 256 values of a grid of 2048 points in eight dimensions, with 3-bit scales.
    IQ1_S = TypeInfo::blocks(Some(19), 256, 50).levels(&IQ1).scale_at(0);
    /// 256 values of the grid of IQ1_S in 16 groups with 3-bit scales; the f16 scale is in parts.
    IQ1_M = TypeInfo::blocks(Some(29), 256, 56).by_sixteen().levels(&IQ1);
    /// 32 x 4 bit that stand for nonlinear steps, with an f16 scale.
    IQ4_NL = TypeInfo::blocks(Some(20), 32, 18).levels(&NONLINEAR).scale_at(0);
    /// 256 x 4 bit that stand for the steps of IQ4_NL, in 8 groups with 6-bit scales.
    IQ4_XS = TypeInfo::blocks(Some(23), 256, 136).levels(&NONLINEAR).scale_at(0);
    /// 256 x -1, 0 or 1, five in a byte, with an f16 scale.
    TQ1_0 = TypeInfo::blocks(Some(34), 256, 54).levels(&FROM_MINUS_ONE).scale_at(52);
    /// 256 x 2 bit that count from -1, with an f16 scale.
    TQ2_0 = TypeInfo::blocks(Some(35), 256, 66).levels(&FROM_MINUS_ONE).scale_at(64);
    /// 128 x -1 or 1 with an f16 scale.
    Q1_0 = TypeInfo::blocks(Some(41), 128, 18).levels(&FROM_MINUS_ONE).scale_at(0);
    /// 64 x 2 bit that count from -1, with an f16 scale.
    Q2_0 = TypeInfo::blocks(Some(42), 64, 18).levels(&FROM_MINUS_ONE).scale_at(0);
    /// 32 x fp4 (E2M1) with a shared E8M0 exponent.
    MXFP4 = TypeInfo::blocks(Some(39), 32, 17).levels(&E2M1);
    /// 64 x fp4 (E2M1) in 4 groups with E4M3 scales.
    NVFP4 = TypeInfo::blocks(Some(40), 64, 36).by_sixteen().levels(&E2M1);
    /// 32 x fp4 (E2M1) in 2 groups with f16 scales: NVFP4 times the scale of a whole matrix.
    F4_G16 = TypeInfo::blocks(None, 32, 20).by_sixteen().levels(&E2M1);
    /// 32 x 4 bit with an f16 scale and an 8-bit zero point, as in GPTQ and AWQ checkpoints.
    Q4_G32 = TypeInfo::blocks(None, 32, 19).levels(&UP).scale_at(0).with_minima();
    /// 64 x 4 bit, like [`DType::Q4_G32`].
    Q4_G64 = TypeInfo::blocks(None, 64, 35).levels(&UP).scale_at(0).with_minima();
    /// 128 x 4 bit, like [`DType::Q4_G32`].
    Q4_G128 = TypeInfo::blocks(None, 128, 67).levels(&UP).scale_at(0).with_minima();
}

impl DType {
    /// The types that weights can have: each can be opened, made at random and computed with.
    pub const WEIGHTS: &[DType] = DType::ALL.split_at(1).1;

    /// The type with a number of GGUF's.
    pub fn from_gguf(number: u32) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.info().gguf == Some(number))
    }

    /// Elements in one block (1 for plain types).
    pub const fn block_len(self) -> usize {
        self.info().len
    }

    /// Bytes of one block (of one element for plain types).
    pub const fn block_bytes(self) -> usize {
        self.info().bytes
    }

    /// Elements that share a scale: 16 or 32, where a block has one scale, too; 1 for plain types.
    pub const fn group_len(self) -> usize {
        self.info().group
    }

    /// All levels that values can have, if 16 are enough; codes that no level needs are zero.
    pub const fn codebook(self) -> Option<&'static [i8; 16]> {
        self.info().codebook
    }

    /// Bits of a number that holds each level: 4 if all are from -8 to 7, or with minima from 0 to
    /// 15, else 8.
    pub fn level_bits(self) -> usize {
        let four = if self.has_minimum() { 0..=15 } else { -8..=7 };
        let fits = |all: &[i8; 16]| all.iter().all(|level| four.contains(level));
        if self.codebook().is_some_and(fits) { 4 } else { 8 }
    }

    /// Whether groups have a minimum that is added.
    pub const fn has_minimum(self) -> bool {
        self.info().minima
    }

    /// Where a block has its f16 scale, if it has one in one piece. For GGUF types with minima, the
    /// f16 that these are multiplied with follows.
    pub const fn scale_at(self) -> Option<usize> {
        self.info().scale
    }

    /// Bytes of a row of `cols` elements; `None` if blocks would not be whole, or on overflow.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Like [`DType::row_bytes`], with the largest number where there is none: no memory has so
    /// many bytes, so whoever asks for them is refused.
    pub fn row_size(self, cols: usize) -> usize {
        self.row_bytes(cols).unwrap_or(usize::MAX)
    }

    /// Whether elements are plain floats (f32, f16, bf16).
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether the type stores quantized blocks.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
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
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
