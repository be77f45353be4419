//! Sparsemixer (GRIN-MoE, section 2) as it infers: no noise, two experts.

/// Chooses two experts by their logits. Each weight is the expert's share of a softmax over the
/// experts whose logit is within `2 * eps`, relatively, of the best left.
pub(super) fn choose(logits: &[f32], eps: f32, ids: &mut [i32], weights: &mut [f32]) {
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
