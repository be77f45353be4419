//! Choosing experts. Rows are short; the plain code is the only one.

use troika_graph::{Router, Score};

use crate::SharedMut;
use crate::kernels::{Context, KernelError, rows_per_part};

/// Scratch floats a worker needs: the scores of a row, and what is left of them.
pub fn worker_floats(op: &Router) -> usize {
    2 * op.experts
}

/// An op with the numbers of its weights.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// The op.
    pub op: &'a Router,
    /// Its bias.
    pub bias: Option<&'a [f32]>,
    /// Its scales of experts.
    pub scales: Option<&'a [f32]>,
}

/// Chooses experts for each row of `logits`.
///
/// # Errors
/// A panic of a part.
pub fn router(
    cx: &mut Context<'_>,
    of: Choice<'_>,
    logits: &[f32],
    ids: &mut [i32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let (n, k) = (of.op.experts, of.op.top_k);
    let rows = logits.len() / n.max(1);
    assert!(ids.len() == rows * k && weights.len() == rows * k, "lengths of a router's results");
    let weights = SharedMut::new(weights);
    cx.run_rows(ids, k, rows_per_part(n * 8), |scratch, rows, ids| {
        let (scores, rest) = scratch.split_at_mut(n);
        for (row, ids) in rows.zip(ids.chunks_exact_mut(k.max(1))) {
            // SAFETY: each row belongs to one part.
            let weights = unsafe { weights.slice(row * k..(row + 1) * k) };
            scores.copy_from_slice(&logits[row * n..][..n]);
            route(of, scores, &mut rest[..n], ids, weights);
        }
    })
}

/// Routes one row: `scores` holds its logits, `rest` is working memory of the same length.
pub fn route(
    of: Choice<'_>,
    scores: &mut [f32],
    rest: &mut [f32],
    ids: &mut [i32],
    weights: &mut [f32],
) {
    let Choice { op, bias, .. } = of;
    match op.score {
        Score::Softmax => softmax(scores),
        Score::Sigmoid => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
        Score::TopKSoftmax => {}
        Score::SparseMixer { eps } => {
            sparse_mixer(scores, eps, ids, weights);
            return scale(of, ids, weights);
        }
    }
    rest.copy_from_slice(scores);
    for (score, bias) in rest.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    if let Some((n_group, keep)) = op.groups {
        limit_groups(rest, n_group, keep, bias.is_some());
    }
    for (id, w) in ids.iter_mut().zip(weights.iter_mut()) {
        let best = argmax(rest);
        rest[best] = f32::NEG_INFINITY;
        (*id, *w) = (best as i32, scores[best]);
    }
    if op.score == Score::TopKSoftmax {
        softmax(weights);
    }
    scale(of, ids, weights);
}

fn scale(Choice { op, scales, .. }: Choice<'_>, ids: &[i32], weights: &mut [f32]) {
    let mut factor = op.scale;
    if op.normalize {
        // The smallest normal number keeps 0 / 0 away, as a sum of scores that vanish would give.
        factor /= weights.iter().sum::<f32>().max(f32::MIN_POSITIVE);
    }
    weights.iter_mut().for_each(|w| *w *= factor);
    if let Some(scales) = scales {
        ids.iter().zip(weights).for_each(|(id, w)| *w *= scales[*id as usize]);
    }
}

/// Sparsemixer (GRIN-MoE, section 2) as it infers: no noise, two experts, chosen by their logits.
/// Each weight is the expert's share of a softmax over the experts whose logit is within `2 * eps`,
/// relatively, of the best left.
fn sparse_mixer(logits: &[f32], eps: f32, ids: &mut [i32], weights: &mut [f32]) {
    let mut first = None;
    for (id, w) in ids.iter_mut().zip(weights) {
        let left = || logits.iter().copied().enumerate().filter(|(i, _)| Some(*i) != first);
        let best = left().reduce(|a, b| if b.1 > a.1 { b } else { a });
        let Some((best, max)) = best else { return };
        // The relative distance is to the larger of the logit's magnitude and the best logit.
        let near = |s: f32| {
            let far = (max - s) / s.abs().max(max) > 2.0 * eps;
            !far
        };
        let sum: f32 = left().filter(|(_, s)| near(*s)).map(|(_, s)| (s - max).exp()).sum();
        (*id, *w) = (best as i32, 1.0 / sum);
        first = Some(best);
    }
}

/// The first of the largest.
fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|v| *v /= sum);
}

/// Takes away all experts outside the `keep` groups with the best expert, or the best two.
fn limit_groups(scores: &mut [f32], n_group: usize, keep: usize, two: bool) {
    let len = scores.len() / n_group;
    let best = |group: &[f32]| {
        let (first, second) = group.iter().fold((f32::NEG_INFINITY, f32::NEG_INFINITY), |b, &s| {
            if s > b.0 { (s, b.0) } else { (b.0, b.1.max(s)) }
        });
        if two { first + second } else { first }
    };
    // Groups are marked as dropped by taking their experts away, worst group first; of equal
    // groups the first stays.
    for _ in keep..n_group {
        let live =
            scores.chunks_exact(len).enumerate().filter(|(_, g)| best(g) > f32::NEG_INFINITY);
        let worst = live.map(|(i, g)| (i, best(g))).reduce(|a, b| if b.1 <= a.1 { b } else { a });
        if let Some((worst, _)) = worst {
            scores[worst * len..(worst + 1) * len].fill(f32::NEG_INFINITY);
        }
    }
}
