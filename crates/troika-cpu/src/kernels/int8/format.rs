//! The packed types, read by registers of sixteen rows.

use std::marker::PhantomData;

use super::lanes::RowLanes;
use super::layout::{Layout, PAIR, QUAD, ROWS};

/// Where the first group or block of a panel has each of its parts (see [`Layout`]).
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub quants: *const u8,
    pub high: *const u8,
    pub scales: *const u8,
    pub supers: *const u8,
}

impl Panel {
    /// Panel `index` of a packed weight.
    ///
    /// # Safety
    /// `base` is a packed weight of this layout, with that many panels.
    pub unsafe fn new(base: *const u8, layout: &Layout, index: usize) -> Panel {
        // SAFETY: these lie inside of the panel.
        unsafe {
            let panel = base.add(index * layout.panel);
            Panel {
                quants: panel.add(layout.head),
                high: panel.add(layout.high),
                scales: panel.add(layout.scales),
                supers: panel.add(layout.supers),
            }
        }
    }
}

/// How a type's values are found in a panel.
///
/// # Safety
/// All methods need the features of `I` and a panel with the group `g`.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Format {
    /// The type widened. Types that differ only in how they are packed share one.
    type Wide: Format;
    /// Scales of a group: 1, or 2 for halves of sixteen columns.
    const SUBS: usize = 1;
    /// Whether a minimum is subtracted.
    const MIN: bool = false;
    /// Whether all eight bits are used.
    const FULL: bool = false;
    /// Partial sums that are added up for a scale: products, added in pairs, are to fit 16 bits,
    /// `2 * QUADS * max * 127 < 2^15`.
    const FOLDS: usize = 1;
    /// Whether they fit only because they begin with what [`super::quantize::split`] says.
    const SPLIT: bool = false;
    /// Quads of a partial sum.
    const QUADS: usize = 8 / Self::SUBS / Self::FOLDS;
    /// Cache lines of a group to prefetch.
    const LINES: usize;
    /// Bytes from group to group of a block (see [`Layout`]).
    const STEP: usize;
    /// Bytes of a block before its groups.
    const HEAD: usize = 0;
    /// Groups of a block.
    const GROUPS: usize = 1;
    /// Whether the type is [`Wide`].
    const WIDE: bool = false;

    /// Bytes from the first group to group `g`.
    #[inline(always)]
    fn at(g: usize) -> usize {
        g * Self::STEP + g / Self::GROUPS * Self::HEAD
    }
    /// Bytes from the first block to the block of group `g`.
    #[inline(always)]
    fn block_at(g: usize) -> usize {
        g / Self::GROUPS * (Self::GROUPS * Self::STEP + Self::HEAD)
    }

    /// Quad `j` of eight.
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes;
    /// The scales, as floats.
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats;
    /// The minima, as floats.
    unsafe fn min<I: RowLanes>(_: &Panel, _: usize) -> I::Floats {
        // SAFETY: features by the caller.
        unsafe { I::splat(0.0) }
    }
}

/// Evaluates an expression with the format of a type.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $code:expr) => {{
        use $crate::kernels::int8::format;
        macro_rules! with {
            ($type:ty) => {{
                type $format = $type;
                $code
            }};
        }
        match $dtype {
            troika_graph::DType::Q8_0 => with!(format::Q8_0),
            troika_graph::DType::Q4_0 => with!(format::Q4_0),
            troika_graph::DType::Q4_K => with!(format::Q4K),
            troika_graph::DType::Q5_K => with!(format::Q5K),
            troika_graph::DType::Q6_K => with!(format::Q6K),
            troika_graph::DType::Q4_G32 => with!(format::Q4G<1>),
            troika_graph::DType::Q4_G64 => with!(format::Q4G<2>),
            troika_graph::DType::Q4_G128 => with!(format::Q4G<4>),
            other => unreachable!("{other} has no integer path"),
        }
    }};
}
pub(super) use with_format;

pub(super) struct Q8_0;
pub(super) struct Q4_0;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;
/// 4 bits with a scale and a zero point for each `S` groups.
pub(super) struct Q4G<const S: usize>;

/// A type widened in scratch: quads of bytes ([`RowLanes::Signed`] where all eight bits are used and
/// [`RowLanes::SIGNED`] says so), scales, and minima in f32 or what sums begin with (`high` is not
/// used).
pub(super) struct Wide<F>(PhantomData<F>);

