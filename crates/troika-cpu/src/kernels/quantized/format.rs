//! The packed types, read by registers of sixteen rows.

use std::marker::PhantomData;

use super::lanes::RowLanes;
use super::scales::{
    BlockBytes, Exponents, Halves, Nibbles, Pairs, Scales, Signed, Small, ZeroPoint,
};
use super::shape::{Panel, QUAD};
use super::wide;

/// How a type's values are found in a panel.
///
/// # Safety
/// All methods need the features of `I` and a panel with the group `g`.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Format {
    /// The type widened. Types that differ only in how they are packed share one.
    type Wide: Format;
    /// Where scales and minima are.
    type Scales: Scales;
    /// Bits of a packed value.
    const BITS: usize;
    /// Bits of what packed values stand for; 2 of them are a value of 4.
    const LEVELS: usize;
    /// Whether all eight bits are used.
    const FULL: bool = Self::LEVELS == 8;
    /// Whether packed values are codes that a table of sixteen has the values for.
    const CODES: bool = Self::LEVELS > 4 && Self::BITS < Self::LEVELS;
    /// Which value stands for zero.
    const ZERO: i32 = match Self::BITS {
        _ if Self::MIN => 0,
        2 => 1,
        _ => 1 << (Self::LEVELS - 1),
    };
    /// Whether a few rows meet widened weights, as many rows do: types with code of their own for that
    /// take the compiler time.
    const FEW_WIDENED: bool = Self::CODES || Self::BITS == 2;
    /// Whether the type is [`Wide`].
    const WIDE: bool = false;

    /// Scales of a group: 1, or 2 for halves of sixteen columns.
    const SUBS: usize = Self::Scales::SUBS;
    /// Whether a minimum is subtracted, one for each scale.
    const MIN: bool = Self::Scales::MIN;
    /// Partial sums that are added up for a scale: products, added in pairs, are to fit 16 bits,
    /// `2 * QUADS * max * 127 < 2^15`.
    const FOLDS: usize = if Self::LEVELS == 5 && Self::SUBS == 1 { 2 } else { 1 };
    /// Whether they fit only because they begin with what [`super::quantize::split`] says.
    const SPLIT: bool = Self::LEVELS == 6;
    /// Quads of a partial sum.
    const QUADS: usize = 8 / Self::SUBS / Self::FOLDS;
    /// Bytes from group to group of a block.
    const STEP: usize = Self::BITS * QUAD + Self::Scales::SIZE;
    /// Bytes of a block before its groups.
    const HEAD: usize = Self::Scales::HEAD;
    /// Groups of a block.
    const GROUPS: usize = Self::Scales::GROUPS;
    /// Cache lines of a group to prefetch.
    const LINES: usize = (Self::STEP + Self::HEAD / Self::GROUPS).div_ceil(64);

    /// Bytes from the beginning of a panel to group `g`.
    #[inline(always)]
    fn at(g: usize) -> usize {
        Self::block_at(g) + Self::HEAD + g % Self::GROUPS * Self::STEP
    }
    /// Bytes from the beginning of a panel to the block of group `g`.
    #[inline(always)]
    fn block_at(g: usize) -> usize {
        g / Self::GROUPS * (Self::GROUPS * Self::STEP + Self::HEAD)
    }

    /// Values of at most four bits of quad `j`, those of a row from bit [`Format::code_shift`] on, a
    /// byte apart; other bits may lie beside them that [`Format::levels`] do not depend on.
    unsafe fn codes<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes;
    /// See [`Format::codes`].
    #[inline(always)]
    fn code_shift(j: usize) -> u32 {
        match Self::BITS {
            3 => 0,
            bits => (j / bits * bits) as u32,
        }
    }
    /// What values of at most four bits are as bytes, as floats.
    #[inline(always)]
    unsafe fn levels<I: RowLanes>(p: &Panel) -> I::Floats {
        static COUNT: [[u8; 16]; 2] = [
            [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        ];
        let table = if Self::CODES { p.table } else { COUNT[usize::from(Self::BITS > 2)].as_ptr() };
        // SAFETY: sixteen bytes.
        unsafe { I::load_u8(table) }
    }
    /// Quad `j` of eight.
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes;
    /// The scales, as floats.
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats;
    /// The minima, as floats.
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats;
}

