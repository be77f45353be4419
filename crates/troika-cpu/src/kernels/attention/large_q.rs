//! Many lines, as in prefill: a block's keys and values are widened and packed once, keys with
//! the positions in the lanes, and multiplied by register tiles as in a matrix product.
//!
//! A score must have the bits it has in `small_q`, where lane `c` of `N` holds the chain of the
//! elements `c, c + N, c + 2N, ...` and the chains are added in a tree. Here a chain is a run of
//! consecutive steps of the product, the chains come in the order in which the tree needs them
//! (`Lanes::place`), and a stack of sums adds them as the tree does.

// Plain indices of small arrays become registers.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

use super::KEY_BLOCK;
use super::block::{KeyBlock, Seen};
use crate::kernels::linear::RowReader;
use crate::kernels::simd::{Lanes, MAX_LANES, Mac};

/// Registers side by side in a tile.
pub(super) const ACROSS: usize = 2;
/// Lines of a tile of scores; where there are 32 registers two chains at a time fill them.
pub(super) const SCORE_LINES: usize = 6;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Most levels of the lanes' tree.
const LEVELS: usize = MAX_LANES.ilog2() as usize + 1;

/// Lines that meet one panel of values after another while their weights are in the nearest cache.
/// A multiple of [`tile_lines`].
const LINES_AT_ONCE: usize = 48;
/// Steps of a product before its loop begins anew.
const UNROLL: usize = 4;

/// Lines of a tile of values: with [`ACROSS`] registers each they fill 32 registers, or 16. A
/// multiple of [`SCORE_LINES`].
#[inline(always)]
pub(super) fn tile_lines<V: Lanes>() -> usize {
    if V::MANY { 12 } else { 6 }
}

/// Calls a function for the tile of the lanes.
macro_rules! by_tile {
    ($a:ty, $f:ident($($arg:expr),*)) => {
        if <$a as Mac>::V::MANY { $f::<$a, 12>($($arg),*) } else { $f::<$a, 6>($($arg),*) }
    };
}

/// Memory of a part's lines, whose number is rounded up to whole tiles.
pub(super) struct PackedLines<'a> {
    /// Queries: per tile of scores, step and line. All are words: floats, or pairs of bf16.
    pub q: &'a [f32],
    /// Accumulators, `v_pad` apart.
    pub acc: &'a mut [f32],
    /// Scores or weights, [`KEY_BLOCK`] apart.
    pub scores: &'a mut [f32],
    /// What the accumulators are multiplied by.
    pub shrink: &'a mut [f32],
    /// Keys: per panel of `ACROSS * N` positions, step and position.
    pub keys: &'a mut [f32],
    /// Values: per panel of `ACROSS * N` elements, position (or two) and element.
    pub values: &'a mut [f32],
    /// Words of a query and a key, rounded up to lanes.
    pub k_pad: usize,
    pub v_pad: usize,
    /// Lines.
    pub lines: usize,
}

/// Puts the words of a query at their places of a tile; the tile's memory starts at the line.
#[inline(always)]
pub(super) fn pack_query<V: Lanes>(words: &[f32], to: &mut [f32]) {
    let steps = words.len().div_ceil(V::N);
    for (j, words) in words.chunks(V::N).enumerate() {
        for (c, word) in words.iter().enumerate() {
            to[(V::place(c) * steps + j) * SCORE_LINES] = *word;
        }
    }
}

