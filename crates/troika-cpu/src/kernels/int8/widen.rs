//! Panels widened to bytes in scratch, where products of many rows read them.

use std::ops::Range;

use super::format::{Format, Panel};
use super::lanes::{RowLanes, trip_count};
use super::layout::{QUAD, ROWS};

/// Most groups of a block of columns: widened weights of three panels (27 KiB), the activation
/// rows at hand and those asked for fit a first-level cache of 48 KiB; of one panel, 32 KiB.
pub(super) const CHUNK: usize = 16;
/// Floats of a widened panel's values, scales, and minima or what sums begin with.
const WIDE: [usize; 3] = [CHUNK * 8 * QUAD / 4, CHUNK * 2 * ROWS, CHUNK * ROWS];
/// Floats of a widened panel.
pub(super) const PANEL: usize = WIDE[0] + WIDE[1] + WIDE[2];
/// Floats of three widened panels.
pub(super) const SCRATCH: usize = 3 * PANEL;

/// Groups of a block of columns when all are about as wide; `quad` are the bytes of a quad.
pub(super) fn even_chunk(groups: usize, quad: usize) -> usize {
    groups.div_ceil(groups.div_ceil(CHUNK * QUAD / quad).max(1))
}

/// Bytes of a quad widened for products.
pub(super) const fn quad_bytes<I: RowLanes, F: Format>() -> usize {
    if F::FULL && I::SIGNED { I::SIGNED_QUAD } else { QUAD }
}

/// Widens some groups of a panel; `to` has room for a block's. `SIGNED`: to signed bytes whatever
/// the type; else to [`RowLanes::Signed`] where products of all eight bits are signed.
///
/// # Safety
/// Needs the features of `I`; the panel has these groups, and `to` is valid for writes.
#[inline(always)]
pub(super) unsafe fn widen<I: RowLanes, F: Format, const SIGNED: bool>(
    p: &Panel,
    g: Range<usize>,
    to: *mut f32,
) -> Panel {
    let ready = !SIGNED && F::FULL && I::SIGNED;
    // SAFETY: by the caller.
    unsafe {
        let scales = to.add(WIDE[0]);
        let mins = scales.add(WIDE[1]);
        for (i, g) in g.clone().enumerate() {
            if !ready {
                for j in 0..trip_count::<I>(8) {
                    let mut quad = F::quad::<I>(p, g, j);
                    if SIGNED && F::ZERO > 0 {
                        quad = I::less(quad, F::ZERO);
                    }
                    I::store_bytes(quad, to.cast::<u8>().add((i * 8 + j) * QUAD));
                }
            }
            if ready {
                let mut start = I::begin(true, 0);
                for j in 0..trip_count::<I>(8) {
                    let at = to.cast::<u8>().add((i * 8 + j) * I::SIGNED_QUAD);
                    start = I::store_signed(F::quad::<I>(p, g, j), start, at);
                }
                I::store_sums(start, mins.add(i * ROWS).cast());
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
