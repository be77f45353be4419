//! The register-blocked dot products and the loops around them.

use troika_graph::DType;

use super::weights::{Bf16Row, F16Row, F32Row, Q4Row, Q8Row, RowLoad, widen};
use super::{K_BLOCK, Part, Product};
use crate::kernels::simd::Lanes;
use crate::select;

/// `M x N` dot products over `len` columns: `M` rows of floats with `N` rows of weights.
///
/// # Safety
/// Needs the features of `V` and `len` elements behind every pointer.
#[inline(always)]
unsafe fn dots<V: Lanes, R: RowLoad, const M: usize, const N: usize>(
    xs: [*const f32; M],
    ws: [*const u8; N],
    len: usize,
) -> [[f32; N]; M] {
    let mut out = [[0.0; N]; M];
    let whole = len / V::N * V::N;
    let rest = len - whole;
    // SAFETY: every pointer has `len` elements.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; M];
        let mut i = 0;
        while i < whole {
            // The shorter side stays in registers.
            if N <= M {
                let mut w = [V::splat(0.0); N];
                for n in 0..N {
                    w[n] = R::load::<V>(ws[n], i);
                }
                for m in 0..M {
                    let x = V::load(xs[m].add(i));
                    for n in 0..N {
                        acc[m][n] = x.fma(w[n], acc[m][n]);
                    }
                }
            } else {
                let mut x = [V::splat(0.0); M];
                for m in 0..M {
                    x[m] = V::load(xs[m].add(i));
                }
                for n in 0..N {
                    let w = R::load::<V>(ws[n], i);
                    for m in 0..M {
                        acc[m][n] = x[m].fma(w, acc[m][n]);
                    }
                }
            }
            i += V::N;
        }
        if rest > 0 {
            let mut x = [V::splat(0.0); M];
            for m in 0..M {
                x[m] = F32Row::tail::<V>(xs[m].cast(), whole, rest);
            }
            for n in 0..N {
                let w = R::tail::<V>(ws[n], whole, rest);
                for m in 0..M {
                    acc[m][n] = x[m].fma(w, acc[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                out[m][n] = acc[m][n].sum();
            }
        }
    }
    out
}

/// Weight rows of the register block for four activation rows: 24 sums fit 32 registers, 12 fit
/// 16.
macro_rules! by_width {
    ($v:ty, $f:ident :: <$($g:tt),*>($($a:expr),*)) => {
        if <$v>::MANY { $f::<$($g,)* 6>($($a),*) } else { $f::<$($g,)* 3>($($a),*) }
    };
}

/// Computes a part of a product.
///
/// # Safety
/// Needs the features of `V`; the weight's bytes fit its shape; nobody else writes the part's
/// results.
#[inline(always)]
pub(super) unsafe fn part<V: Lanes>(part: Part<'_>) {
    assert!(part.n.end <= part.product.weight.rows, "weight rows of a part");
    // SAFETY: passed on.
    unsafe {
        if part.m.len() <= select::DIRECT_ROWS {
            match part.product.weight.dtype {
                DType::F32 => return few::<V, F32Row>(&part),
                DType::F16 => return few::<V, F16Row>(&part),
                DType::BF16 => return few::<V, Bf16Row>(&part),
                DType::Q8_0 => return few::<V, Q8Row>(&part),
                DType::Q4_0 => return few::<V, Q4Row>(&part),
                _ => {}
            }
        }
        by_width!(V, panel::<V>(part));
    }
}

/// Where the sums of one block of columns go.
struct Sink<'a, 'b> {
    product: &'b Product<'a>,
    /// First block: sets instead of adding.
    first: bool,
    /// Last block: adds the bias.
    last: bool,
}

impl Sink<'_, '_> {
    /// # Safety
    /// `row` is the result row and nobody else writes its element `n`.
    #[inline(always)]
    unsafe fn put(&self, row: *mut f32, n: usize, sum: f32) {
        // SAFETY: `n` is below the row's length.
        unsafe {
            let y = row.add(n);
            let mut v = if self.first { sum } else { *y + sum };
            if self.last
                && let Some(bias) = self.product.bias
            {
                v += bias[n];
            }
            *y = v;
        }
    }
}

/// Few activation rows: weights are read as they are.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn few<V: Lanes, R: RowLoad>(part: &Part<'_>) {
    // SAFETY: passed on.
    unsafe {
        if part.m.len().is_multiple_of(4) {
            by_width!(V, direct::<V, R, 4>(part));
        } else {
            direct::<V, R, 1, 8>(part);
        }
    }
}

// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn direct<V: Lanes, R: RowLoad, const M: usize, const N: usize>(part: &Part<'_>) {
    let mut n = part.n.start;
    while n < part.n.end {
        let step = if n + N <= part.n.end { N } else { 1 };
        let mut m = part.m.start;
        while m < part.m.end {
            // SAFETY: these rows are in the part, whose length is a multiple of M.
            unsafe {
                if step == N {
                    direct_block::<V, R, M, N>(&part.product, m, n);
                } else {
                    direct_block::<V, R, M, 1>(&part.product, m, n);
                }
            }
            m += M;
        }
        n += step;
    }
}

