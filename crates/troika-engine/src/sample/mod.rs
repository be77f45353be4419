//! Sampling: from logits to a token. Deterministic for a seed.
//!
//! The usual chain is llama.cpp's default order: logit bias, penalties, top-k, top-p, min-p,
//! temperature, draw. Other samplers and orders are in `chain`.

mod candidate;
mod chain;
mod chained;
mod dry;
mod filter;
mod logprobs;
mod penalty;

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use chain::{Chain, Step};
use chained::Chained;
pub use dry::Spelling;
use filter::Distribution;
pub use logprobs::Logprobs;

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely tokens (0: all).
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches p (1: all).
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the best (0: all).
    pub min_p: f32,
    /// Divides positive logits of recent tokens, multiplies negative ones (1: off).
    pub repeat_penalty: f32,
    /// How many recent tokens the penalties consider (`usize::MAX`: all).
    pub repeat_last_n: usize,
    /// Subtracted from the logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence among recent tokens.
    pub frequency_penalty: f32,
    /// Added to the logits of given tokens. Infinity acts like the largest number: such a token is
    /// always taken, or only if nothing else is possible.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Samplers that are off by default, and the order of all.
    pub chain: Chain,
    /// Seed of the draw.
    pub seed: u64,
}

impl Default for SampleParams {
    /// llama.cpp's defaults, with seed 0.
    fn default() -> Self {
        SampleParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            chain: Chain::default(),
            seed: 0,
        }
    }
}

/// Why no token could be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// All logits are NaN or minus infinity.
    #[error("the model's logits leave no token to choose; its weights may be damaged")]
    NoFinite,
    /// A [`Constraint`] allows no token that the model finds possible.
    #[error("the constraint on the answer leaves no token to choose")]
    Constrained,
}

/// Says which tokens may come next: a grammar, a schema, a list of answers.
pub trait Constraint: Send + std::fmt::Debug {
    /// The tokens that may come now, a bit for each and 32 to a word, the first the lowest; others
    /// than these may not. `None`: any may. It is asked when logits are there, so what takes long
    /// is better begun in [`Constraint::accept`] on another thread.
    fn allowed(&mut self) -> Option<&[u32]>;

    /// Whether [`Constraint::allowed`] answers at once now. If not, it is asked on a thread that
    /// may wait, while other sequences go on.
    fn is_ready(&mut self) -> bool {
        false
    }

    /// A token was generated.
    fn accept(&mut self, token: u32);
}

/// A parameter out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name} is {value}; it must be {must}")]
pub struct ParamError {
    /// The parameter, as the field of [`SampleParams`].
    pub name: &'static str,
    /// Its value.
    pub value: f32,
    /// The allowed range.
    pub must: &'static str,
}

impl SampleParams {
    /// Checks the ranges of all parameters.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn check(&self) -> Result<(), ParamError> {
        let non_negative = "a finite number of 0 or more";
        let unit = "between 0 and 1";
        let finite = "a finite number";
        let within = |x: f32| (0.0..=1.0).contains(&x);
        let c = &self.chain;
        let breakers = c.dry_sequence_breakers.len();
        let longest = c.dry_sequence_breakers.iter().map(String::len).max().unwrap_or(0);
        let rules = [
            ("temperature", self.temperature, self.temperature >= 0.0, non_negative),
            ("top_p", self.top_p, within(self.top_p), unit),
            ("min_p", self.min_p, within(self.min_p), unit),
            ("repeat_penalty", self.repeat_penalty, self.repeat_penalty > 0.0, "more than 0"),
            ("presence_penalty", self.presence_penalty, true, finite),
            ("frequency_penalty", self.frequency_penalty, true, finite),
            ("mirostat", c.mirostat, [0.0, 2.0].contains(&c.mirostat), "0 or 2"),
            ("dry_sequence_breakers", breakers as f32, breakers <= 64, "at most 64 texts"),
            ("dry_sequence_breakers", longest as f32, longest <= 64, "texts of at most 64 bytes"),
        ];
        let more = c.bounds().map(|(name, value, (least, most))| {
            let must = match (least, most) {
                (0.0, 1.0) => unit,
                (0.0, _) => non_negative,
                (1.0, _) => "a finite number of 1 or more",
                _ => finite,
            };
            (name, value, (least..=most).contains(&value), must)
        });
        let mut all = rules.into_iter().chain(more);
        if let Some((name, value, _, must)) = all.find(|r| !r.1.is_finite() || !r.2) {
            return Err(ParamError { name, value, must });
        }
        let wrong = |&value| Err(ParamError { name: "logit_bias", value, must: "a number" });
        self.logit_bias.values().find(|b| b.is_nan()).map_or(Ok(()), wrong)
    }
}

/// Chooses tokens by one set of parameters.
#[derive(Debug)]
pub struct Sampler {
    params: SampleParams,
    rng: ChaCha8Rng,
    recent: Vec<u32>,
    /// Logits that differ from the model's, or some of them.
    changed: Vec<f32>,
    /// The largest logits in the order of tokens, where a device picked them.
    picked: Vec<(u32, f32)>,
    distribution: Distribution,
    constraint: Option<Box<dyn Constraint>>,
    /// Other samplers than the usual ones, or another order.
    chain: Option<Box<Chained>>,
}

