//! The online softmax of a part's lines; a line is one query: a row and a head.

use std::ops::Range;

use super::{KEY_BLOCK, Operands, Part};
use crate::kernels::linear::{RowLoad, dots};
use crate::kernels::simd::{Lanes, MAX_LANES, load_part, store_part};

/// Key and value memory of one element type.
pub(super) struct Caches {
    k: *const u8,
    v: *const u8,
    /// Bytes of an element.
    size: usize,
}

impl Caches {
    pub fn new<T>(k: &[T], v: &[T]) -> Caches {
        Caches { k: k.as_ptr().cast(), v: v.as_ptr().cast(), size: size_of::<T>() }
    }
}

/// The working memory of a part: per line an accumulator, scores of a block, maximum and sum.
struct Lines<'a> {
    acc: &'a mut [f32],
    acc_len: usize,
    scores: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl<'a> Lines<'a> {
    fn new(scratch: &'a mut [f32], lines: usize, v_dim: usize) -> Lines<'a> {
        let acc_len = v_dim.next_multiple_of(MAX_LANES);
        let (acc, rest) = scratch.split_at_mut(lines * acc_len);
        let (scores, rest) = rest.split_at_mut(lines * KEY_BLOCK);
        let (max, rest) = rest.split_at_mut(lines);
        let sum = &mut rest[..lines];
        acc.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        Lines { acc, acc_len, scores, max, sum }
    }
}

/// Pointers to the keys and values of a block's positions.
struct Block {
    /// Positions.
    at: Range<usize>,
    keys: [*const u8; KEY_BLOCK],
    values: [*const u8; KEY_BLOCK],
}

/// Runs a part.
///
/// # Safety
/// Needs the features of `V`; the operands were checked; nobody else writes the part's results.
#[inline(always)]
pub(super) unsafe fn run<V: Lanes, R: RowLoad>(part: Part<'_>, caches: Caches) {
    let Part { x, seq, rows, kv_head, heads, out, scratch } = part;
    let op = x.op;
    let count = rows.len() * heads.len();
    let mut lines = Lines::new(scratch, count, op.v_dim);
    let first = x.visible(seq.pos + rows.start).start;
    let last = seq.pos + rows.end;
    for index in first / KEY_BLOCK..last.div_ceil(KEY_BLOCK) {
        let at = (index * KEY_BLOCK).max(first)..((index + 1) * KEY_BLOCK).min(last);
        let block = locate(&x, &caches, &seq.tables[op.group], kv_head, at);
        let query = |line: usize| {
            let row = seq.rows.start + rows.start + line / heads.len();
            let head = heads.start + line % heads.len();
            x.q[(row * op.heads + head) * op.k_dim..][..op.k_dim].as_ptr()
        };
        // SAFETY: queries and keys have `k_dim` elements, values `v_dim`.
        unsafe {
            scores::<V, R>(&mut lines, &block, count, op.k_dim, query);
            for line in 0..count {
                let seen = x.visible(seq.pos + rows.start + line / heads.len());
                let seen = seen.start.max(block.at.start)..seen.end.min(block.at.end);
                if !seen.is_empty() {
                    let seen = seen.start - block.at.start..seen.end - block.at.start;
                    let p = &mut lines.scores[line * KEY_BLOCK..][seen.clone()];
                    let shrink = softmax::<V>(&x, p, &mut lines.max[line], &mut lines.sum[line]);
                    let acc = &mut lines.acc[line * lines.acc_len..][..lines.acc_len];
                    add_values::<V, R>(acc, shrink, p, &block.values[seen], op.v_dim);
                }
            }
        }
    }
    for line in 0..count {
        let row = seq.rows.start + rows.start + line / heads.len();
        let head = heads.start + line % heads.len();
        let start = (row * op.heads + head) * op.v_dim;
        // SAFETY: each row and head belongs to one part.
        let out = unsafe { out.slice(start..start + op.v_dim) };
        let sink = x.sinks.map(|s| s[head]);
        let scale = finish(lines.max[line], lines.sum[line], sink);
        let acc = &lines.acc[line * lines.acc_len..];
        out.iter_mut().zip(acc).for_each(|(o, a)| *o = a * scale);
    }
}

/// What the accumulator is multiplied by at the end.
fn finish(max: f32, sum: f32, sink: Option<f32>) -> f32 {
    match sink {
        None => 1.0 / sum,
        Some(sink) => {
            let top = max.max(sink);
            let shrink = (max - top).exp();
            shrink / (sum * shrink + (sink - top).exp())
        }
    }
}

#[inline(always)]
fn locate(
    x: &Operands<'_>,
    caches: &Caches,
    table: &troika_device::PageTable,
    kv_head: usize,
    at: Range<usize>,
) -> Block {
    let (k_width, v_width) = (x.op.kv_heads * x.op.k_dim, x.value_width());
    let v_head = kv_head * v_width / x.op.kv_heads;
    let mut block = Block { at, keys: [caches.k; KEY_BLOCK], values: [caches.v; KEY_BLOCK] };
    for (i, pos) in block.at.clone().enumerate() {
        // Checked before: every visible position has a row inside of the caches.
        let row = table.row(pos).unwrap_or(0);
        let k = (row * k_width + kv_head * x.op.k_dim) * caches.size;
        let v = (row * v_width + v_head) * caches.size;
        // SAFETY: as above.
        unsafe { (block.keys[i], block.values[i]) = (caches.k.add(k), caches.v.add(v)) };
    }
    block
}

/// Scores of all lines with all keys of a block.
// SAFETY: the caller has the features on, and the pointers reach as far as the operands say.
#[inline(always)]
unsafe fn scores<V: Lanes, R: RowLoad>(
    lines: &mut Lines<'_>,
    block: &Block,
    count: usize,
    k_dim: usize,
    query: impl Fn(usize) -> *const f32,
) {
    let keys = block.at.len();
    let mut line = 0;
    while line < count {
        let four = line + 4 <= count;
        let s = &mut lines.scores[line * KEY_BLOCK..];
        let mut key = 0;
        while key < keys {
            let whole = key + 4 <= keys;
            let ks = &block.keys[key..];
            // SAFETY: by the caller.
            unsafe {
                match (four, whole) {
                    (true, true) => {
                        let q = std::array::from_fn(|i| query(line + i));
                        let k = [ks[0], ks[1], ks[2], ks[3]];
                        put::<4, 4>(s, key, dots::<V, R, 4, 4>(q, k, k_dim));
                    }
                    (true, false) => {
                        let q = std::array::from_fn(|i| query(line + i));
                        put::<4, 1>(s, key, dots::<V, R, 4, 1>(q, [ks[0]], k_dim));
                    }
                    (false, true) => {
                        let k = [ks[0], ks[1], ks[2], ks[3]];
                        put::<1, 4>(s, key, dots::<V, R, 1, 4>([query(line)], k, k_dim));
                    }
                    (false, false) => {
                        put::<1, 1>(s, key, dots::<V, R, 1, 1>([query(line)], [ks[0]], k_dim));
                    }
                }
            }
            key += if whole { 4 } else { 1 };
        }
        line += if four { 4 } else { 1 };
    }
}

#[inline(always)]
fn put<const M: usize, const N: usize>(s: &mut [f32], key: usize, sums: [[f32; N]; M]) {
    for (m, sums) in sums.into_iter().enumerate() {
        s[m * KEY_BLOCK + key..][..N].copy_from_slice(&sums);
    }
}

/// Turns the scores `p` of a line into weights relative to the new maximum; returns what the
/// accumulator so far is to be multiplied by.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn softmax<V: Lanes>(x: &Operands<'_>, p: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let mut top = *max;
    for s in p.iter_mut() {
        *s *= x.op.scale;
        if let Some(cap) = x.op.softcap {
            *s = cap * (*s / cap).tanh();
        }
        top = top.max(*s);
    }
    // SAFETY: loads and stores stay inside `p`.
    unsafe {
        let shift = V::splat(top);
        let mut total = V::splat(0.0);
        let mut i = 0;
        while i < p.len() {
            let n = (p.len() - i).min(V::N);
            let at = p.as_mut_ptr().add(i);
            if n == V::N {
                let e = V::load(at).sub(shift).exp();
                e.store(at);
                total = total.add(e);
            } else {
                store_part(load_part::<V>(at, n).sub(shift).exp(), at, n);
                total = total.add(load_part(at, n));
            }
            i += V::N;
        }
        let shrink = if top == *max { 1.0 } else { (*max - top).exp() };
        *max = top;
        *sum = *sum * shrink + total.sum();
        shrink
    }
}

