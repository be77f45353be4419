//! Panels widened to bytes in scratch, where products of many rows read them.

use std::ops::Range;

use super::format::{Format, Panel};
use super::lanes::{RowLanes, trip_count};
use super::layout::{QUAD, ROWS};

/// Most groups of a block of columns: widened weights of three panels (27 KiB), the activation
/// rows at hand and those asked for fit a first-level cache of 48 KiB; of one panel, 32 KiB.
pub(super) const CHUNK: usize = 16;
/// Floats of a widened panel's values, scales and minima.
const WIDE: [usize; 3] = [CHUNK * 8 * QUAD / 4, CHUNK * 2 * ROWS, CHUNK * ROWS];
/// Floats of a widened panel.
pub(super) const PANEL: usize = WIDE[0] + WIDE[1] + WIDE[2];
/// Floats of three widened panels.
pub(super) const SCRATCH: usize = 3 * PANEL;

/// Groups of a block of columns when all are about as wide.
pub(super) fn even_chunk(groups: usize) -> usize {
    groups.div_ceil(groups.div_ceil(CHUNK).max(1))
}

/// Widens some groups of a panel; `to` has room for a block's. `SIGNED`: to signed bytes whatever
/// the type; else only where products of all eight bits are signed.
///
/// # Safety
/// Needs the features of `I`; the panel has these groups, and `to` is valid for writes.
#[inline(always)]
pub(super) unsafe fn widen<I: RowLanes, F: Format, const SIGNED: bool>(
    p: &Panel,
    g: Range<usize>,
    to: *mut f32,
) -> Panel {
    let signed = SIGNED || (F::FULL && I::SIGNED);
    let copy = !F::PLAIN || signed;
    // SAFETY: by the caller.
    unsafe {
        let (scales, mins) = (to.add(WIDE[0]), to.add(WIDE[0] + WIDE[1]));
        for (i, g) in g.clone().enumerate() {
            if copy {
                for j in 0..trip_count::<I>(8) {
                    let mut quad = F::quad::<I>(p, g, j);
                    if signed && F::ZERO > 0 {
                        quad = I::less(quad, F::ZERO);
                    }
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
        let quants = if copy { to.cast() } else { p.quants.add(g.start * 8 * QUAD) };
        Panel { quants, high: quants, scales: scales.cast(), supers: mins.cast() }
    }
}