/// Evaluates an expression with the format of a type.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $code:expr) => {{
        use troika_graph::DType;
        use $crate::kernels::quantized::format;
        macro_rules! with {
            ($type:ty) => {{
                type $format = $type;
                $code
            }};
        }
        match $dtype {
            DType::Q8_0 => with!(format::Q8_0),
            DType::Q4_0 => with!(format::Q4_0),
            DType::Q4_1 => with!(format::Q4_1),
            DType::Q5_0 => with!(format::Q5_0),
            DType::Q5_1 => with!(format::Q5_1),
            DType::Q2_K => with!(format::Q2K),
            DType::Q3_K => with!(format::Q3K),
            DType::Q4_K => with!(format::Q4K),
            DType::Q5_K => with!(format::Q5K),
            DType::Q6_K => with!(format::Q6K),
            DType::IQ1_S => with!(format::Iq1S),
            DType::IQ1_M => with!(format::Q3K),
            DType::IQ2_XXS => with!(format::Iq2Xxs),
            DType::IQ2_XS | DType::IQ2_S => with!(format::Iq2),
            DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => with!(format::Iq4Xs),
            DType::IQ4_NL => with!(format::Iq4Nl),
            DType::MXFP4 => with!(format::Mxfp4),
            DType::NVFP4 | DType::F4_G16 => with!(format::Nvfp4),
            DType::TQ1_0 | DType::TQ2_0 | DType::Q1_0 | DType::Q2_0 => with!(format::Q2_0),
            DType::Q4_G32 => with!(format::Q4G<1>),
            DType::Q4_G64 => with!(format::Q4G<2>),
            DType::Q4_G128 => with!(format::Q4G<4>),
            other @ (DType::I32 | DType::F32 | DType::F16 | DType::BF16) => {
                unreachable!("{other} is not quantized")
            }
        }
    }};
}
pub(crate) use with_format;

pub(crate) type Q8_0 = Packed<8, 8, Pairs>;
pub(crate) type Q4_0 = Packed<4, 4, Halves<1, false>>;
pub(crate) type Q4_1 = Packed<4, 4, Halves<1, true>>;
pub(crate) type Q5_0 = Packed<5, 5, Halves<1, false>>;
pub(crate) type Q5_1 = Packed<5, 5, Halves<1, true>>;
pub(crate) type Q2K = Packed<2, 4, Nibbles>;
/// Codes of 3 bits with numbers for scales; the largest values have four bits.
pub(crate) type Q3K = Packed<3, 5, Signed<2, true>>;
pub(crate) type Iq1S = Packed<3, 5, Signed<1, true>>;
pub(crate) type Iq2Xxs = Packed<3, 8, Signed<1, true>>;
pub(crate) type Iq2 = Packed<3, 8, Signed<2, true>>;
pub(crate) type Q4K = Packed<4, 4, Small>;
pub(crate) type Q5K = Packed<5, 5, Small>;
pub(crate) type Q6K = Packed<6, 6, Signed<2, false>>;
/// 2 bits with a scale.
pub(crate) type Q2_0 = Packed<2, 4, Halves<1, false>>;
/// Codes of 4 bits with numbers for scales.
pub(crate) type Iq4Xs = Packed<4, 8, Signed<1, true>>;
pub(crate) type Iq4Nl = Packed<4, 8, Halves<1, false>>;
pub(crate) type Nvfp4 = Packed<4, 5, Halves<2, false>>;
pub(crate) type Mxfp4 = Packed<4, 5, Exponents>;
/// 4 bits with a scale and a zero point for each `S` groups.
pub(crate) type Q4G<const S: usize> = Packed<4, 4, ZeroPoint<S>>;

