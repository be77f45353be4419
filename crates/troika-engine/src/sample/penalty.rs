//! Penalties on repeated tokens, and logit bias.

use std::collections::BTreeMap;

use super::SampleParams;

/// Whether any penalty is on.
pub(super) fn active(p: &SampleParams) -> bool {
    p.repeat_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
}

/// Applies bias and penalties. What is impossible, NaN or minus infinity, stays so.
pub(super) fn apply(logits: &mut [f32], p: &SampleParams, recent: &[u32]) {
    // Every step stays finite: two infinities would make NaN.
    let finite = |x: f32| x.clamp(f32::MIN, f32::MAX);
    let mut change = |id: u32, f: &dyn Fn(f32) -> f32| {
        if let Some(logit) = logits.get_mut(id as usize).filter(|l| **l > f32::NEG_INFINITY) {
            *logit = finite(f(finite(*logit)));
        }
    };
    for (&id, &bias) in &p.logit_bias {
        change(id, &|l| l + bias);
    }
    if !active(p) {
        return;
    }
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for &t in recent {
        *counts.entry(t).or_default() += 1;
    }
    for (id, count) in counts {
        change(id, &|l| {
            // Keskar et al. 2019 (CTRL), section 4.1, with llama.cpp's and transformers' treatment
            // of negative logits.
            let l = if l <= 0.0 { l * p.repeat_penalty } else { l / p.repeat_penalty };
            finite(finite(l) - finite(count as f32 * p.frequency_penalty)) - p.presence_penalty
        });
    }
}
