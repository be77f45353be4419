//! Where packed types have their scales and minima.

use half::f16;

use super::lanes::RowLanes;
use super::shape::{GroupScales, ROWS};

/// Where a block begins, and where a group has what comes after its values.
#[derive(Clone, Copy)]
pub(crate) struct BlockBytes {
    pub head: *const u8,
    pub group: *const u8,
}

/// A block's bytes before its groups, and those of a group after its values; to be packed.
pub(crate) struct GroupBytes<'a> {
    pub head: &'a mut [u8],
    pub group: &'a mut [u8],
    /// Row of the panel.
    pub row: usize,
    /// Group of the row.
    pub g: usize,
}

impl GroupBytes<'_> {
    /// Writes the row's bytes of some rows of numbers, sixteen each.
    fn put<const N: usize>(to: &mut [u8], at: usize, row: usize, number: [u8; N]) {
        to[(at * ROWS + row) * N..][..N].copy_from_slice(&number);
    }
    fn head<const N: usize>(&mut self, at: usize, number: [u8; N]) {
        Self::put(self.head, at, self.row, number);
    }
    /// The numbers that others are multiplied with, before a block's groups.
    fn supers(&mut self, scales: &GroupScales) {
        self.head(0, half(scales.units[0]));
        self.head(1, half(scales.units[1]));
    }
    fn group<const N: usize>(&mut self, at: usize, number: [u8; N]) {
        Self::put(self.group, at, self.row, number);
    }
}

/// How scales, and minima if there are, lie in a panel.
///
/// # Safety
/// `scale` and `min` need the features of `I` and a panel's block with the group `g`.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Scales {
    /// Scales of a group.
    const SUBS: usize = 1;
    /// Whether there are minima.
    const MIN: bool = false;
    /// Bytes of a block before its groups.
    const HEAD: usize = 0;
    /// Groups of a block.
    const GROUPS: usize = 1;
    /// Bytes of a group after its values.
    const SIZE: usize;
    /// The same scales when the type is widened.
    type Wide: Scales;

    unsafe fn scale<I: RowLanes>(at: BlockBytes, g: usize, sub: usize) -> I::Floats;
    unsafe fn min<I: RowLanes>(_: BlockBytes, _: usize, _: usize) -> I::Floats {
        // SAFETY: features by the caller.
        unsafe { I::splat(0.0) }
    }
    /// Packs the scales of a group.
    fn pack(to: GroupBytes<'_>, scales: &GroupScales);
}

/// An f16 for each scale, and then for each minimum.
pub(crate) struct Halves<const SUBS: usize, const MIN: bool>;
/// An f16 for each scale, those of two groups before them.
pub(crate) struct Pairs;
/// A byte for each scale and for each minimum, and two f16 before eight groups to multiply them with.
pub(crate) struct Small;
/// The same in half bytes, for each sixteen columns.
pub(crate) struct Nibbles;
/// A signed byte for each scale, and an f16 (`SINGLE`: an f32) before eight groups.
pub(crate) struct Signed<const SUBS: usize, const SINGLE: bool>;
/// A power of two for each group: a byte of E8M0, with half of its value.
pub(crate) struct Exponents;
/// An f16, and a byte to multiply it with for the minimum, before `GROUPS` groups.
pub(crate) struct ZeroPoint<const GROUPS: usize>;
/// What is widened; see [`super::wide`].
pub(crate) struct WideScales<const SUBS: usize, const MIN: bool>;

/// Groups of a block of 256 columns.
const BLOCK: usize = 8;

