//! Few lines, as in decoding: keys and values are read once, as they are.
//!
//! The key/value heads of a position are neighbours in memory. So a few positions at a time are
//! read for all heads before the next ones: memory is read in order, as its prefetchers like it.
//!
//! A score is added up as everywhere: one chain per lane, then the lanes' fixed tree.

// Plain indices of small arrays become registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::KEY_BLOCK;
use super::block::Seen;
use super::large_q::{part, weight_words};
use crate::kernels::linear::RowReader;
use crate::kernels::simd::{Lanes, Mac};
use crate::runtime::prefetch;

/// Positions read for all heads before the next ones.
const GROUP: usize = 8;
/// Bytes from those in use to those that are prefetched into the second-level cache. One thread of a
/// Zen 4 reads a cache at depth 4096 at 8 to 10 GB/s with prefetches into the first level, at any
/// distance, and at 18 to 20 GB/s with these, at 16 to 64 KiB: more of them may be under way.
const PREFETCH_DISTANCE: usize = 24 << 10;

/// Memory of the lines: first the lines of the first key/value head, then of the second, and so
/// forth.
pub(super) struct QueryLines<'a> {
    /// Words of queries, scaled, `k_pad` apart.
    pub q: &'a [f32],
    /// Accumulators, `v_pad` apart.
    pub acc: &'a mut [f32],
    /// Scores, or words of weights, [`KEY_BLOCK`] apart.
    pub scores: &'a mut [f32],
    /// What the accumulators are multiplied by.
    pub shrink: &'a mut [f32],
    pub k_pad: usize,
    pub v_pad: usize,
}

/// Keys or values of a block.
pub(super) struct CachedRows<'a> {
    /// The first head's; the block's offsets are added.
    pub base: *const u8,
    pub offsets: &'a [usize; KEY_BLOCK],
    /// The first position of the block that is not read.
    pub end: usize,
    /// Of the positions of the block that is read next.
    pub next: &'a [usize],
    /// Elements of a head that are used.
    pub len: usize,
    /// Bytes from head to head.
    pub stride: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Rows of queries.
    pub rows: usize,
    /// Query heads per key/value head.
    pub heads: usize,
    pub seen: &'a Seen,
}

impl CachedRows<'_> {
    /// The row of a position and head.
    #[inline(always)]
    fn at(&self, key: usize, head: usize) -> *const u8 {
        self.base.wrapping_add(self.offsets[key] + head * self.stride)
    }

    /// Positions from those in use to those that are prefetched.
    #[inline(always)]
    fn prefetch_positions(&self) -> usize {
        (PREFETCH_DISTANCE / (self.kv_heads * self.stride).max(1)).clamp(GROUP, KEY_BLOCK)
    }

    /// Prefetches the first positions, before anything of a block is read.
    #[inline(always)]
    pub fn prefetch_first(&self, first: usize) {
        let first = first / GROUP * GROUP;
        self.prefetch(first..first + self.prefetch_positions());
    }

    /// Prefetches a head's share of a group of positions, some positions after those from `key` on.
    #[inline(always)]
    fn prefetch_share(&self, key: usize, head: usize) {
        let first = key + self.prefetch_positions();
        let share = |head: usize| first + head * GROUP / self.kv_heads;
        self.prefetch(share(head)..share(head + 1));
    }

    /// Prefetches positions with all their heads, in the order of memory.
    #[inline(always)]
    fn prefetch(&self, keys: Range<usize>) {
        for key in keys {
            let next = || self.next.get(key.checked_sub(KEY_BLOCK)?);
            let Some(offset) = self.offsets[..self.end].get(key).or_else(next) else { return };
            for line in (0..self.kv_heads * self.stride).step_by(64) {
                prefetch::shared(self.base.wrapping_add(offset + line));
            }
        }
    }
}

