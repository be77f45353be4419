//! Panels widened to bytes in scratch, where products of many rows read them.

use std::ops::Range;

use crate::kernels::quantized::format::Format;
use crate::kernels::quantized::lanes::{RowLanes, trip_count};
use crate::kernels::quantized::wide::{more, most_groups, scales};
use crate::kernels::quantized::{Panel, QUAD, ROWS};

/// Groups of a block of columns when all are about as wide.
pub(super) fn even_chunk<I: RowLanes, F: Format>(groups: usize) -> usize {
    let widened_quad = if F::FULL && I::SIGNED { I::SIGNED_QUAD } else { QUAD };
    let most = most_groups::<I>() * QUAD / widened_quad;
    groups.div_ceil(groups.div_ceil(most).max(1))
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