/// A nibble of quad `j` of the group at some bytes.
///
/// # Safety
/// As [`Format`]'s methods.
#[inline(always)]
unsafe fn nibble<I: RowLanes>(p: &Panel, at: usize, j: usize) -> I::Bytes {
    // SAFETY: by the caller.
    unsafe {
        let bytes = I::load(p.quants.add(at + j % 4 * QUAD));
        I::bits(bytes, (j / 4 * 4) as u32, 15)
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Format for Q8_0 {
    type Wide = Wide<Q8_0>;
    const FULL: bool = true;
    const LINES: usize = 9;
    const STEP: usize = 8 * QUAD;
    const HEAD: usize = PAIR * 2 * ROWS;
    const GROUPS: usize = PAIR;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { I::load(p.quants.add(Self::at(g) + j * QUAD)) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, _: usize) -> I::Floats {
        unsafe { I::load_f16(p.scales.add(Self::block_at(g) + g % PAIR * 2 * ROWS)) }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Format for Q4_0 {
    type Wide = Wide<Q4_0>;
    const LINES: usize = 5;
    const STEP: usize = 4 * QUAD + 2 * ROWS;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { nibble::<I>(p, Self::at(g), j) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, _: usize) -> I::Floats {
        unsafe { I::load_f16(p.scales.add(Self::at(g))) }
    }
}

/// Scale (`which` 0) or minimum (1) of Q4_K and Q5_K.
///
/// # Safety
/// As [`Format`]'s methods.
#[inline(always)]
unsafe fn k_scale<I: RowLanes, F: Format>(p: &Panel, g: usize, which: usize) -> I::Floats {
    // SAFETY: by the caller.
    unsafe {
        let d = I::load_f16(p.supers.add(F::block_at(g) + which * 32));
        I::mul(d, I::load_u8(p.scales.add(F::at(g) + which * 16)))
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Format for Q4K {
    type Wide = Wide<Q4K>;
    const MIN: bool = true;
    const LINES: usize = 5;
    const STEP: usize = 4 * QUAD + 2 * ROWS;
    const HEAD: usize = 64;
    const GROUPS: usize = 8;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { nibble::<I>(p, Self::at(g), j) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, _: usize) -> I::Floats {
        unsafe { k_scale::<I, Self>(p, g, 0) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize) -> I::Floats {
        unsafe { k_scale::<I, Self>(p, g, 1) }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Format for Q5K {
    type Wide = Wide<Q5K>;
    const MIN: bool = true;
    const FOLDS: usize = 2;
    const LINES: usize = 6;
    const STEP: usize = 5 * QUAD + 2 * ROWS;
    const HEAD: usize = 64;
    const GROUPS: usize = 8;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe {
            let high = I::load(p.high.add(Self::at(g)));
            I::or(nibble::<I>(p, Self::at(g), j), I::moved(high, 4 - j as i32, 1 << 4))
        }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, _: usize) -> I::Floats {
        unsafe { k_scale::<I, Self>(p, g, 0) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize) -> I::Floats {
        unsafe { k_scale::<I, Self>(p, g, 1) }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Format for Q6K {
    type Wide = Wide<Q6K>;
    const SUBS: usize = 2;
    const SPLIT: bool = true;
    const LINES: usize = 7;
    const STEP: usize = 6 * QUAD + 2 * ROWS;
    const HEAD: usize = 32;
    const GROUPS: usize = 8;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe {
            let high = I::load(p.high.add(Self::at(g) + j / 4 * QUAD));
            let high = I::moved(high, 4 - (j % 4 * 2) as i32, 3 << 4);
            I::or(nibble::<I>(p, Self::at(g), j), high)
        }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe {
            let d = I::load_f16(p.supers.add(Self::block_at(g)));
            I::mul(d, I::load_i8(p.scales.add(Self::at(g) + sub * 16)))
        }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const S: usize> Format for Q4G<S> {
    type Wide = Wide<Q4K>;
    const MIN: bool = true;
    const LINES: usize = 5;
    const STEP: usize = 4 * QUAD;
    const HEAD: usize = 3 * ROWS;
    const GROUPS: usize = S;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { nibble::<I>(p, Self::at(g), j) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, _: usize) -> I::Floats {
        unsafe { I::load_f16(p.scales.add(Self::block_at(g))) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize) -> I::Floats {
        unsafe { I::mul(Self::scale::<I>(p, g, 0), I::load_u8(p.supers.add(Self::block_at(g)))) }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<F: Format> Format for Wide<F> {
    type Wide = Self;
    const SUBS: usize = F::SUBS;
    const MIN: bool = F::MIN;
    const FULL: bool = F::FULL;
    const FOLDS: usize = F::FOLDS;
    const SPLIT: bool = F::SPLIT;
    const LINES: usize = 0;
    const STEP: usize = 8 * QUAD;
    const WIDE: bool = true;
    #[inline(always)]
    unsafe fn quad<I: RowLanes>(p: &Panel, g: usize, j: usize) -> I::Bytes {
        unsafe { I::load(p.quants.add((g * 8 + j) * QUAD)) }
    }
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(p: &Panel, g: usize, sub: usize) -> I::Floats {
        unsafe { I::load_f32(p.scales.cast::<f32>().add((g * F::SUBS + sub) * 16)) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(p: &Panel, g: usize) -> I::Floats {
        unsafe { I::load_f32(p.supers.cast::<f32>().add(g * 16)) }
    }
}