/// Packs the keys of a block's panels that hold any of the keys `to` is the end of.
///
/// # Safety
/// Every offset of the block holds a key of `k_dim` elements at `keys`.
#[inline(always)]
pub(super) unsafe fn pack_keys<A: Mac, S: RowReader>(
    t: &mut PackedLines<'_>,
    block: &KeyBlock,
    keys: *const u8,
    k_dim: usize,
    range: std::ops::Range<usize>,
) {
    let n = A::V::N;
    let width = ACROSS * n;
    let steps = t.k_pad / n;
    assert!(t.keys.len() >= KEY_BLOCK * t.k_pad, "scratch of an attention");
    let mut key = range.start / n * n;
    while key < range.end {
        // SAFETY: by the caller; there is room for the packed block.
        unsafe {
            let to = t.keys.as_mut_ptr().add(key / width * width * t.k_pad + key % width);
            let rows: [*const u8; MAX_LANES] =
                std::array::from_fn(|i| keys.add(block.k[key + i.min(n - 1)]));
            let whole = k_dim / (n * S::COLS);
            for j in 0..whole {
                pack_square::<A, S, false>(&rows, j, steps, k_dim, to);
            }
            if whole < steps {
                pack_square::<A, S, true>(&rows, whole, steps, k_dim, to);
            }
        }
        key += n;
    }
}

/// Packs the words of step `j` of `steps` of a register of keys.
///
/// # Safety
/// As for [`pack_keys`]; with `TAIL`, the step is the last one and not whole.
#[inline(always)]
unsafe fn pack_square<A: Mac, S: RowReader, const TAIL: bool>(
    rows: &[*const u8; MAX_LANES],
    j: usize,
    steps: usize,
    k_dim: usize,
    to: *mut f32,
) {
    let n = A::V::N;
    // SAFETY: by the caller.
    unsafe {
        let mut square = [A::V::splat(0.0); MAX_LANES];
        for i in 0..n {
            square[i] = part::<A, S, TAIL>(rows[i], j * n * S::COLS, k_dim);
        }
        let columns = A::V::transpose(square);
        for (c, column) in columns.iter().enumerate().take(n) {
            let step = A::V::place(c) * steps + j;
            column.store(to.add(step * ACROSS * n));
        }
    }
}

/// The elements of a row from `at` on: a register of words; with `TAIL`, zeros past the row's `len`
/// elements. (That is never left to a test beside the load: a tail copies bytes by a call, around
/// which the compiler keeps the registers of a tile in memory.)
///
/// # Safety
/// The row has a register of elements from `at` on, or with `TAIL` fewer.
#[inline(always)]
pub(super) unsafe fn part<A: Mac, S: RowReader, const TAIL: bool>(
    row: *const u8,
    at: usize,
    len: usize,
) -> A::V {
    // SAFETY: by the caller.
    unsafe { if TAIL { S::tail::<A::V>(row, at, len - at) } else { S::load::<A::V>(row, at) } }
}

/// Widens the values of a block.
///
/// # Safety
/// As for [`pack_keys`], with values of `v_dim` elements.
#[inline(always)]
pub(super) unsafe fn pack_values<A: Mac, S: RowReader>(
    t: &mut PackedLines<'_>,
    block: &KeyBlock,
    values: *const u8,
    v_dim: usize,
    range: std::ops::Range<usize>,
) {
    let n = A::V::N;
    let width = ACROSS * n;
    assert!(t.values.len() >= KEY_BLOCK * t.v_pad, "scratch of an attention");
    let step = n * A::PER_WORD;
    let (panels, whole) = (v_dim / width * width, v_dim / step * step);
    for word in weight_words::<A>(&range) {
        let rows = block.v[word * A::PER_WORD..].as_ptr();
        // SAFETY: by the caller; there is room for the packed block, and words lie inside.
        unsafe {
            let rows: [*const u8; 2] =
                std::array::from_fn(|i| values.add(*rows.add(if A::PAIRS { i } else { 0 })));
            let mut to = t.values.as_mut_ptr().add(word * width);
            for i in (0..panels).step_by(width) {
                for i in (i..i + width).step_by(step) {
                    pack_value::<A, S, false>(rows, i, v_dim, to.add(i % width));
                }
                to = to.add(width * A::words(KEY_BLOCK));
            }
            for i in (panels..whole).step_by(step) {
                pack_value::<A, S, false>(rows, i, v_dim, to.add(i % width));
            }
            if whole < v_dim {
                pack_value::<A, S, true>(rows, whole, v_dim, to.add(whole % width));
            }
        }
    }
}

