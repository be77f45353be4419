//! What the model said of tokens, apart from which one was chosen.

use super::filter::{Distribution, by_logit};

/// Natural logarithms of probabilities after a position, by the model's logits as they are: biases,
/// penalties, constraints and truncation do not change them.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// That of the chosen token.
    pub chosen: f32,
    /// The most likely tokens with theirs, the best first.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Those of a token and of the `top` most likely ones.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Logprobs {
        // A token without a number is impossible.
        let known = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l.min(f32::MAX) };
        let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| known(*l));
        let mut all = Distribution::default();
        let Some(mut kept) = all.begin(logits) else {
            return Logprobs { chosen: f32::NEG_INFINITY, top: Vec::new() };
        };
        let sum = f64::from(kept.best) + all.total(logits, &kept, 1.0).ln();
        let log = |logit: f32| (f64::from(logit) - sum) as f32;
        let best = if top > 0 { all.keep_top_k(logits, &mut kept, top) } else { &mut [] };
        best.sort_unstable_by(by_logit);
        Logprobs { chosen: log(chosen), top: best.iter().map(|c| (c.id, log(c.logit))).collect() }
    }
}