/// Scores of the lines with the keys of a block that any of them sees.
///
/// # Safety
/// Every row has its elements.
#[inline(always)]
pub(super) unsafe fn scores<A: Mac, S: RowReader>(lines: &mut QueryLines<'_>, x: &CachedRows<'_>) {
    let count = x.rows * x.heads;
    let range = x.seen.by_any(0..count);
    for key in (range.start / GROUP * GROUP..range.end).step_by(GROUP) {
        for head in 0..x.kv_heads {
            x.prefetch_share(key, head);
            let mut line = 0;
            while line < count {
                let at = head * count + line;
                // SAFETY: by the caller.
                unsafe {
                    line += match count - line {
                        4.. => score_tile::<A, S, 4, 2>(lines, x, key, head, at),
                        2.. => score_tile::<A, S, 2, 4>(lines, x, key, head, at),
                        _ => score_tile::<A, S, 1, 8>(lines, x, key, head, at),
                    };
                }
            }
        }
    }
}

/// `M` lines with a group of keys, `K` at a time; `M * K` is 8. Returns `M`.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
unsafe fn score_tile<A: Mac, S: RowReader, const M: usize, const K: usize>(
    lines: &mut QueryLines<'_>,
    x: &CachedRows<'_>,
    key: usize,
    head: usize,
    line: usize,
) -> usize {
    let q = lines.q[line * lines.k_pad..][..M * lines.k_pad].as_ptr();
    let s = &mut lines.scores[line * KEY_BLOCK..][..M * KEY_BLOCK];
    for key in (key..key + GROUP).step_by(K) {
        // SAFETY: queries are padded with zeros to whole lanes; keys have `len` elements.
        unsafe {
            let ks: [*const u8; K] = std::array::from_fn(|i| x.at(key + i, head));
            let mut acc = [A::V::splat(0.0); 8];
            let words = x.len / (A::V::N * S::COLS) * A::V::N;
            for word in (0..words).step_by(A::V::N) {
                score_words::<A, S, M, K, false>(&mut acc, q, lines.k_pad, &ks, x.len, word);
            }
            if words < A::words(x.len) {
                score_words::<A, S, M, K, true>(&mut acc, q, lines.k_pad, &ks, x.len, words);
            }
            let sums = A::V::sums(acc);
            for m in 0..M {
                s[m * KEY_BLOCK + key..][..K].copy_from_slice(&sums[m * K..(m + 1) * K]);
            }
        }
    }
    M
}

/// Multiplies a register of words of `M` queries and `K` keys; with `TAIL`, the last one, which is
/// not whole.
///
/// # Safety
/// As for [`scores`]; the words belong to a query.
#[inline(always)]
unsafe fn score_words<A: Mac, S: RowReader, const M: usize, const K: usize, const TAIL: bool>(
    acc: &mut [A::V; 8],
    q: *const f32,
    k_pad: usize,
    keys: &[*const u8; K],
    len: usize,
    word: usize,
) {
    // SAFETY: queries are padded with zeros to whole lanes; keys have `len` elements.
    unsafe {
        let mut q_part = [A::V::splat(0.0); M];
        for m in 0..M {
            q_part[m] = A::V::load(q.add(m * k_pad + word));
        }
        for k in 0..K {
            let w = part::<A, S, TAIL>(keys[k], word * S::COLS, len);
            for m in 0..M {
                acc[m * K + k] = A::mac(q_part[m], w, acc[m * K + k]);
            }
        }
    }
}

/// Adds the weighted values to the accumulators: keys in order.
///
/// # Safety
/// Every row has its elements.
#[inline(always)]
pub(super) unsafe fn values<A: Mac, S: RowReader>(lines: &mut QueryLines<'_>, x: &CachedRows<'_>) {
    let count = x.rows * x.heads;
    let all = x.seen.by_any(0..count);
    for group in (all.start / GROUP * GROUP..all.end).step_by(GROUP) {
        for kv in 0..x.kv_heads {
            x.prefetch_share(group, kv);
            for row in 0..x.rows {
                let seen = x.seen.by(row * x.heads);
                let keys = seen.start.max(group)..seen.end.min(group + GROUP);
                if keys.is_empty() {
                    continue;
                }
                let first = keys.start == seen.start;
                let mut head = 0;
                while head < x.heads {
                    let line = kv * count + row * x.heads + head;
                    let at = ValueTile { line, kv, keys: keys.clone(), first };
                    // SAFETY: by the caller.
                    unsafe {
                        head += match x.heads - head {
                            4.. => value_tile::<A, S, 4, 2>(lines, x, &at),
                            2.. => value_tile::<A, S, 2, 4>(lines, x, &at),
                            _ => value_tile::<A, S, 1, 8>(lines, x, &at),
                        };
                    }
                }
            }
        }
    }
}