/// Widens the elements of a word from `i` on, of one key or of two, to their place `to`.
///
/// # Safety
/// As for [`pack_values`]; with `TAIL`, there is no whole register of them.
#[inline(always)]
unsafe fn pack_value<A: Mac, S: RowReader, const TAIL: bool>(
    [first, second]: [*const u8; 2],
    i: usize,
    v_dim: usize,
    to: *mut f32,
) {
    // SAFETY: by the caller.
    unsafe {
        let first = part::<A, S, TAIL>(first, i, v_dim);
        if A::PAIRS {
            let [low, high] = A::zip(first, part::<A, S, TAIL>(second, i, v_dim));
            low.store(to);
            high.store(to.add(A::V::N));
        } else {
            first.store(to);
        }
    }
}

/// The words of weights with any of these keys.
#[inline(always)]
pub(super) fn weight_words<A: Mac>(keys: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    keys.start / A::PER_WORD..A::words(keys.end)
}

/// Rows of a cache that are packed next: fetched piece by piece while tiles are multiplied.
pub(super) struct RowPrefetch<'a> {
    base: *const u8,
    rows: &'a [usize],
    bytes: usize,
    each: usize,
}

impl<'a> RowPrefetch<'a> {
    /// Rows of `bytes` bytes at these offsets from `base`, fetched in `pieces` pieces.
    pub fn new(base: *const u8, rows: &'a [usize], bytes: usize, pieces: usize) -> RowPrefetch<'a> {
        RowPrefetch { base, rows, bytes, each: rows.len().div_ceil(pieces.max(1)) }
    }

    /// Fetches a piece.
    #[inline(always)]
    fn fetch<V: Lanes>(&mut self) {
        let (piece, rest) = self.rows.split_at(self.each.min(self.rows.len()));
        for row in piece {
            for at in (0..self.bytes).step_by(LINE_BYTES) {
                V::prefetch_l2(self.base.wrapping_add(row + at));
            }
        }
        self.rows = rest;
    }
}

/// Tiles in which `lines` lines are multiplied: for scores, and for values of `v_dim` elements.
#[inline(always)]
pub(super) fn tiles<V: Lanes>(lines: usize, v_dim: usize) -> (usize, usize) {
    let width = ACROSS * V::N;
    (KEY_BLOCK / width * lines / SCORE_LINES, v_dim.div_ceil(width) * lines / tile_lines::<V>())
}

/// Scores of all lines with the packed keys.
#[inline(always)]
pub(super) fn scores<A: Mac>(t: &mut PackedLines<'_>, seen: &Seen, mut prefetch: RowPrefetch<'_>) {
    let width = ACROSS * A::V::N;
    assert!(t.q.len() >= t.lines * t.k_pad && t.scores.len() >= t.lines * KEY_BLOCK);
    assert!(t.keys.len() >= KEY_BLOCK * t.k_pad && t.lines.is_multiple_of(SCORE_LINES));
    for key in (0..KEY_BLOCK).step_by(width) {
        for line in (0..t.lines).step_by(SCORE_LINES) {
            let range = seen.by_any(line..line + SCORE_LINES);
            prefetch.fetch::<A::V>();
            if range.start < key + width && key < range.end {
                // SAFETY: lengths were checked; lines are whole tiles.
                unsafe {
                    if A::V::MANY {
                        score_tile::<A, 2>(t, line, key);
                    } else {
                        score_tile::<A, 1>(t, line, key);
                    }
                }
            }
        }
    }
}

/// Multiplies `P` chains at a time.
///
/// # Safety
/// The lengths were checked, and the lines and keys of a tile are inside.
#[inline(always)]
unsafe fn score_tile<A: Mac, const P: usize>(t: &mut PackedLines<'_>, line: usize, key: usize) {
    const M: usize = SCORE_LINES;
    let steps = t.k_pad / A::V::N;
    let (next_q, next_k) = (steps * M, steps * ACROSS * A::V::N);
    // SAFETY: all inside of the checked lengths.
    unsafe {
        let mut q = t.q.as_ptr().add(line * t.k_pad);
        let mut k = t.keys.as_ptr().add(key * t.k_pad);
        let mut stack = [MaybeUninit::<[[A::V; ACROSS]; M]>::uninit(); LEVELS];
        let mut sum = [[A::V::splat(0.0); ACROSS]; M];
        for group in 0..A::V::N / P {
            let mut acc = [[[A::V::splat(0.0); ACROSS]; M]; P];
            let whole = steps / UNROLL * UNROLL;
            for i in (0..whole).step_by(UNROLL) {
                for i in i..i + UNROLL {
                    score_step::<A, P>(&mut acc, q, next_q, k, next_k, i);
                }
            }
            for i in whole..steps {
                score_step::<A, P>(&mut acc, q, next_q, k, next_k, i);
            }
            (q, k) = (q.add(P * next_q), k.add(P * next_k));
            sum = acc[0];
            for acc in &acc[1..] {
                sum = add_tiles(&sum, acc);
            }
            // The bits of the number of groups so far say which levels of the stack are in use.
            let mut level = 0;
            while group >> level & 1 == 1 {
                sum = add_tiles(&stack[level].assume_init(), &sum);
                level += 1;
            }
            stack[level].write(sum);
        }
        let s = t.scores.as_mut_ptr().add(line * KEY_BLOCK + key);
        for m in 0..M {
            for v in 0..ACROSS {
                sum[m][v].store(s.add(m * KEY_BLOCK + v * A::V::N));
            }
        }
    }
}

/// Step `i` of `P` chains.
///
/// # Safety
/// The chains of queries and keys have the step.
#[inline(always)]
unsafe fn score_step<A: Mac, const P: usize>(
    acc: &mut [[[A::V; ACROSS]; SCORE_LINES]; P],
    q: *const f32,
    next_q: usize,
    k: *const f32,
    next_k: usize,
    i: usize,
) {
    for (p, acc) in acc.iter_mut().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            let (q, k) = (q.add(p * next_q + i * SCORE_LINES), k.add(p * next_k));
            multiply::<A, SCORE_LINES>(acc, q, 1, k.add(i * ACROSS * A::V::N));
        }
    }
}

