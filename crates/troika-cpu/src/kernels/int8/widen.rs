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
    [groups * 8 * QUAD / 4, groups * 2 * ROWS, groups * ROWS]
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
    // SAFETY: by the caller.
    unsafe {
        let [values, scales, _] = parts(most_groups::<I>());
        let mins = to.add(values + scales);
        let scales = to.add(values);
        for (i, g) in g.clone().enumerate() {
            if ready {
                let mut start = I::begin(true, 0);
                for j in 0..trip_count::<I>(8) {
                    let at = to.cast::<u8>().add((i * 8 + j) * I::SIGNED_QUAD);
                    start = I::store_signed(F::quad::<I>(p, g, j), start, at);
                }
                I::store_sums(start, mins.add(i * ROWS).cast());
            } else {
                for j in 0..trip_count::<I>(8) {
                    let quad = F::quad::<I>(p, g, j);
                    I::store_bytes(quad, to.cast::<u8>().add((i * 8 + j) * QUAD));
                }
            }
            for sub in 0..F::SUBS {
                I::store(F::scale::<I>(p, g, sub), scales.add((i * F::SUBS + sub) * ROWS));
            }
            if F::MIN {
                I::store(F::min::<I>(p, g), mins.add(i * ROWS));
            }
        }
        let quants = to.cast_const().cast();
        Panel { quants, high: quants, scales: scales.cast(), supers: mins.cast() }
    }
}