/// Weight rows from `n` on with activation rows from `m` on, over all columns.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn direct_block<V: Lanes, R: RowLoad, const M: usize, const N: usize>(
    p: &Product<'_>,
    m: usize,
    n: usize,
) {
    let w = &p.weight;
    let (k, row_bytes) = (w.cols, w.row_bytes());
    // SAFETY: the activation and result rows are checked, the weight rows the caller's promise.
    unsafe {
        let xs: [_; M] = std::array::from_fn(|i| p.x.row(m + i, k));
        let ys: [_; M] = std::array::from_fn(|i| p.y.at(m + i, w.rows));
        let row = w.bytes.as_ptr().add(n * row_bytes);
        let mut at = 0;
        loop {
            let len = K_BLOCK.min(k - at);
            let skip = at / w.dtype.block_len() * w.dtype.block_bytes();
            let sink = Sink { product: p, first: at == 0, last: at + len == k };
            let x = std::array::from_fn(|i| xs[i].add(at));
            let ws = std::array::from_fn(|i| row.add(i * row_bytes + skip));
            let sums = dots::<V, R, M, N>(x, ws, len);
            for (y, sums) in ys.into_iter().zip(sums) {
                for (i, s) in sums.into_iter().enumerate() {
                    sink.put(y, n + i, s);
                }
            }
            at += len;
            if at >= k {
                break;
            }
        }
    }
}

/// Several activation rows: weights are widened to f32 once per block of columns.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn panel<V: Lanes, const NR: usize>(part: Part<'_>) {
    let p = &part.product;
    let w = &p.weight;
    let rows = part.n.len();
    assert!(part.scratch.len() >= rows * K_BLOCK, "scratch of a product");
    let plain = w.dtype == DType::F32;
    let mut at = 0;
    loop {
        let len = K_BLOCK.min(w.cols - at);
        let sink = Sink { product: p, first: at == 0, last: at + len == w.cols };
        // SAFETY: the widened panel has `rows` rows of `len` floats, `K_BLOCK` (or a weight row)
        // apart.
        unsafe {
            let (base, stride) = if plain {
                (w.bytes.as_ptr().add((part.n.start * w.cols + at) * 4), w.cols * 4)
            } else {
                for (i, n) in part.n.clone().enumerate() {
                    widen::<V>(w, n, at, &mut part.scratch[i * K_BLOCK..][..len]);
                }
                (part.scratch.as_ptr().cast::<u8>(), K_BLOCK * 4)
            };
            let block = Block { base, stride, rows, n: part.n.start, at, len };
            let mut m = part.m.start;
            while m + 4 <= part.m.end {
                rows_with_panel::<V, 4, NR>(&sink, &block, m);
                m += 4;
            }
            while m < part.m.end {
                rows_with_panel::<V, 1, 8>(&sink, &block, m);
                m += 1;
            }
        }
        at += len;
        if at >= w.cols {
            break;
        }
    }
}

/// A block of columns of some weight rows, in f32.
struct Block {
    base: *const u8,
    /// Bytes from row to row.
    stride: usize,
    rows: usize,
    /// Weight row of the first.
    n: usize,
    /// First column.
    at: usize,
    /// Columns.
    len: usize,
}

// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn rows_with_panel<V: Lanes, const M: usize, const NR: usize>(
    sink: &Sink<'_, '_>,
    block: &Block,
    m: usize,
) {
    let p = sink.product;
    let (k, len) = (p.weight.cols, block.len);
    // SAFETY: `row` checks the activation rows, `at` the result rows, the caller the block.
    unsafe {
        let xs: [_; M] = std::array::from_fn(|i| p.x.row(m + i, k).add(block.at));
        let ys: [_; M] = std::array::from_fn(|i| p.y.at(m + i, p.weight.rows));
        let mut n = 0;
        while n + NR <= block.rows {
            let ws = std::array::from_fn(|i| block.base.add((n + i) * block.stride));
            let sums = dots::<V, F32Row, M, NR>(xs, ws, len);
            for (y, sums) in ys.into_iter().zip(sums) {
                for (i, s) in sums.into_iter().enumerate() {
                    sink.put(y, block.n + n + i, s);
                }
            }
            n += NR;
        }
        while n < block.rows {
            let sums = dots::<V, F32Row, M, 1>(xs, [block.base.add(n * block.stride)], len);
            for (y, [s]) in ys.into_iter().zip(sums) {
                sink.put(y, block.n + n, s);
            }
            n += 1;
        }
    }
}
