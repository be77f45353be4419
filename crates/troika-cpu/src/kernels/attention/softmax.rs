//! The online softmax of a line; a line is one query: a row and a head.

use std::ops::Range;

use troika_graph::Attention;

use super::KEY_BLOCK;
use super::block::Seen;
use crate::kernels::simd::{Lanes, MAX_LANES, Mac, tanh};

/// What the weights of a line's keys so far are relative to, and their sum.
#[derive(Clone, Copy)]
pub(super) struct Total {
    /// The largest score.
    pub max: f32,
    /// Sum of `e^(score - max)`.
    pub sum: f32,
}

impl Total {
    /// Of no keys. The maximum is finite, so that no infinities are subtracted from each other.
    pub const NONE: Total = Total { max: f32::MIN, sum: 0.0 };

    /// What an accumulator is multiplied by at the end.
    pub fn finish(self, sink: Option<f32>) -> f32 {
        match sink {
            None => 1.0 / self.sum,
            Some(sink) => {
                let top = self.max.max(sink);
                let shrink = (self.max - top).exp();
                shrink / (self.sum * shrink + (sink - top).exp())
            }
        }
    }
}

/// The lines of a key/value head, for which a block's scores become weights.
pub(super) struct Scores<'a> {
    /// [`KEY_BLOCK`] per line.
    pub scores: &'a mut [f32],
    /// Gets what the accumulator of each line is to be multiplied by.
    pub shrink: &'a mut [f32],
    /// Of the blocks before; renewed.
    pub totals: &'a mut [Total],
}

impl Scores<'_> {
    /// Turns the scores seen by each line into weights relative to its new maximum; pairs of
    /// weights become words, with zeros for what the line does not see.
    #[inline(always)]
    pub fn weigh<A: Mac>(&mut self, op: &Attention, seen: &Seen) {
        for start in (0..self.totals.len()).step_by(TOGETHER) {
            let count = TOGETHER.min(self.totals.len() - start);
            let old: [f32; TOGETHER] =
                std::array::from_fn(|i| self.totals[start + i.min(count - 1)].max);
            let mut tops = [A::V::splat(f32::MIN); TOGETHER];
            for (i, top) in tops.iter_mut().enumerate().take(count) {
                *top = A::V::splat(old[i]);
                let by = seen.by(start + i);
                if !by.is_empty() {
                    *top = highest(op, self.line(start + i), by, *top);
                }
            }
            let new = A::V::maxima(tops);
            let mut sums = [A::V::splat(0.0); TOGETHER];
            for (i, sum) in sums.iter_mut().enumerate().take(count) {
                let by = seen.by(start + i);
                if !by.is_empty() {
                    *sum = weights::<A::V>(self.line(start + i), by.clone(), new[i]);
                }
                if A::PAIRS {
                    pair_up::<A>(self.line(start + i), by);
                }
            }
            let sums = A::V::sums(sums);
            let shrink = falling_exp::<A::V>(&old, &new);
            for i in 0..count {
                let total = &mut self.totals[start + i];
                *total = Total { max: new[i], sum: total.sum * shrink[i] + sums[i] };
                self.shrink[start + i] = shrink[i];
            }
        }
    }

    /// The scores of a line.
    #[inline(always)]
    fn line(&mut self, line: usize) -> &mut [f32; KEY_BLOCK] {
        &mut self.scores.as_chunks_mut().0[line]
    }
}

/// Lines whose maxima and sums are found together: as many as [`Lanes::sums`] takes.
const TOGETHER: usize = 8;

/// `e^(old - new)`; nothing in `new` is lower.
#[inline(always)]
fn falling_exp<V: Lanes>(old: &[f32; TOGETHER], new: &[f32; TOGETHER]) -> [f32; TOGETHER] {
    let (mut x, mut y) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
    x[..TOGETHER].copy_from_slice(old);
    y[..TOGETHER].copy_from_slice(new);
    for i in (0..TOGETHER).step_by(V::N) {
        V::from_slice(&x[i..]).sub(V::from_slice(&y[i..])).exp().write_to(&mut x[i..]);
    }
    std::array::from_fn(|i| x[i])
}

/// The lanes that hold some of the scores `seen` of a block.
#[inline(always)]
fn lanes_of<V: Lanes>(seen: &Range<usize>) -> Range<usize> {
    assert!(seen.end <= KEY_BLOCK, "scores of a block");
    seen.start / V::N * V::N..seen.end.next_multiple_of(V::N)
}

