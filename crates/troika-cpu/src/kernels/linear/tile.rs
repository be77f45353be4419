//! The register-blocked products and the loops around them.

use troika_graph::DType;

use super::pack::{WIDE, WeightBlock, pack, prefetch_rows, rows, square};
use super::sink::Sink;
use super::terms::{Halves, Pairs, RowReader};
use super::weights::{F16Row, F32Row};
use super::{BLOCK, ProductPart, packed, panels};
use crate::kernels::quantized::GROUP;
use crate::kernels::quantized::dispatch::run_floats;
use crate::kernels::quantized::float::Unpack;
use crate::kernels::simd::{Lanes, Mac};

/// Activation rows that meet one panel after another while they are in the nearer caches.
const ROWS_AT_ONCE: usize = 96;

/// Computes a part of a product.
#[inline(always)]
pub(super) fn part<A: Mac>(part: ProductPart<'_>) {
    // SAFETY: `ProductPart::new` checked bytes, rows and lengths, and had the promise
    // that nobody else writes the results.
    unsafe {
        let packed = part.product.packed().is_some();
        if part.product.panels && !packed && part.m.len() <= packed::FEW {
            return packed::few_rows::<A>(&part);
        }
        if part.m.len() == 1 && !packed {
            match (A::PAIRS, part.product.weight.dtype) {
                (true, _) => return one_row::<A, Pairs>(&part),
                (_, DType::F32) => return one_row::<A, F32Row>(&part),
                (_, DType::F16) => return one_row::<A, F16Row>(&part),
                (_, DType::BF16) => return one_row::<A, Halves>(&part),
                _ => {}
            }
        }
        // Tiles as wide as one panel of packed weights, or several.
        match A::V::N {
            16 => by_panels::<A, 8, 3>(part),
            4 => by_panels::<A, 6, 4>(part),
            _ => by_panels::<A, 6, 2>(part),
        }
    }
}

/// One activation row: weights are turned in registers, as they come from memory.
///
/// # Safety
/// The weight is not packed, and `S` reads rows of its type.
#[inline(always)]
unsafe fn one_row<A: Mac, S: RowReader>(part: &ProductPart<'_>) {
    let p = &part.product;
    // SAFETY: the activation and result rows are checked; the weight rows are in the part.
    unsafe {
        let x = p.x.row(part.m.start, A::words(p.weight.cols));
        let y = p.y.at(part.m.start, p.weight.rows);
        let mut n = part.n.start;
        while n < part.n.end {
            // Two chains of sums hide the latency of the shorter registers.
            if A::V::N <= 8 && n + A::V::N < part.n.end {
                rows_by_row::<A, S, 2>(part, x, y, n);
                n += 2 * A::V::N;
            } else {
                rows_by_row::<A, S, 1>(part, x, y, n);
                n += A::V::N;
            }
        }
    }
}

/// `G` registers of weight rows from `n` on.
///
/// # Safety
/// As for [`one_row`]; the part has the rows, and `x` and `y` are its activation and result row.
#[inline(always)]
unsafe fn rows_by_row<A: Mac, S: RowReader, const G: usize>(
    part: &ProductPart<'_>,
    x: *const f32,
    y: *mut f32,
    n: usize,
) {
    let (p, w) = (&part.product, &part.product.weight);
    let bytes = w.row_bytes();
    let step = S::COLS * A::V::N;
    let (len_of, bytes_of) = (w.dtype.block_len(), w.dtype.block_bytes());
    // SAFETY: the rows are in the weight, `x` has a word for each of a row's.
    unsafe {
        let base = w.bytes.as_ptr().add(n * bytes);
        let of = |g: usize| {
            let rest = part.n.end - n - g * A::V::N;
            rows::<A::V>(base.wrapping_add(g * A::V::N * bytes), bytes, rest)
        };
        let rows: [_; G] = std::array::from_fn(of);
        let mut at = 0;
        loop {
            let len = (BLOCK * A::PER_WORD).min(w.cols - at);
            let sink = Sink { product: p, first: at == 0, last: at + len == w.cols };
            let whole = len / step * step;
            let mut acc = [A::V::splat(0.0); G];
            let mut i = 0;
            while i < whole {
                let x = x.add(S::words(at + i));
                for g in 0..G {
                    prefetch_rows::<A::V>(&rows[g], bytes, (at + i) / len_of * bytes_of, G);
                    let lanes = square::<A::V, S>(rows[g], at + i, step);
                    for (j, lanes) in lanes.iter().take(A::V::N).enumerate() {
                        for k in 0..S::WORDS {
                            let x = A::V::splat(*x.add(j * S::WORDS + k));
                            acc[g] = A::mac(x, S::word(*lanes, k), acc[g]);
                        }
                    }
                }
                i += step;
            }
            if i < len {
                let x = x.add(S::words(at + i));
                for g in 0..G {
                    let lanes = square::<A::V, S>(rows[g], at + i, len - i);
                    for j in 0..S::words(len - i) {
                        let x = A::V::splat(*x.add(j));
                        acc[g] = A::mac(x, S::word(lanes[j / S::WORDS], j % S::WORDS), acc[g]);
                    }
                }
            }
            for (g, acc) in acc.into_iter().enumerate() {
                let n = n + g * A::V::N;
                sink.put(y, n, part.n.end - n, acc);
            }
            at += len;
            if at >= w.cols {
                break;
            }
        }
    }
}

