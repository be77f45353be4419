//! Products of weights packed as [`panels`](super::panels): one activation row meets them as they
//! lie; for several rows their words are copied.

use super::panels::{ROWS, panel_bytes};
use super::sink::Sink;
use super::terms::Mac;
use super::{BLOCK, Product, ProductPart};
use crate::kernels::simd::Lanes;
use crate::runtime::prefetch;

/// Bytes before the words in use that are asked for: about the latency of memory.
const PREFETCH_DISTANCE: usize = 4096;

/// The words of a panel, from weight row `n` on.
///
/// # Safety
/// The weight is packed and has the row, the first of a panel.
#[inline(always)]
unsafe fn panel(p: &Product<'_>, n: usize) -> *const f32 {
    debug_assert!(n.is_multiple_of(ROWS), "a panel's first row");
    let at = n / ROWS * panel_bytes(p.weight.cols);
    // SAFETY: by the caller.
    unsafe { p.weight.bytes.as_ptr().add(at).cast() }
}

/// One activation row.
///
/// # Safety
/// Needs the features of `A`; the weight is packed.
#[inline(always)]
pub(super) unsafe fn one_row<A: Mac>(part: &ProductPart<'_>) {
    let mut n = part.n.start;
    // SAFETY: passed on.
    unsafe {
        // Two chains of sums hide the latency of the products.
        while n + ROWS < part.n.end {
            some::<A, 2>(part, n);
            n += 2 * ROWS;
        }
        if n < part.n.end {
            some::<A, 1>(part, n);
        }
    }
}

/// `G` panels from weight row `n` on.
///
/// # Safety
/// As for [`one_row`].
#[inline(always)]
unsafe fn some<A: Mac, const G: usize>(part: &ProductPart<'_>, n: usize) {
    let p = &part.product;
    let words = p.weight.cols.div_ceil(2);
    // SAFETY: rows are checked; the panels hold all words.
    unsafe {
        let x = p.x.row(part.m.start, words);
        let y = p.y.at(part.m.start, p.weight.rows);
        for lane in (0..ROWS).step_by(A::V::N) {
            let mut from = [std::ptr::null::<f32>(); G];
            for (g, from) in from.iter_mut().enumerate() {
                *from = panel(p, n + g * ROWS).add(lane);
            }
            for at in (0..words).step_by(BLOCK) {
                let end = (at + BLOCK).min(words);
                let sink = Sink { product: p, first: at == 0, last: end == words };
                let mut acc = [A::V::splat(0.0); G];
                for k in at..end {
                    let x = A::V::splat(*x.add(k));
                    for g in 0..G {
                        let w = from[g].add(k * ROWS);
                        prefetch::once(w.cast::<u8>().wrapping_add(PREFETCH_DISTANCE));
                        acc[g] = A::mac(x, A::V::load(w), acc[g]);
                    }
                }
                for (g, acc) in acc.into_iter().enumerate() {
                    let n = n + g * ROWS + lane;
                    if n < part.n.end {
                        sink.put(y, n, part.n.end - n, acc);
                    }
                }
            }
        }
    }
}

/// The `words` words from word `at` on of the weight rows from `n` on, `width` side by side.
///
/// # Safety
/// Needs the features of `V`; the weight is packed and has the words; `n` begins a panel.
#[inline(always)]
pub(super) unsafe fn copy<V: Lanes>(
    p: &Product<'_>,
    n: usize,
    (at, words): (usize, usize),
    (to, width): (&mut [f32], usize),
) {
    assert!(to.len() >= words * width && width.is_multiple_of(ROWS), "memory of a panel");
    for g in (0..width.min(p.weight.rows - n)).step_by(ROWS) {
        // SAFETY: by the caller; there is room for all words.
        unsafe {
            let from = panel(p, n + g).add(at * ROWS);
            for k in 0..words {
                for lane in (0..ROWS).step_by(V::N) {
                    let v = V::load(from.add(k * ROWS + lane));
                    v.store(to.as_mut_ptr().add(k * width + g + lane));
                }
            }
        }
    }
}
