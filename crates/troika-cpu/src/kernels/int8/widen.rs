//! Panels widened to bytes in scratch, where products of many rows read them.

use std::ops::Range;

use super::format::{Format, Panel};
use super::lanes::{RowLanes, trip_count};
use super::layout::{QUAD, ROWS};

/// Most groups of a block of columns of several panels: widened weights of three (27 KiB), the
/// activation rows at hand and those asked for fit a first-level cache of 48 KiB.
const CHUNK: usize = 16;

/// Most groups of a block of columns. Of one panel twice as many (18 KiB) fit 32 KiB, and sums wait
/// half as often in memory for the next block (3 to 7 % for AVX2 on a Zen 4).
const fn most_groups<I: RowLanes>() -> usize {
    if I::PANELS == 1 { 2 * CHUNK } else { CHUNK }
}

/// Floats of the values, scales, and minima or what sums begin with, of some widened groups.
const fn parts(groups: usize) -> [usize; 3] {
    [groups * 8 * QUAD / 4, groups * 2 * ROWS, groups * 2 * ROWS]
}

/// The scales of a panel widened at `base`.
#[inline(always)]
pub(super) fn scales<I: RowLanes>(base: *const u8) -> *const f32 {
    base.cast::<f32>().wrapping_add(parts(most_groups::<I>())[0])
}

/// Its minima, or what sums begin with.
#[inline(always)]
pub(super) fn more<I: RowLanes>(base: *const u8) -> *const f32 {
    scales::<I>(base).wrapping_add(parts(most_groups::<I>())[1])
}

/// Floats of a widened panel.
pub(super) const fn panel_floats<I: RowLanes>() -> usize {
    let [values, scales, more] = parts(most_groups::<I>());
    values + scales + more
}

/// Floats of three widened panels, or of one with more groups.
pub(super) const SCRATCH: usize = {
    let [values, scales, more] = parts(3 * CHUNK);
    values + scales + more
};

/// Groups of a block of columns when all are about as wide; `quad` are the bytes of a quad.
pub(super) fn even_chunk<I: RowLanes>(groups: usize, quad: usize) -> usize {
    even(groups, most_groups::<I>() * QUAD / quad)
}

/// The fewest blocks of at most `most` groups, all about as wide: groups of one.
fn even(groups: usize, most: usize) -> usize {
    groups.div_ceil(groups.div_ceil(most).max(1))
}

/// Bytes of a quad widened for products.
pub(super) const fn quad_bytes<I: RowLanes, F: Format>() -> usize {
    if F::FULL && I::SIGNED { I::SIGNED_QUAD } else { QUAD }
}

/// Widens some groups of a panel; `to` has room for a block's. Where products of all eight bits are
/// signed, it has [`RowLanes::Signed`].
///
/// # Safety
/// Needs the features of `I`; the panel has these groups, and `to` is valid for writes.
#[inline(always)]
pub(super) unsafe fn widen<I: RowLanes, F: Format>(
    p: &Panel,
    g: Range<usize>,
    to: *mut f32,
) -> Panel {
    let ready = F::FULL && I::SIGNED;
    let base = to.cast_const().cast();
    // SAFETY: by the caller.
    unsafe {
        let [scales, more] = [scales::<I>(base), more::<I>(base)].map(<*const f32>::cast_mut);
        for (i, g) in g.clone().enumerate() {
            for sub in 0..F::SUBS {
                let mut start = I::begin(true, 0);
                for j in 0..trip_count::<I>(8 / F::SUBS) {
                    let j = sub * (8 / F::SUBS) + j;
                    let quad = F::quad::<I>(p, g, j);
                    if ready {
                        let at = to.cast::<u8>().add((i * 8 + j) * I::SIGNED_QUAD);
                        start = I::store_signed(quad, start, at);
                    } else {
                        I::store_bytes(quad, to.cast::<u8>().add((i * 8 + j) * QUAD));
                    }
                }
                let at = (i * F::SUBS + sub) * ROWS;
                I::store(F::scale::<I>(p, g, sub), scales.add(at));
                if ready {
                    I::store_sums(start, more.add(at).cast());
                } else if F::MIN {
                    I::store(F::min::<I>(p, g, sub), more.add(at));
                }
            }
        }
        Panel { base, table: p.table }
    }
}