impl Sampler {
    /// A sampler at the start of its random sequence.
    pub fn new(params: SampleParams) -> Sampler {
        let rng = ChaCha8Rng::seed_from_u64(params.seed);
        let (recent, changed, picked) = (Vec::new(), Vec::new(), Vec::new());
        let distribution = Distribution::default();
        let chain = Chained::of(&params);
        Sampler { params, rng, recent, changed, picked, distribution, constraint: None, chain }
    }

    /// Says how tokens are spelled, before any is accepted.
    pub fn spell(&mut self, spelling: Spelling) {
        if let Some(history) = self.history() {
            history.spelling = Some(spelling);
        }
    }

    fn history(&mut self) -> Option<&mut dry::History> {
        self.chain.as_mut()?.history.as_mut()
    }

    /// Limits the tokens from here on; those accepted so far are not told.
    pub fn constrain(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(constraint);
    }

    /// Whether the next token can be chosen without waiting for a constraint.
    pub fn is_ready(&mut self) -> bool {
        self.constraint.as_mut().is_none_or(|c| c.is_ready())
    }

    /// Records a token of the sequence, from the prompt or generated, for the penalties.
    pub fn accept(&mut self, token: u32) {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        let mut window = self.params.repeat_last_n;
        if let Some(history) = self.history() {
            history.accept(token);
            window = window.max(self.params.chain.window());
        }
        if window == 0 {
            return;
        }
        // Keep the list short: twice the window, then cut.
        if self.recent.len() >= window.saturating_mul(2) {
            let cut = self.recent.len() - window;
            self.recent.drain(..cut);
        }
        self.recent.push(token);
    }

    /// Whether logits are taken as they are.
    fn is_plain(&self) -> bool {
        self.params.logit_bias.is_empty() && !penalty::active(&self.params)
    }

    /// How many of the largest logits decide which token is chosen, if not all do.
    pub fn wanted_top_k(&self) -> Option<usize> {
        let all = self.params.top_k == 0 && self.params.temperature != 0.0 || self.chain.is_some();
        let k = if self.params.temperature == 0.0 { 1 } else { self.params.top_k };
        (self.is_plain() && self.constraint.is_none() && !all).then_some(k)
    }

    /// Chooses the next token by the largest logits alone, at least [`Sampler::wanted_top_k`] of them,
    /// the largest first and equal ones by token: the one that [`Sampler::sample`] chooses by all.
    ///
    /// # Errors
    /// There are none.
    pub fn sample_top_k(&mut self, largest: &[(u32, f32)]) -> Result<u32, SampleError> {
        self.picked.clear();
        self.picked.extend_from_slice(largest);
        self.picked.sort_unstable_by_key(|(id, _)| *id);
        let mut logits = std::mem::take(&mut self.changed);
        logits.clear();
        logits.extend(self.picked.iter().map(|(_, logit)| *logit));
        let chosen = self.choose(&logits).map(|at| self.picked[at as usize].0);
        self.changed = logits;
        chosen
    }

    /// Chooses the next token.
    ///
    /// # Errors
    /// All logits, or all of tokens that a constraint allows, are NaN or minus infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        if self.is_plain() && self.constraint.is_none() {
            return self.choose(logits);
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend_from_slice(logits);
        let allowed = self.constraint.as_mut().and_then(|c| c.allowed());
        if let Some(bits) = allowed {
            forbid_others(&mut changed, bits);
        }
        penalty::bias(&mut changed, &self.params);
        if self.chain.is_none() {
            penalty::apply(&mut changed, &self.params, &self.recent);
        }
        let chosen = self.choose(&changed).map_err(|e| {
            let possible = logits.iter().any(|logit| *logit > f32::NEG_INFINITY);
            if possible { SampleError::Constrained } else { e }
        });
        self.changed = changed;
        chosen
    }

    /// Chooses one of the logits by its place.
    fn choose(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let SampleParams { temperature, top_p, min_p, .. } = self.params;
        // 24 random bits: every value is exact in f32's mantissa.
        let mut random = || f64::from(self.rng.next_u32() >> 8) / f64::from(1u32 << 24);
        if let Some(chain) = &mut self.chain {
            let chosen = chain.choose(logits, &self.params, &self.recent, &mut random);
            return chosen.ok_or(SampleError::NoFinite);
        }
        let from = &mut self.distribution;
        let mut kept = from.begin(logits).ok_or(SampleError::NoFinite)?;
        if temperature == 0.0 {
            let best = from.keep_top_k(logits, &mut kept, 1);
            return best.first().map(|c| c.id).ok_or(SampleError::NoFinite);
        }
        if (1..logits.len()).contains(&self.params.top_k) {
            from.keep_top_k(logits, &mut kept, self.params.top_k);
        }
        from.keep_top_p(logits, &mut kept, top_p);
        kept.keep_min_p(min_p);
        Ok(from.draw(logits, &kept, temperature, random()).id)
    }
}

/// Makes the tokens without a bit impossible.
fn forbid_others(logits: &mut [f32], bits: &[u32]) {
    let words = bits.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words).filter(|(_, word)| *word != u32::MAX) {
        for (i, logit) in logits.iter_mut().enumerate() {
            *logit = if word >> i & 1 == 1 { *logit } else { f32::NEG_INFINITY };
        }
    }
}

#[cfg(test)]
mod tests;
