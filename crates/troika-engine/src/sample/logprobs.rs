//! What the model said of tokens, apart from which one was chosen.

use super::candidate::Candidate;
use super::filter;

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
        let best = f64::from(logits.iter().fold(f32::MIN, |best, l| best.max(known(*l))));
        let sum: f64 = logits.iter().map(|l| (f64::from(known(*l)) - best).exp()).sum();
        let log = |logit: f32| (f64::from(logit) - best - sum.ln()) as f32;
        let mut all: Vec<Candidate> = match top {
            0 => Vec::new(),
            _ => (0..).zip(logits).map(|(id, l)| Candidate { id, logit: known(*l) }).collect(),
        };
        filter::keep_top_k(&mut all, top);
        Logprobs {
            chosen: log(logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| known(*l))),
            top: all.iter().map(|c| (c.id, log(c.logit))).collect(),
        }
    }
}
