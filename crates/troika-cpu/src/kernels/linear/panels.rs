//! bf16 weights packed for products of pairs: word `k` of sixteen weight rows side by side.
//!
//! A row alone then reads one stream of memory instead of sixteen, and turns nothing: on two cores
//! of a Zen 5 that is the difference between two thirds of the memory's bandwidth and all of it.
//! Sums are added in the order of all products (`linear`), so the bits are those of weights as they
//! lie in a file.

use troika_graph::DType;

use super::bf16::{PairsKernel, dispatch_pairs};
use super::pack::{WeightBlock, pack};
use super::terms::Mac;
use super::tile::Sink;
use super::{BLOCK, Product, ProductPart, WeightView};
use crate::Isa;
use crate::kernels::simd::Lanes;
use crate::runtime::prefetch;

/// Weight rows of a panel.
pub const ROWS: usize = 16;
/// Bytes before the words in use that are asked for: about the latency of memory.
const PREFETCH_DISTANCE: usize = 4096;

/// Bytes of a panel of rows of `cols` columns.
pub fn panel_bytes(cols: usize) -> usize {
    cols.div_ceil(2) * ROWS * 4
}

/// Bytes of a packed weight; `None` when they overflow.
pub(crate) fn bytes(rows: usize, cols: usize) -> Option<usize> {
    cols.div_ceil(2).checked_mul(ROWS * 4)?.checked_mul(rows.div_ceil(ROWS))
}

/// Packs rows of `cols` bf16 as panels; rows behind the last one hold anything.
///
/// # Panics
/// If `out` is not 4-byte aligned, or lengths do not fit.
pub fn pack_panels(isa: Isa, rows: &[u8], cols: usize, out: &mut [u8]) {
    let weight =
        WeightView { dtype: DType::BF16, bytes: rows, rows: rows.len() / (2 * cols), cols };
    weight.check();
    assert_eq!(Some(out.len()), bytes(weight.rows, cols), "bytes of panels");
    dispatch_pairs(isa, Pack { weight, out: bytemuck::cast_slice_mut(out) });
}

struct Pack<'a> {
    weight: WeightView<'a>,
    out: &'a mut [f32],
}

impl PairsKernel for Pack<'_> {
    #[inline(always)]
    unsafe fn run<A: Mac>(self) {
        let (weight, len) = (self.weight, self.weight.cols);
        for (i, to) in self.out.chunks_exact_mut(panel_bytes(len) / 4).enumerate() {
            let n = i * ROWS;
            let block = WeightBlock { weight, n, rows: ROWS.min(weight.rows - n), at: 0, len };
            // SAFETY: features by the caller.
            unsafe { pack::<A>(block, to, ROWS, &mut []) }
        }
    }
}

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
