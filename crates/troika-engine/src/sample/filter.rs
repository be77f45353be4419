//! Truncation of the distribution, and the draw. Ties go to the lower id everywhere.
//!
//! Nothing is sorted that need not be. A vocabulary is looked at once for each sum that is asked
//! for: probabilities are added up in narrow buckets, which are in order, and only the candidates
//! of the bucket in which a sum is reached are put in order.

use std::cmp::Ordering;

use super::candidate::Candidate;

/// Logits of a block.
const BLOCK: usize = 64;
/// Logits that are compared side by side.
const LANES: usize = 16;
/// Buckets for each factor of `e` in probability.
const FINENESS: f64 = 64.0;
/// The last bucket: what is here is less likely than the best by a factor of `e^45`, and counts as
/// impossible.
const LAST: usize = 45 * FINENESS as usize;
/// More than all buckets.
const BUCKETS: usize = 4096;
/// `2^52`: added to a small number, it leaves the nearest integer in the low bits.
const TO_WHOLE: f64 = 4_503_599_627_370_496.0;

/// The candidates that are left: none worse than `last`, and none that lies further below `best`
/// than `drop`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub best: f32,
    drop: f32,
    last: Candidate,
}

impl Kept {
    fn holds(&self, c: Candidate) -> bool {
        let Candidate { id, logit } = self.last;
        // NaN and minus infinity are not as large as anything.
        ((c.logit > logit) | ((c.logit == logit) & (c.id <= id)))
            & (self.best - c.logit <= self.drop)
    }

    /// Leaves candidates at least `p` times as likely as the best.
    pub fn keep_min_p(&mut self, p: f32) {
        let drop = -f64::from(p).ln();
        let rounded = drop as f32;
        let above = f64::from(rounded) > drop;
        self.drop = self.drop.min(if above { rounded.next_down() } else { rounded });
    }
}

/// A range of probabilities.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The probability in its middle, as a fraction of the best candidate's.
    middle: f64,
    /// The sum of its candidates.
    mass: f64,
}

/// The logits after a position, and memory for looking at them.
#[derive(Debug)]
pub(super) struct Distribution {
    /// The largest logit of each block, and the same in another order.
    best: Vec<f32>,
    ordered: Vec<f32>,
    buckets: Box<[Bucket; BUCKETS]>,
    /// Candidates that are put in order.
    picked: Vec<Candidate>,
}

impl Default for Distribution {
    fn default() -> Distribution {
        let middle = |i: usize| if i < LAST { (i as f64 / -FINENESS).exp() } else { 0.0 };
        let buckets = Box::new(std::array::from_fn(|i| Bucket { middle: middle(i), mass: 0.0 }));
        Distribution { best: Vec::new(), ordered: Vec::new(), buckets, picked: Vec::new() }
    }
}

impl Distribution {
    /// Takes other logits: all of them are left. `None` if none is a number above minus infinity.
    pub fn begin(&mut self, logits: &[f32]) -> Option<Kept> {
        self.best.clear();
        self.best.extend(logits.chunks(BLOCK).map(largest));
        let best = largest(&self.best).min(f32::MAX);
        let last = Candidate { id: u32::MAX, logit: f32::MIN };
        (best > f32::NEG_INFINITY).then_some(Kept { best, drop: f32::INFINITY, last })
    }

    /// The `k` largest of those that are left, in any order. Take the best logit of each block, and
    /// of these the `k`-th largest: `k` logits are at least that large, so a smaller one is not
    /// among the `k` most likely.
    pub fn keep_top_k(&mut self, logits: &[f32], kept: &mut Kept, k: usize) -> &mut [Candidate] {
        if (1..self.best.len()).contains(&k) {
            self.ordered.clone_from(&self.best);
            let least = *self.ordered.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
            kept.last.logit = kept.last.logit.max(least.min(f32::MAX));
        }
        self.picked.clear();
        self.picked.extend(candidates(logits, &self.best, kept));
        if (1..self.picked.len()).contains(&k) {
            kept.last = *self.picked.select_nth_unstable_by(k - 1, by_logit).1;
            self.picked.truncate(k);
        }
        &mut self.picked
    }

    /// Leaves the shortest prefix whose probability reaches `p`; at least one.
    pub fn keep_top_p(&mut self, logits: &[f32], kept: &mut Kept, p: f32) {
        if p < 1.0 {
            kept.last = self.reach(logits, kept, 1.0, |total| f64::from(p) * total);
        }
    }

    /// The candidate at `draw` (in [0, 1)) of the cumulative distribution.
    pub fn draw(&mut self, logits: &[f32], kept: &Kept, temperature: f32, draw: f64) -> Candidate {
        self.reach(logits, kept, temperature, |total| (draw * total).next_up())
    }

