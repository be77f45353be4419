//! Truncation of the distribution, and the draw. Ties go to the lower id everywhere.

use std::cmp::Ordering;

use super::candidate::Candidate;

/// Index of the largest number; ties go to the lower index; NaN and minus infinity never win.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &l) in logits.iter().enumerate() {
        if l > f32::NEG_INFINITY && best.is_none_or(|(_, b)| l > b) {
            best = Some((i, l));
        }
    }
    best.map(|(i, _)| i as u32)
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