/// The highest of `top` and the scores `seen` of a block, lane by lane. What is not seen of their
/// lanes becomes minus infinity.
#[inline(always)]
fn highest<V: Lanes>(
    op: &Attention,
    block: &mut [f32; KEY_BLOCK],
    seen: Range<usize>,
    mut top: V,
) -> V {
    let all = lanes_of::<V>(&seen);
    let p = block.as_mut_ptr();
    // SAFETY: lanes divide the block.
    unsafe {
        if let Some(cap) = op.softcap {
            for i in all.clone().step_by(V::N) {
                let s = V::load(p.add(i)).div(V::splat(cap));
                V::splat(cap).mul(tanh(s)).store(p.add(i));
            }
        }
        for i in (all.start..seen.start).chain(seen.end..all.end) {
            *p.add(i) = f32::NEG_INFINITY;
        }
        if all.len() == KEY_BLOCK {
            // Four chains that do not wait for each other.
            let mut tops = [top; 4];
            for i in (0..KEY_BLOCK).step_by(4 * V::N) {
                for (j, top) in tops.iter_mut().enumerate() {
                    *top = top.max(V::load(p.add(i + j * V::N)));
                }
            }
            return tops[0].max(tops[1]).max(tops[2].max(tops[3]));
        }
        for i in all.step_by(V::N) {
            top = top.max(V::load(p.add(i)));
        }
        top
    }
}

/// Turns the scores `seen` of a block into weights relative to `top`, and gives their sums by
/// lanes. Lanes lie at fixed positions, and those that are not seen add nothing, so the sum follows
/// from the scores seen alone.
#[inline(always)]
fn weights<V: Lanes>(block: &mut [f32; KEY_BLOCK], seen: Range<usize>, top: f32) -> V {
    let all = lanes_of::<V>(&seen);
    let p = block.as_mut_ptr();
    // SAFETY: lanes divide the block.
    unsafe {
        let top = V::splat(top);
        let mut sum = V::splat(0.0);
        if all.len() == KEY_BLOCK {
            for i in (0..KEY_BLOCK).step_by(2 * V::N) {
                // Two at a time: what one waits for is done for the other.
                let (p, q) = (p.add(i), p.add(i + V::N));
                let (x, y) = (V::load(p).sub(top), V::load(q).sub(top));
                let (x, y) = (x.exp_falling(), y.exp_falling());
                x.store(p);
                y.store(q);
                sum = sum.add(x).add(y);
            }
            return sum;
        }
        for i in all.step_by(V::N) {
            let e = V::load(p.add(i)).sub(top).exp_falling();
            e.store(p.add(i));
            sum = sum.add(e);
        }
        sum
    }
}

/// Rounds the weights of a block to pairs of bf16, in the first half of their memory.
#[inline(always)]
fn pair_up<A: Mac>(block: &mut [f32; KEY_BLOCK], seen: Range<usize>) {
    let n = A::V::N;
    // Lanes with nothing seen were not computed; of the others, those not seen are zeros.
    let (first, end) = (seen.start / n * n, seen.end.next_multiple_of(n));
    for i in (0..KEY_BLOCK).step_by(2 * n) {
        let [low, high] = [i, i + n].map(|i| {
            if !seen.is_empty() && (first..end).contains(&i) {
                A::V::from_slice(&block[i..])
            } else {
                A::V::splat(0.0)
            }
        });
        // What is written was read before.
        A::pairs(low, high).write_to(&mut block[i / 2..]);
    }
}

/// Adds the result `from` of a split, whose total is `part`, to the result of the splits before it.
/// Both are whole registers.
#[inline(always)]
pub(super) fn merge<V: Lanes>(acc: &mut [f32], total: &mut Total, from: &[f32], part: Total) {
    let top = total.max.max(part.max);
    let (old, new) = ((total.max - top).exp(), (part.max - top).exp());
    *total = Total { max: top, sum: total.sum * old + part.sum * new };
    for (acc, from) in acc.chunks_exact_mut(V::N).zip(from.chunks_exact(V::N)) {
        let v = V::from_slice(from).mul(V::splat(new));
        V::from_slice(acc).fma(V::splat(old), v).write_to(acc);
    }
}