#[inline(always)]
fn add_tiles<V: Lanes, const M: usize>(
    a: &[[V; ACROSS]; M],
    b: &[[V; ACROSS]; M],
) -> [[V; ACROSS]; M] {
    let mut sum = *a;
    for m in 0..M {
        for v in 0..ACROSS {
            sum[m][v] = a[m][v].add(b[m][v]);
        }
    }
    sum
}

/// One step of a product: `acc[m] += x[m * stride] * y`.
///
/// # Safety
/// `x` reaches as far, and `y` is [`ACROSS`] registers.
#[inline(always)]
unsafe fn multiply<A: Mac, const M: usize>(
    acc: &mut [[A::V; ACROSS]; M],
    x: *const f32,
    stride: usize,
    y: *const f32,
) {
    // SAFETY: by the caller.
    unsafe {
        let mut w = [A::V::splat(0.0); ACROSS];
        for (v, w) in w.iter_mut().enumerate() {
            *w = A::V::load(y.add(v * A::V::N));
        }
        for (m, acc) in acc.iter_mut().enumerate() {
            let x = A::V::splat(*x.add(m * stride));
            for v in 0..ACROSS {
                acc[v] = A::mac(x, w[v], acc[v]);
            }
        }
    }
}

/// Adds the weighted values to the accumulators: keys in order, for each line those it sees.
#[inline(always)]
pub(super) fn values<A: Mac>(
    t: &mut PackedLines<'_>,
    seen: &Seen,
    v_dim: usize,
    mut prefetch: RowPrefetch<'_>,
) {
    let (m, width) = (tile_lines::<A::V>(), ACROSS * A::V::N);
    assert!(t.acc.len() >= t.lines * t.v_pad && t.scores.len() >= t.lines * KEY_BLOCK);
    assert!(t.shrink.len() >= t.lines && v_dim.next_multiple_of(width) <= t.v_pad);
    assert!(t.values.len() >= KEY_BLOCK * t.v_pad && t.lines.is_multiple_of(m));
    for first in (0..t.lines).step_by(LINES_AT_ONCE) {
        let lines = first..(first + LINES_AT_ONCE).min(t.lines);
        for at in (0..v_dim).step_by(width) {
            for line in lines.clone().step_by(m) {
                prefetch.fetch::<A::V>();
                // SAFETY: lengths were checked; lines are whole tiles.
                unsafe { by_tile!(A, value_tile(t, seen, line, at)) };
            }
        }
    }
}