/// Some lines of one row, with a few keys.
struct ValueTile {
    line: usize,
    kv: usize,
    keys: Range<usize>,
    /// Whether these are the block's first keys for the row.
    first: bool,
}

/// Returns `M`.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn value_tile<A: Mac, S: RowReader, const M: usize, const NV: usize>(
    lines: &mut QueryLines<'_>,
    x: &CachedRows<'_>,
    tile: &ValueTile,
) -> usize {
    let step = NV * A::V::N;
    let whole = x.len / step * step;
    // SAFETY: values have `len` elements, accumulators as many rounded up to whole registers of
    // words.
    unsafe {
        for at in (0..whole).step_by(step) {
            value_chunk::<A, S, M, NV, false>(lines, x, tile, at);
        }
        if A::PAIRS {
            rest::<A, S, M, 2>(lines, x, tile, whole);
        } else {
            rest::<A, S, M, 1>(lines, x, tile, whole);
        }
    }
    M
}

/// The elements from `from` on, `NV` registers at a time, and those that fill none.
///
/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn rest<A: Mac, S: RowReader, const M: usize, const NV: usize>(
    lines: &mut QueryLines<'_>,
    x: &CachedRows<'_>,
    tile: &ValueTile,
    from: usize,
) {
    let step = NV * A::V::N;
    let whole = x.len / step * step;
    // SAFETY: as in `value_tile`.
    unsafe {
        for at in (from..whole).step_by(step) {
            value_chunk::<A, S, M, NV, false>(lines, x, tile, at);
        }
        if whole < x.len {
            value_chunk::<A, S, M, NV, true>(lines, x, tile, whole);
        }
    }
}

/// `NV` registers of the accumulators of `M` lines, from element `at` on. A register holds as many
/// elements as lanes; with `TAIL` there are fewer, and zeros past the last one.
///
/// # Safety
/// As for [`values`]; `at` is one of a row's elements.
#[inline(always)]
unsafe fn value_chunk<A: Mac, S: RowReader, const M: usize, const NV: usize, const TAIL: bool>(
    lines: &mut QueryLines<'_>,
    x: &CachedRows<'_>,
    tile: &ValueTile,
    at: usize,
) {
    let (line, v_pad, n) = (tile.line, lines.v_pad, A::V::N);
    let a = lines.acc[line * v_pad..][..M * v_pad].as_mut_ptr();
    let p = lines.scores[line * KEY_BLOCK..][..M * KEY_BLOCK].as_ptr();
    let shrink = &lines.shrink[line..line + M];
    // SAFETY: as in `value_tile`.
    unsafe {
        let mut acc = [[A::V::splat(0.0); NV]; M];
        for m in 0..M {
            for v in 0..NV {
                acc[m][v] = A::V::load(a.add(m * v_pad + at + v * n));
                if tile.first {
                    acc[m][v] = acc[m][v].mul(A::V::splat(shrink[m]));
                }
            }
        }
        for word in weight_words::<A>(&tile.keys) {
            let row = |i| x.at(word * A::PER_WORD + i, tile.kv);
            let mut w = [A::V::splat(0.0); NV];
            for v in (0..NV).step_by(A::PER_WORD) {
                let from = at + v * n;
                w[v] = part::<A, S, TAIL>(row(0), from, x.len);
                if A::PAIRS {
                    let both = A::zip(w[v], part::<A, S, TAIL>(row(1), from, x.len));
                    w[v..v + 2].copy_from_slice(&both);
                }
            }
            for m in 0..M {
                let p = A::V::splat(*p.add(m * KEY_BLOCK + word));
                for v in 0..NV {
                    acc[m][v] = A::mac(p, w[v], acc[m][v]);
                }
            }
        }
        for m in 0..M {
            for v in 0..NV {
                acc[m][v].store(a.add(m * v_pad + at + v * n));
            }
        }
    }
}
