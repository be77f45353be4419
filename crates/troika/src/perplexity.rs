//! Perplexity: how well a model predicts a text.

use troika_engine::{EngineError, WantedLogits};

use crate::error::Error;
use crate::open::Model;

/// Which tokens of a window are scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scored {
    /// The second half: each token has at least half a window before it. As in `llama-perplexity`.
    #[default]
    SecondHalf,
    /// All but the first.
    All,
}

/// A measured perplexity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Number of windows.
    pub windows: usize,
    /// Tokens scored.
    pub tokens: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// Mean negative log-likelihood of a token, in nats.
    pub fn loss(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// `exp(loss)`.
    pub fn value(&self) -> f64 {
        self.loss().exp()
    }

    /// Standard error of the value, to first order; 0 for fewer than two tokens. It assumes
    /// independent tokens, so it can compare texts, but not two settings on one text.
    pub fn error(&self) -> f64 {
        if self.tokens < 2 {
            return 0.0;
        }
        let n = self.tokens as f64;
        let variance = (self.sum_of_squares / n - self.loss() * self.loss()).max(0.0);
        (variance / (n - 1.0)).sqrt() * self.value()
    }

    fn add(&mut self, loss: f64) {
        self.tokens += 1;
        self.sum += loss;
        self.sum_of_squares += loss * loss;
    }
}

impl Model {
    /// The perplexity of token ids in independent windows of `window` tokens; an incomplete last
    /// window is dropped. If the ids begin with BOS, it replaces the first token of every window,
    /// as in `llama-perplexity`. `progress` receives the figures after each window; `false` stops.
    ///
    /// # Errors
    /// Fewer ids than a window; a window beyond the context or under four tokens; a failing device;
    /// logits that are NaN or infinite.
    pub fn perplexity(
        &self,
        ids: &[u32],
        window: usize,
        scored: Scored,
        progress: &mut dyn FnMut(&Perplexity) -> bool,
    ) -> Result<Perplexity, Error> {
        let context = self.context();
        if window < 4 || window > context {
            return Err(Error::Window { window });
        }
        if ids.len() < window {
            return Err(Error::ShortText { tokens: ids.len(), window });
        }
        if let Some(device) = self.engine()?.silent() {
            return Err(EngineError::NoNumerics(device.to_string()).into());
        }
        let bos = self.tokenizer().and_then(|t| t.bos()).filter(|bos| ids[0] == *bos);
        let mut result = Perplexity::default();
        for tokens in ids.chunks_exact(window) {
            let mut tokens = tokens.to_vec();
            if let Some(bos) = bos {
                tokens[0] = bos;
            }
            self.score(&tokens, scored, &mut result)?;
            result.windows += 1;
            if !progress(&result) {
                break;
            }
        }
        Ok(result)
    }

    /// Scores a window.
    fn score(&self, tokens: &[u32], scored: Scored, into: &mut Perplexity) -> Result<(), Error> {
        let first = match scored {
            Scored::SecondHalf => tokens.len() / 2,
            Scored::All => 0,
        };
        let mut session = self.fresh_session()?;
        let mut bad = None;
        // There is no token after the last one to predict.
        let (before, after) = tokens[..tokens.len() - 1].split_at(first);
        let mut score = |position: usize, logits: &mut [f32]| {
            let loss = loss(logits, tokens[position + 1]);
            if loss.is_finite() {
                into.add(loss);
            } else {
                bad.get_or_insert(position);
            }
        };
        if !before.is_empty() {
            session.feed(before, WantedLogits::None, &mut score)?;
        }
        session.feed(after, WantedLogits::All, &mut score)?;
        bad.map_or(Ok(()), |position| Err(Error::BadLogits { position }))
    }
}

/// `-log softmax(logits)[token]`, in f64: sums of 150,000 terms would lose digits in f32.
fn loss(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let Some(&logit) = logits.get(token as usize) else { return f64::NAN };
    sum.ln() - f64::from(logit - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_the_log_of_the_share() {
        let logits = [1.0f32, 2.0, 3.0].map(f32::ln);
        assert!((loss(&logits, 2) - 2f64.ln()).abs() < 1e-7);
        let large = logits.map(|l| l + 1000.0);
        assert!((loss(&large, 0) - 6f64.ln()).abs() < 1e-4);
        assert!(loss(&logits, 3).is_nan());
        assert!(!loss(&[f32::NAN, 0.0], 1).is_finite());
    }

    #[test]
    fn value_and_error_are_those_of_the_sample() {
        let mut p = Perplexity::default();
        [1.0, 2.0, 3.0].into_iter().for_each(|l| p.add(l));
        assert!((p.value() - 2f64.exp()).abs() < 1e-12);
        // Variance 2/3 of the sample, divided by n - 1.
        assert!((p.error() - (1f64 / 3.0).sqrt() * p.value()).abs() < 1e-9);
        let mut one = Perplexity::default();
        one.add(1.0);
        assert_eq!(one.error(), 0.0);
    }
}