/// # Safety
/// The lengths were checked, and the lines and elements of a tile are inside.
#[inline(always)]
unsafe fn value_tile<A: Mac, const M: usize>(
    t: &mut PackedLines<'_>,
    seen: &Seen,
    line: usize,
    at: usize,
) {
    let (all, same) = seen.by_all(line..line + M);
    let shrink: [f32; M] = std::array::from_fn(|m| t.shrink[line + m]);
    // SAFETY: by the caller.
    unsafe {
        if A::PAIRS {
            // A key that a line does not see has the weight zero, which adds nothing.
            let any = seen.by_any(line..line + M);
            return weigh::<A, M>(t, line, at, &shrink, weight_words::<A>(&any));
        }
        if same {
            return weigh::<A, M>(t, line, at, &shrink, all);
        }
        // A part of the keys is seen by some of the lines only: these are added line by line.
        for (m, shrink) in shrink.into_iter().enumerate() {
            let own = seen.by(line + m);
            let before = if all.is_empty() { own } else { own.start..all.start };
            weigh::<A, 1>(t, line + m, at, &[shrink], before);
        }
        if all.is_empty() {
            return;
        }
        weigh::<A, M>(t, line, at, &[1.0; M], all.clone());
        for m in 0..M {
            weigh::<A, 1>(t, line + m, at, &[1.0], all.end..seen.by(line + m).end);
        }
    }
}

/// `acc = acc * shrink + weights * values` for `M` lines and a panel of values, word by word.
///
/// # Safety
/// As for [`value_tile`]; the words belong to one block.
#[inline(always)]
unsafe fn weigh<A: Mac, const M: usize>(
    t: &mut PackedLines<'_>,
    line: usize,
    at: usize,
    shrink: &[f32; M],
    words: std::ops::Range<usize>,
) {
    let n = A::V::N;
    let width = ACROSS * n;
    // SAFETY: all inside of the checked lengths.
    unsafe {
        let a = t.acc.as_mut_ptr().add(line * t.v_pad + at);
        let p = t.scores.as_ptr().add(line * KEY_BLOCK);
        let values = t.values.as_ptr().add(at * A::words(KEY_BLOCK));
        let mut acc = [[A::V::splat(0.0); ACROSS]; M];
        for m in 0..M {
            for v in 0..ACROSS {
                let a = A::V::load(a.add(m * t.v_pad + v * n));
                acc[m][v] = a.mul(A::V::splat(shrink[m]));
            }
        }
        let whole = words.start + words.len() / UNROLL * UNROLL;
        for first in (words.start..whole).step_by(UNROLL) {
            for word in first..first + UNROLL {
                multiply::<A, M>(&mut acc, p.add(word), KEY_BLOCK, values.add(word * width));
            }
        }
        for word in whole..words.end {
            multiply::<A, M>(&mut acc, p.add(word), KEY_BLOCK, values.add(word * width));
        }
        for m in 0..M {
            for v in 0..ACROSS {
                acc[m][v].store(a.add(m * t.v_pad + v * n));
            }
        }
    }
}