    /// The sum of probabilities, each a fraction of the best one's.
    pub fn total(&mut self, logits: &[f32], kept: &Kept, temperature: f32) -> f64 {
        let scale = FINENESS / f64::from(temperature);
        self.buckets.iter_mut().for_each(|b| b.mass = 0.0);
        // Loops of one length without branches fit lanes, apart from the last.
        let (mut below, mut numbers, mut rests) = ([0.0f32; BLOCK], [0u64; BLOCK], [0.0; BLOCK]);
        for (first, logits) in blocks(logits, &self.best, kept) {
            let mut block = [f32::NEG_INFINITY; BLOCK];
            block[..logits.len()].copy_from_slice(logits);
            for i in 0..BLOCK {
                let c = Candidate::new(first + i as u32, block[i]);
                below[i] = if kept.holds(c) { kept.best - c.logit } else { f32::INFINITY };
            }
            for i in 0..BLOCK {
                (numbers[i], rests[i]) = place(f64::from(below[i]) * scale);
            }
            for (number, rest) in numbers.iter().zip(&rests) {
                let bucket = &mut self.buckets[*number as usize % BUCKETS];
                bucket.mass += bucket.middle * rest;
            }
        }
        self.buckets.iter().map(|b| b.mass).sum()
    }

    /// The first candidate, in the order of probability, with which the sum reaches what `target`
    /// makes of the sum of all; the last possible one if rounding has it that none does.
    fn reach(
        &mut self,
        logits: &[f32],
        kept: &Kept,
        temperature: f32,
        target: impl Fn(f64) -> f64,
    ) -> Candidate {
        let target = target(self.total(logits, kept, temperature));
        let (mut before, mut sum, mut found) = (0.0, 0.0, 0);
        for (i, bucket) in self.buckets.iter().enumerate().filter(|(_, b)| b.mass > 0.0) {
            (found, before) = (i, sum);
            sum += bucket.mass;
            if sum >= target {
                break;
            }
        }
        let scale = FINENESS / f64::from(temperature);
        let place = |c: &Candidate| place(f64::from(kept.best - c.logit) * scale);
        let weight = |c: &Candidate| self.buckets[found].middle * place(c).1;
        // A little more than the bucket, so that blocks without any of it are passed over.
        let drop = ((found + 1) as f64 / scale * 1.000_001) as f32;
        let near = Kept { drop: kept.drop.min(drop), ..*kept };
        self.picked.clear();
        let near = candidates(logits, &self.best, &near);
        self.picked.extend(near.filter(|c| place(c).0 as usize == found));
        let mut rest = self.picked.as_mut_slice();
        while rest.len() > BLOCK {
            let (better, ..) = rest.select_nth_unstable_by(rest.len() / 2, by_logit);
            let with = before + better.iter().map(&weight).sum::<f64>();
            let half = better.len();
            if with >= target {
                rest = &mut rest[..half];
            } else {
                (rest, before) = (&mut rest[half..], with);
            }
        }
        rest.sort_unstable_by(by_logit);
        let reached = rest.iter().find(|c| {
            before += weight(c);
            before >= target
        });
        reached.or(rest.last()).copied().unwrap_or(kept.last)
    }
}

/// The blocks that hold candidates, each with the first id.
fn blocks<'a>(
    logits: &'a [f32],
    best: &'a [f32],
    kept: &Kept,
) -> impl Iterator<Item = (u32, &'a [f32])> {
    let Kept { best: first, drop, last } = *kept;
    let holds = move |best: f32| best >= last.logit && first - best <= drop;
    let all = (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)).zip(best);
    all.filter_map(move |(block, best)| holds(*best).then_some(block))
}

/// All candidates that are left, in the order of ids.
fn candidates<'a>(
    logits: &'a [f32],
    best: &'a [f32],
    kept: &'a Kept,
) -> impl Iterator<Item = Candidate> + 'a {
    let all = blocks(logits, best, kept).flat_map(|(first, logits)| (first..).zip(logits));
    all.map(|(id, logit)| Candidate::new(id, *logit)).filter(|c| kept.holds(*c))
}

/// Where a candidate belongs that lies `below` the best, in buckets: the bucket, and its weight as a
/// fraction of the bucket's. The error of `exp(-below / FINENESS)` is below 1e-12 of it; it is
/// exactly 1 at 0.
#[inline]
fn place(below: f64) -> (u64, f64) {
    let below = if below < LAST as f64 { below } else { LAST as f64 };
    let rounded = below + TO_WHOLE;
    let x = (below - (rounded - TO_WHOLE)) * (-1.0 / FINENESS);
    let tail = 0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0));
    (rounded.to_bits() & (BUCKETS as u64 - 1), 1.0 + x * (1.0 + x * tail))
}

/// The largest number; minus infinity if there is none.
fn largest(numbers: &[f32]) -> f32 {
    let (whole, rest) = numbers.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for numbers in whole {
        for (best, x) in best.iter_mut().zip(numbers) {
            // NaN is not larger than anything.
            *best = if x > best { *x } else { *best };
        }
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, x| if *x > best { *x } else { best })
}

/// The larger one first. Zeros are equal, whatever their sign; candidates are numbers.
pub(super) fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}