/// `acc = acc * shrink + sum of p * value`, keys in order.
// SAFETY: the caller has the features on, and the pointers reach as far as the operands say.
#[inline(always)]
unsafe fn add_values<V: Lanes, R: RowLoad>(
    acc: &mut [f32],
    shrink: f32,
    p: &[f32],
    values: &[*const u8],
    v_dim: usize,
) {
    let whole = v_dim / V::N * V::N;
    let mut i = 0;
    // SAFETY: values have `v_dim` elements, `acc` as many rounded up to whole lanes.
    unsafe {
        let a = acc.as_mut_ptr();
        let shrink = V::splat(shrink);
        while i + 4 * V::N <= whole {
            let mut sums = [V::splat(0.0); 4];
            for (j, s) in sums.iter_mut().enumerate() {
                *s = V::load(a.add(i + j * V::N)).mul(shrink);
            }
            for (p, v) in p.iter().zip(values) {
                let p = V::splat(*p);
                for (j, s) in sums.iter_mut().enumerate() {
                    *s = p.fma(R::load::<V>(*v, i + j * V::N), *s);
                }
            }
            for (j, s) in sums.into_iter().enumerate() {
                s.store(a.add(i + j * V::N));
            }
            i += 4 * V::N;
        }
        while i < v_dim {
            let mut s = V::load(a.add(i)).mul(shrink);
            for (p, v) in p.iter().zip(values) {
                let v = if i < whole {
                    R::load::<V>(*v, i)
                } else {
                    R::tail::<V>(*v, i, v_dim - whole)
                };
                s = V::splat(*p).fma(v, s);
            }
            s.store(a.add(i));
            i += V::N;
        }
    }
}