/// Several activation rows: a block of weight rows is packed, then meets all rows, `M` by `W`
/// registers at a time.
#[inline(always)]
fn by_panels<A: Mac, const M: usize, const W: usize>(part: ProductPart<'_>) {
    let p = &part.product;
    let (width, packed_weight) = (W * A::V::N, p.packed());
    let (packed, wide) = part.scratch.split_at_mut(part.scratch.len() - WIDE);
    let mut at = 0;
    loop {
        let len = (BLOCK * A::PER_WORD).min(p.weight.cols - at);
        let sink = Sink { product: p, first: at == 0, last: at + len == p.weight.cols };
        let (words, skip) = (A::words(len), at / A::PER_WORD);
        for (i, n) in part.n.clone().step_by(width).enumerate() {
            let rows = width.min(part.n.end - n);
            let to = &mut packed[i * width * BLOCK..];
            let block = WeightBlock { weight: p.weight, n, rows, at, len, pairs: A::PAIRS };
            if let Some(weight) = packed_weight {
                for g in (0..rows).step_by(panels::ROWS) {
                    let groups = at / GROUP..(at + len) / GROUP;
                    let (panel, to) = ((n + g) / panels::ROWS, to[g..].as_mut_ptr());
                    let panel = Unpack { weight, panel, groups, to, width };
                    // SAFETY: the weight has the panel, and the block has room for all columns.
                    unsafe { run_floats(part.isa, weight.layout.dtype, panel) };
                }
            } else if p.panels {
                // SAFETY: parts begin with a panel, blocks with a line.
                unsafe { packed::copy::<A>(p, n, skip, words, to, width) };
            } else {
                pack::<A::V>(block, to, width, wide);
            }
        }
        let mut m = part.m.start;
        while m < part.m.end {
            let rows = m..(m + ROWS_AT_ONCE).min(part.m.end);
            for (i, n) in part.n.clone().step_by(width).enumerate() {
                let panel = &packed[i * width * BLOCK..][..words * width];
                let rest = width.min(part.n.end - n);
                let t = PanelTiles { sink: &sink, panel, words, skip, n, rest };
                // SAFETY: the rows are the part's; the panel holds what the tiles say.
                unsafe {
                    match rest.div_ceil(A::V::N) {
                        1 => t.all::<A, M, W, 1>(rows.clone()),
                        2 if W > 2 => t.all::<A, M, W, 2>(rows.clone()),
                        3 if W > 3 => t.all::<A, M, W, 3>(rows.clone()),
                        _ => t.all::<A, M, W, W>(rows.clone()),
                    }
                }
            }
            m = rows.end;
        }
        at += len;
        if at >= p.weight.cols {
            break;
        }
    }
}

/// A packed block of a weight and where its sums go.
struct PanelTiles<'a, 'b, 'p> {
    sink: &'p Sink<'a, 'b>,
    panel: &'p [f32],
    words: usize,
    /// Words of the activations before the block.
    skip: usize,
    /// First weight row.
    n: usize,
    /// Weight rows.
    rest: usize,
}

impl PanelTiles<'_, '_, '_> {
    /// All tiles of some activation rows.
    ///
    /// # Safety
    /// The rows belong to a part; the panel holds `W` registers a word, `U` of them in use.
    #[inline(always)]
    unsafe fn all<A: Mac, const M: usize, const W: usize, const U: usize>(
        &self,
        rows: std::ops::Range<usize>,
    ) {
        let mut m = rows.start;
        // SAFETY: passed on.
        unsafe {
            while m + M <= rows.end {
                self.tile::<A, M, W, U>(m);
                m += M;
            }
            if M > 4 && m + 4 <= rows.end {
                self.tile::<A, 4, W, U>(m);
                m += 4;
            }
            if m + 2 <= rows.end {
                self.tile::<A, 2, W, U>(m);
                m += 2;
            }
            if m < rows.end {
                self.tile::<A, 1, W, U>(m);
            }
        }
    }

    /// # Safety
    /// As for [`PanelTiles::all`].
    #[inline(always)]
    unsafe fn tile<A: Mac, const M: usize, const W: usize, const U: usize>(&self, m: usize) {
        let p = self.sink.product;
        let width = W * A::V::N;
        // SAFETY: the rows are checked by `row` and `at`; the panel holds all words.
        unsafe {
            let xs: [_; M] =
                std::array::from_fn(|i| p.x.row(m + i, A::words(p.weight.cols)).add(self.skip));
            let ys: [_; M] = std::array::from_fn(|i| p.y.at(m + i, p.weight.rows));
            let mut acc = [[A::V::splat(0.0); U]; M];
            let mut panel = self.panel.as_ptr();
            for k in 0..self.words {
                let mut w = [A::V::splat(0.0); U];
                for (u, w) in w.iter_mut().enumerate() {
                    *w = A::V::load(panel.add(u * A::V::N));
                }
                for i in 0..M {
                    let x = A::V::splat(*xs[i].add(k));
                    for u in 0..U {
                        acc[i][u] = A::mac(x, w[u], acc[i][u]);
                    }
                }
                panel = panel.add(width);
            }
            for i in 0..M {
                for (u, sums) in acc[i].into_iter().enumerate() {
                    let done = u * A::V::N;
                    self.sink.put(ys[i], self.n + done, self.rest - done, sums);
                }
            }
        }
    }
}
