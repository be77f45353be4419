//! Truncation of the distribution, and the draw. Ties go to the lower id everywhere.

use std::cmp::Ordering;

use super::candidate::Candidate;

/// Logits of a block.
const BLOCK: usize = 64;
/// Logits that are compared side by side.
const LANES: usize = 16;

/// Finds the largest logits without looking at each of them twice.
#[derive(Debug, Default)]
pub(super) struct Shortlist {
    /// The largest logit of each block, and the same in another order.
    best: Vec<f32>,
    ordered: Vec<f32>,
}

impl Shortlist {
    /// Appends candidates in the order of ids, among them the `k` most likely ones. Take the best
    /// logit of each block, and of these the `k`-th largest: `k` logits are at least that large, so
    /// a smaller one is not among the `k` most likely. NaN and minus infinity are left out; plus
    /// infinity becomes the largest number.
    pub fn append(&mut self, logits: &[f32], k: usize, to: &mut Vec<Candidate>) {
        self.best.clear();
        self.best.extend(logits.chunks(BLOCK).map(largest));
        let mut least = f32::NEG_INFINITY;
        if (1..self.best.len()).contains(&k) {
            self.ordered.clone_from(&self.best);
            least = *self.ordered.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        }
        for (block, (numbers, best)) in logits.chunks(BLOCK).zip(&self.best).enumerate() {
            if *best < least {
                continue;
            }
            let enough = |(_, logit): &(u32, f32)| *logit >= least && *logit > f32::NEG_INFINITY;
            let all = ((block * BLOCK) as u32..).zip(numbers.iter().copied()).filter(enough);
            to.extend(
                all.map(|(id, logit)| Candidate { id, logit: logit.clamp(f32::MIN, f32::MAX) }),
            );
        }
    }
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
fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Keeps the `k` largest, sorted.
pub(super) fn keep_top_k(c: &mut Vec<Candidate>, k: usize) {
    if k < c.len() && k > 0 {
        c.select_nth_unstable_by(k - 1, by_logit);
        c.truncate(k);
    }
    c.sort_unstable_by(by_logit);
}

/// Unnormalised probabilities: `exp(logit - best)`; candidates are sorted.
fn weights(c: &[Candidate], temperature: f32) -> impl Iterator<Item = f64> + '_ {
    let best = c.first().map_or(0.0, |c| c.logit);
    c.iter().map(move |c| (f64::from(c.logit - best) / f64::from(temperature)).exp())
}

/// Keeps the shortest prefix whose probability reaches `p`; at least one.
pub(super) fn keep_top_p(c: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let total: f64 = weights(c, 1.0).sum();
    let mut sum = 0.0;
    let reach = f64::from(p) * total;
    let n = weights(c, 1.0).position(|w| {
        sum += w;
        sum >= reach
    });
    c.truncate(n.map_or(c.len(), |n| n + 1));
}

/// Keeps candidates at least `p` times as likely as the best.
pub(super) fn keep_min_p(c: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let n = weights(c, 1.0).take_while(|&w| w >= f64::from(p)).count();
    c.truncate(n.max(1));
}

/// The candidate at `draw` (in [0, 1)) of the cumulative distribution.
pub(super) fn draw(c: &[Candidate], temperature: f32, draw: f64) -> u32 {
    let total: f64 = weights(c, temperature).sum();
    let mut rest = draw * total;
    for (candidate, w) in c.iter().zip(weights(c, temperature)) {
        rest -= w;
        if rest < 0.0 {
            return candidate.id;
        }
    }
    // Rounding may leave `draw` beyond the last sum: take the last candidate with any share.
    let likely = c.iter().zip(weights(c, temperature)).filter(|(_, w)| *w > 0.0);
    likely.last().map_or(0, |(c, _)| c.id)
}
