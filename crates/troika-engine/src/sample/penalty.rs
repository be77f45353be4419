//! Penalties on repeated tokens, and logit bias.

use std::collections::BTreeMap;

use super::SampleParams;

pub(super) fn active(p: &SampleParams) -> bool {
    p.repeat_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
}

/// How often each of the recent tokens that count is there.
pub(super) fn counts(recent: &[u32], p: &SampleParams) -> BTreeMap<u32, u32> {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for &t in &recent[recent.len().saturating_sub(p.repeat_last_n)..] {
        *counts.entry(t).or_default() += 1;
    }
    counts
}

/// Every step stays finite: two infinities would make NaN.
fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}

/// The logit of a token that is there so often.
pub(super) fn penalized(logit: f32, count: u32, p: &SampleParams) -> f32 {
    let l = finite(logit);
    // Keskar et al. 2019 (CTRL), section 4.1, with llama.cpp's and transformers' treatment of
    // negative logits.
    let l = if l <= 0.0 { l * p.repeat_penalty } else { l / p.repeat_penalty };
    finite(finite(finite(l) - finite(count as f32 * p.frequency_penalty)) - p.presence_penalty)
}

/// Applies biases. What is impossible, NaN or minus infinity, stays so.
pub(super) fn bias(logits: &mut [f32], p: &SampleParams) {
    for (&id, &bias) in &p.logit_bias {
        change(logits, id, |l| finite(finite(l) + bias));
    }
}

/// Applies penalties in the same way.
pub(super) fn apply(logits: &mut [f32], p: &SampleParams, recent: &[u32]) {
    if active(p) {
        counts(recent, p)
            .into_iter()
            .for_each(|(id, n)| change(logits, id, |l| penalized(l, n, p)));
    }
}

fn change(logits: &mut [f32], id: u32, f: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(id as usize).filter(|l| **l > f32::NEG_INFINITY) {
        *logit = f(*logit);
    }
}
