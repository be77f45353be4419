//! The online softmax of a line; a line is one query: a row and a head.

use std::ops::Range;

use troika_graph::Attention;

use super::KEY_BLOCK;
use super::block::Seen;
use crate::kernels::linear::Mac;
use crate::kernels::simd::{Lanes, MAX_LANES, tanh};

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
    ///
    /// # Safety
    /// Needs the features of `A`.
    #[inline(always)]
    pub unsafe fn weigh<A: Mac>(&mut self, op: &Attention, seen: &Seen) {
        let (mut old, mut new) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        for start in (0..self.totals.len()).step_by(A::V::N) {
            let count = A::V::N.min(self.totals.len() - start);
            let mut sums = [0.0; MAX_LANES];
            for i in 0..count {
                let (line, by) = (start + i, seen.by(start + i));
                let max = self.totals[line].max;
                (old[i], new[i]) = (max, max);
                let p = &mut self.scores[line * KEY_BLOCK..][..KEY_BLOCK];
                if !by.is_empty() {
                    // SAFETY: a block's scores.
                    (new[i], sums[i]) =
                        unsafe { weights::<A::V>(op, p.as_mut_ptr(), by.clone(), max) };
                }
                if A::PAIRS {
                    // SAFETY: features by the caller.
                    unsafe { pair_up::<A>(p, by) };
                }
            }
            // SAFETY: arrays of the most lanes.
            unsafe {
                let shrink = A::V::load(old.as_ptr()).sub(A::V::load(new.as_ptr())).exp();
                shrink.store(old.as_mut_ptr());
            }
            for i in 0..count {
                let total = &mut self.totals[start + i];
                *total = Total { max: new[i], sum: total.sum * old[i] + sums[i] };
                self.shrink[start + i] = old[i];
            }
        }
    }
}

/// Turns the scores `seen` of a block into weights; returns their maximum, which is at least
/// `max`, and their sum. Lanes lie at fixed positions, and those that are not seen add nothing, so
/// the sum follows from the scores seen alone.
// SAFETY: the caller has the features on, and KEY_BLOCK floats.
#[inline(always)]
unsafe fn weights<V: Lanes>(
    op: &Attention,
    p: *mut f32,
    seen: Range<usize>,
    max: f32,
) -> (f32, f32) {
    let (first, end) = (seen.start / V::N * V::N, seen.end.next_multiple_of(V::N));
    // SAFETY: lanes divide the block.
    unsafe {
        if let Some(cap) = op.softcap {
            for i in (first..end).step_by(V::N) {
                let s = V::load(p.add(i)).div(V::splat(cap));
                V::splat(cap).mul(tanh(s)).store(p.add(i));
            }
        }
        for i in (first..seen.start).chain(seen.end..end) {
            *p.add(i) = f32::NEG_INFINITY;
        }
        let mut top = V::splat(max);
        for i in (first..end).step_by(V::N) {
            top = top.max(V::load(p.add(i)));
        }
        let top = top.largest();
        let shift = V::splat(top);
        let mut sum = V::splat(0.0);
        for i in (first..end).step_by(V::N) {
            let e = V::load(p.add(i)).sub(shift).exp();
            e.store(p.add(i));
            sum = sum.add(e);
        }
        (top, sum.sum())
    }
}

/// Rounds the weights of a block to pairs of bf16, in the first half of their memory.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn pair_up<A: Mac>(p: &mut [f32], seen: Range<usize>) {
    let n = A::V::N;
    let p = &mut p[..KEY_BLOCK];
    // Lanes with nothing seen were not computed; of the others, those not seen are zeros.
    let (first, end) = (seen.start / n * n, seen.end.next_multiple_of(n));
    for i in (0..KEY_BLOCK).step_by(2 * n) {
        // SAFETY: inside of the block; what is written was read before.
        unsafe {
            let [low, high] = [i, i + n].map(|i| {
                if !seen.is_empty() && (first..end).contains(&i) {
                    A::V::load(p.as_ptr().add(i))
                } else {
                    A::V::splat(0.0)
                }
            });
            A::pairs(low, high).store(p.as_mut_ptr().add(i / 2));
        }
    }
}

/// Adds the result `from` of a split, whose total is `part`, to that of the splits before it.
///
/// # Safety
/// Needs the features of `V`; both slices have the same length, a multiple of its lanes.
#[inline(always)]
pub(super) unsafe fn merge<V: Lanes>(
    acc: &mut [f32],
    total: &mut Total,
    from: &[f32],
    part: Total,
) {
    let top = total.max.max(part.max);
    let (old, new) = ((total.max - top).exp(), (part.max - top).exp());
    *total = Total { max: top, sum: total.sum * old + part.sum * new };
    // SAFETY: by the caller.
    unsafe {
        let (a, f) = (acc.as_mut_ptr(), from.as_ptr());
        for i in (0..acc.len().min(from.len())).step_by(V::N) {
            let v = V::load(f.add(i)).mul(V::splat(new));
            V::load(a.add(i)).fma(V::splat(old), v).store(a.add(i));
        }
    }
}
