//! Few lines, as in decoding: keys and values are read once, as they are.
//!
//! A score is added up as everywhere: one chain per lane, then the lanes' fixed tree.

// Plain indices of small arrays become registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::KEY_BLOCK;
use super::block::{Block, Seen};
use super::part::Part;
use crate::kernels::linear::RowLoad;
use crate::kernels::simd::Lanes;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Memory of the lines of one key/value head.
pub(super) struct Lines<'a> {
    /// Queries, scaled, `k_pad` apart.
    pub q: &'a [f32],
    /// Accumulators, `v_pad` apart.
    pub acc: &'a mut [f32],
    /// Scores or weights, [`KEY_BLOCK`] apart.
    pub scores: &'a mut [f32],
    /// What the accumulators are multiplied by.
    pub shrink: &'a mut [f32],
    pub k_pad: usize,
    pub v_pad: usize,
}

/// A block's keys and values of one key/value head.
pub(super) struct Head<'a> {
    pub block: &'a Block,
    /// Of the head; the block's offsets are added.
    pub keys: *const u8,
    /// The same for values.
    pub values: *const u8,
    pub seen: &'a Seen,
    /// Bytes of an element.
    pub size: usize,
}

/// Scores of the lines with the keys of a block that any of them sees. Meanwhile the values are
/// fetched, which are needed next.
///
/// # Safety
/// Needs the features of `V`; every offset of the block holds a key of `k_dim` elements at `keys`
/// and a value at `values`.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, R: RowLoad>(
    lines: &mut Lines<'_>,
    x: &Head<'_>,
    part: &Part<'_>,
) {
    let count = lines.shrink.len();
    let range = x.seen.by_any(0..count);
    let dims = (part.x.op.k_dim, part.x.op.v_dim);
    let mut line = 0;
    while line < count {
        // SAFETY: by the caller; there are as many lines.
        unsafe {
            line += match count - line {
                4.. => score_tile::<V, R, 4, 2>(lines, line, x, range.clone(), dims),
                2.. => score_tile::<V, R, 2, 4>(lines, line, x, range.clone(), dims),
                _ => score_tile::<V, R, 1, 8>(lines, line, x, range.clone(), dims),
            };
        }
    }
}

/// `M` lines with keys in groups of `K`; `M * K` is 8. Returns `M`.
// SAFETY: the caller has the features on, and the lines.
#[inline(always)]
unsafe fn score_tile<V: Lanes, R: RowLoad, const M: usize, const K: usize>(
    lines: &mut Lines<'_>,
    line: usize,
    x: &Head<'_>,
    range: Range<usize>,
    (k_dim, v_dim): (usize, usize),
) -> usize {
    let block = x.block;
    let whole = k_dim / V::N * V::N;
    let q = lines.q[line * lines.k_pad..][..M * lines.k_pad].as_ptr();
    let s = &mut lines.scores[line * KEY_BLOCK..][..M * KEY_BLOCK];
    let mut key = range.start / K * K;
    while key < range.end {
        // SAFETY: queries are padded with zeros to whole lanes; keys have `k_dim` elements.
        unsafe {
            let ks: [*const u8; K] = std::array::from_fn(|i| x.keys.add(block.k[key + i]));
            if line == 0 {
                for i in 0..K {
                    let value = x.values.wrapping_add(block.v[key + i]);
                    for at in (0..v_dim * x.size).step_by(LINE_BYTES) {
                        V::prefetch_l2(value.wrapping_add(at));
                    }
                }
            }
            let mut acc = [V::splat(0.0); 8];
            let mut i = 0;
            while i < whole {
                let mut x = [V::splat(0.0); M];
                for (m, x) in x.iter_mut().enumerate() {
                    *x = V::load(q.add(m * lines.k_pad + i));
                }
                for k in 0..K {
                    let w = R::load::<V>(ks[k], i);
                    for m in 0..M {
                        acc[m * K + k] = x[m].fma(w, acc[m * K + k]);
                    }
                }
                i += V::N;
            }
            if whole < k_dim {
                for k in 0..K {
                    let w = R::tail::<V>(ks[k], whole, k_dim - whole);
                    for m in 0..M {
                        let x = V::load(q.add(m * lines.k_pad + whole));
                        acc[m * K + k] = x.fma(w, acc[m * K + k]);
                    }
                }
            }
            let sums = V::sums(acc);
            for m in 0..M {
                s[m * KEY_BLOCK + key..][..K].copy_from_slice(&sums[m * K..(m + 1) * K]);
            }
        }
        key += K;
    }
    M
}