fn half(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const SUBS: usize, const MIN: bool> Scales for Halves<SUBS, MIN> {
    const SUBS: usize = SUBS;
    const MIN: bool = MIN;
    const SIZE: usize = if MIN { 4 } else { 2 } * SUBS * ROWS;
    type Wide = WideScales<SUBS, MIN>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, sub: usize) -> I::Floats {
        unsafe { I::load_f16(at.group.add(2 * ROWS * sub)) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(at: BlockBytes, _: usize, sub: usize) -> I::Floats {
        unsafe { I::load_f16(at.group.add(2 * ROWS * (SUBS + sub))) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        for sub in 0..SUBS {
            to.group(sub, half(scales.scales[sub]));
            if MIN {
                to.group(SUBS + sub, half(scales.mins[sub]));
            }
        }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Scales for Pairs {
    const GROUPS: usize = 2;
    const HEAD: usize = Self::GROUPS * 2 * ROWS;
    const SIZE: usize = 0;
    type Wide = WideScales<1, false>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, g: usize, _: usize) -> I::Floats {
        unsafe { I::load_f16(at.head.add(g % Self::GROUPS * 2 * ROWS)) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        to.head(to.g % Self::GROUPS, half(scales.scales[0]));
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Scales for Small {
    const MIN: bool = true;
    const GROUPS: usize = BLOCK;
    const HEAD: usize = 4 * ROWS;
    const SIZE: usize = 2 * ROWS;
    type Wide = WideScales<1, true>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, _: usize) -> I::Floats {
        unsafe { I::mul(I::load_f16(at.head), I::load_u8(at.group)) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(at: BlockBytes, _: usize, _: usize) -> I::Floats {
        unsafe { I::mul(I::load_f16(at.head.add(2 * ROWS)), I::load_u8(at.group.add(ROWS))) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        to.supers(scales);
        to.group(0, scales.scale_number(0).to_le_bytes());
        to.group(1, [scales.min_number(0)]);
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Scales for Nibbles {
    const SUBS: usize = 2;
    const MIN: bool = true;
    const GROUPS: usize = BLOCK;
    const HEAD: usize = 4 * ROWS;
    const SIZE: usize = 2 * ROWS;
    type Wide = WideScales<2, true>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, sub: usize) -> I::Floats {
        unsafe { I::mul(I::load_f16(at.head), I::load_u4(at.group.add(sub * ROWS), 0)) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(at: BlockBytes, _: usize, sub: usize) -> I::Floats {
        let (head, group) = (at.head.wrapping_add(2 * ROWS), sub * ROWS);
        unsafe { I::mul(I::load_f16(head), I::load_u4(at.group.add(group), 4)) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        to.supers(scales);
        for sub in 0..2 {
            to.group(sub, [scales.scale_number(sub) as u8 | scales.min_number(sub) << 4]);
        }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const SUBS: usize, const SINGLE: bool> Scales for Signed<SUBS, SINGLE> {
    const SUBS: usize = SUBS;
    const GROUPS: usize = BLOCK;
    const HEAD: usize = if SINGLE { 4 } else { 2 } * ROWS;
    const SIZE: usize = SUBS * ROWS;
    type Wide = WideScales<SUBS, false>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, sub: usize) -> I::Floats {
        unsafe {
            let of = if SINGLE { I::load_f32(at.head.cast()) } else { I::load_f16(at.head) };
            I::mul(of, I::load_i8(at.group.add(sub * ROWS)))
        }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        if SINGLE {
            to.head(0, scales.units[0].to_le_bytes());
        } else {
            to.head(0, half(scales.units[0]));
        }
        for sub in 0..SUBS {
            to.group(sub, scales.scale_number(sub).to_le_bytes());
        }
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Scales for Exponents {
    const SIZE: usize = ROWS;
    type Wide = WideScales<1, false>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, _: usize) -> I::Floats {
        unsafe { I::load_e8m0_half(at.group) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        let bits = scales.scales[0].to_bits();
        to.group(0, [if bits < 1 << 23 { bits >> 22 } else { (bits >> 23) + 1 } as u8]);
    }
}

// SAFETY (of the unsafe blocks): by the caller.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const GROUPS: usize> Scales for ZeroPoint<GROUPS> {
    const MIN: bool = true;
    const GROUPS: usize = GROUPS;
    const HEAD: usize = 3 * ROWS;
    const SIZE: usize = 0;
    type Wide = WideScales<1, true>;
    #[inline(always)]
    unsafe fn scale<I: RowLanes>(at: BlockBytes, _: usize, _: usize) -> I::Floats {
        unsafe { I::load_f16(at.head) }
    }
    #[inline(always)]
    unsafe fn min<I: RowLanes>(at: BlockBytes, g: usize, _: usize) -> I::Floats {
        unsafe { I::mul(Self::scale::<I>(at, g, 0), I::load_u8(at.head.add(2 * ROWS))) }
    }
    fn pack(mut to: GroupBytes<'_>, scales: &GroupScales) {
        to.head(0, half(scales.units[0]));
        to.head(2, [scales.min_number(0)]);
    }
}

impl<const SUBS: usize, const MIN: bool> Scales for WideScales<SUBS, MIN> {
    const SUBS: usize = SUBS;
    const MIN: bool = MIN;
    const SIZE: usize = 0;
    type Wide = Self;
    unsafe fn scale<I: RowLanes>(_: BlockBytes, _: usize, _: usize) -> I::Floats {
        unreachable!("widened scales are read by their format")
    }
    fn pack(_: GroupBytes<'_>, _: &GroupScales) {}
}
