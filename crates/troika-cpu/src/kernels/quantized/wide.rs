//! Where widened panels have their parts, in scratch.

use super::lanes::RowLanes;
use super::shape::{QUAD, ROWS};

/// Most groups of a block of columns of several panels: widened weights of three (27 KiB), the
/// activation rows at hand and those asked for fit a first-level cache of 48 KiB.
const CHUNK: usize = 16;

/// Most groups of a block of columns. Of one panel twice as many (18 KiB) fit 32 KiB, and sums wait
/// half as often in memory for the next block (3 to 7 % for AVX2 on a Zen 4).
pub(crate) const fn most_groups<I: RowLanes>() -> usize {
    if I::PANELS == 1 { 2 * CHUNK } else { CHUNK }
}

/// Floats of the values, scales, and minima or what sums begin with, of some widened groups.
const fn parts(groups: usize) -> [usize; 3] {
    [groups * 8 * QUAD / 4, groups * 2 * ROWS, groups * 2 * ROWS]
}

/// The scales of a panel widened at `base`.
#[inline(always)]
pub(crate) fn scales<I: RowLanes>(base: *const u8) -> *const f32 {
    base.cast::<f32>().wrapping_add(parts(most_groups::<I>())[0])
}

/// Its minima, or what sums begin with.
#[inline(always)]
pub(crate) fn more<I: RowLanes>(base: *const u8) -> *const f32 {
    scales::<I>(base).wrapping_add(parts(most_groups::<I>())[1])
}

/// Floats of a widened panel.
pub(crate) const fn panel_floats<I: RowLanes>() -> usize {
    let [values, scales, more] = parts(most_groups::<I>());
    values + scales + more
}

/// Floats of three widened panels, or of one with more groups.
pub(crate) const SCRATCH: usize = {
    let [values, scales, more] = parts(3 * CHUNK);
    values + scales + more
};