/// Adds the weighted values to the accumulators: keys in order. Meanwhile the keys at `next` are
/// fetched.
///
/// # Safety
/// Needs the features of `V`; every offset of the block holds a value of `v_dim` elements at
/// `values`.
#[inline(always)]
pub(super) unsafe fn values<V: Lanes, R: RowLoad>(
    lines: &mut Lines<'_>,
    x: &Head<'_>,
    part: &Part<'_>,
    next: Option<(&Block, *const u8)>,
) {
    let heads = part.heads.len();
    for row in 0..part.rows.len() {
        let mut head = 0;
        while head < heads {
            let line = row * heads + head;
            let (range, next) = (x.seen.by(line), next.filter(|_| line == 0));
            let x = Values { head: x, next, range, v_dim: part.x.op.v_dim };
            // SAFETY: by the caller; there are as many lines.
            unsafe {
                head += match heads - head {
                    4.. => value_tile::<V, R, 4, 2>(lines, line, &x),
                    2.. => value_tile::<V, R, 2, 4>(lines, line, &x),
                    _ => value_tile::<V, R, 1, 8>(lines, line, &x),
                };
            }
        }
    }
}

struct Values<'a> {
    head: &'a Head<'a>,
    next: Option<(&'a Block, *const u8)>,
    range: Range<usize>,
    v_dim: usize,
}

// SAFETY: the caller has the features on, and the lines.
#[inline(always)]
unsafe fn value_tile<V: Lanes, R: RowLoad, const M: usize, const NV: usize>(
    lines: &mut Lines<'_>,
    line: usize,
    x: &Values<'_>,
) -> usize {
    if x.range.is_empty() {
        return M;
    }
    let whole = x.v_dim / V::N * V::N;
    let mut at = 0;
    // SAFETY: values have `v_dim` elements, accumulators as many rounded up to whole lanes.
    unsafe {
        while at + NV * V::N <= whole {
            value_chunk::<V, R, M, NV>(lines, line, x, (at, V::N));
            at += NV * V::N;
        }
        while at < x.v_dim {
            value_chunk::<V, R, M, 1>(lines, line, x, (at, (x.v_dim - at).min(V::N)));
            at += V::N;
        }
    }
    M
}

/// `NV` registers of the accumulators of `M` lines, from element `at` on; `n` elements of the last
/// one exist.
// SAFETY: the caller has the features on, and the lines.
#[inline(always)]
unsafe fn value_chunk<V: Lanes, R: RowLoad, const M: usize, const NV: usize>(
    lines: &mut Lines<'_>,
    line: usize,
    x: &Values<'_>,
    (at, n): (usize, usize),
) {
    let (v_pad, size) = (lines.v_pad, x.head.size);
    let a = lines.acc[line * v_pad..][..M * v_pad].as_mut_ptr();
    let p = lines.scores[line * KEY_BLOCK..][..M * KEY_BLOCK].as_ptr();
    let shrink = &lines.shrink[line..line + M];
    // SAFETY: as in `value_tile`.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; M];
        for m in 0..M {
            for (v, acc) in acc[m].iter_mut().enumerate() {
                *acc = V::load(a.add(m * v_pad + at + v * V::N)).mul(V::splat(shrink[m]));
            }
        }
        for key in x.range.clone() {
            if let Some((block, keys)) = x.next {
                let ahead = keys.wrapping_add(block.k[key] + at * size);
                for line in (0..NV * V::N * size).step_by(LINE_BYTES) {
                    V::prefetch_l2(ahead.wrapping_add(line));
                }
            }
            let row = x.head.values.add(x.head.block.v[key]);
            let mut w = [V::splat(0.0); NV];
            for (v, w) in w.iter_mut().enumerate() {
                let i = at + v * V::N;
                *w = if n == V::N { R::load::<V>(row, i) } else { R::tail::<V>(row, i, n) };
            }
            for m in 0..M {
                let p = V::splat(*p.add(m * KEY_BLOCK + key));
                for v in 0..NV {
                    acc[m][v] = p.fma(w[v], acc[m][v]);
                }
            }
        }
        for m in 0..M {
            for (v, acc) in acc[m].into_iter().enumerate() {
                acc.store(a.add(m * v_pad + at + v * V::N));
            }
        }
    }
}