/// Values of `BITS` bits, which stand for values of `LEVELS` bits.
pub(crate) struct Packed<const BITS: usize, const LEVELS: usize, S>(PhantomData<S>);

/// A type widened in scratch: quads of bytes ([`RowLanes::Signed`] where all eight bits are used and
/// [`RowLanes::SIGNED`] says so), scales, and minima in f32 or what sums begin with.
pub(crate) struct Wide<const LEVELS: usize, S>(PhantomData<S>);

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const BITS: usize, const LEVELS: usize, S: Scales> Format for Packed<BITS, LEVELS, S> {
    type Wide = Wide<LEVELS, S::Wide>;
    type Scales = S;
    const BITS: usize = BITS;
    const LEVELS: usize = LEVELS;
    #[inline(always)]
    unsafe fn codes<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe {
            match BITS {
                3 => unpacked::<I, Self>(p, g, j),
                _ => I::load(p.base.add(Self::at(g) + j % low_bits(BITS) * QUAD)),
            }
        }
    }
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe {
            let all = unpacked::<I, Self>(p, g, j);
            if Self::CODES { I::look_up(p.table, all) } else { all }
        }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe { S::scale::<I>(block::<Self>(p, g), g, sub) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe { S::min::<I>(block::<Self>(p, g), g, sub) }
    }
}

/// Bits of values that are in as many quads of bytes; the others are behind them.
pub(crate) const fn low_bits(bits: usize) -> usize {
    match bits {
        8 => 8,
        4.. => 4,
        _ => 2,
    }
}

/// Packed values, a byte each.
///
/// # Safety
/// As [`Format`]'s methods.
#[inline(always)]
unsafe fn unpacked<I: RowLanes, F: Format>(p: &Panel, g: usize, j: usize) -> I::Bytes {
    // SAFETY: by the caller.
    unsafe {
        let group = p.base.add(F::at(g));
        let low_bits = low_bits(F::BITS);
        let low = I::load(group.add(j % low_bits * QUAD));
        if F::BITS == 8 {
            return low;
        }
        let low = I::bits(low, (j / low_bits * low_bits) as u32, (1 << low_bits) - 1);
        match F::BITS - low_bits {
            0 => low,
            high_bits => {
                let (each, mask) = (8 / high_bits, ((1 << high_bits) - 1) << low_bits);
                let high = I::load(group.add((low_bits + j / each) * QUAD));
                let left = low_bits as i32 - (j % each * high_bits) as i32;
                I::or(low, I::moved(high, left, mask))
            }
        }
    }
}

/// Where the scales of a group lie.
///
/// # Safety
/// The panel has the group.
#[inline(always)]
unsafe fn block<F: Format>(p: &Panel, g: usize) -> BlockBytes {
    // SAFETY: by the caller.
    unsafe {
        let group = p.base.add(F::at(g) + F::BITS * QUAD);
        BlockBytes { head: p.base.add(F::block_at(g)), group }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const LEVELS: usize, S: Scales> Format for Wide<LEVELS, S> {
    type Wide = Self;
    type Scales = S;
    const BITS: usize = LEVELS;
    const LEVELS: usize = LEVELS;
    const CODES: bool = false;
    const LINES: usize = 0;
    const STEP: usize = 8 * QUAD;
    const HEAD: usize = 0;
    const GROUPS: usize = 1;
    const WIDE: bool = true;
    unsafe fn codes<I: RowLanes>(_: &Panel, _: usize, _: usize) -> I::Bytes {
        unreachable!("widened values are bytes")
    }
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { I::load(p.base.add((g * 8 + j) * QUAD)) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe { I::load_f32(wide::scales::<I>(p.base).add((g * S::SUBS + sub) * 16)) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe { I::load_f32(wide::more::<I>(p.base).add((g * S::SUBS + sub) * 16)) }
    }
}
