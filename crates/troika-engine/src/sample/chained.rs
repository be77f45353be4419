//! The other samplers of llama.cpp, one after another in any order, over a list of candidates.
//!
//! Defaults, order and bounds are those of llama.cpp (`src/llama-sampler.cpp`). Locally typical:
//! Meister et al. 2022, equation 7. Top-n-sigma: Tang et al. 2024, algorithm 1. Mirostat 2: Basu et
//! al. 2021, as its authors simplified it. DRY and XTC: p-e-w, pull requests 5677 and 6335 of
//! text-generation-webui. Dynamic temperature: kalomaze, pull request 4972 of llama.cpp.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::SampleParams;
use super::chain::{ALL, Step};
use super::dry::History;
use super::penalty;

/// A token and its logit at some place in the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub id: u32,
    pub logit: f64,
}

#[derive(Debug)]
pub(super) struct Chained {
    /// The samplers that change something.
    steps: Vec<Step>,
    /// What is left.
    pub list: Vec<Choice>,
    pub history: Option<History>,
    /// Mirostat's bound of surprise in bits.
    mu: Option<f64>,
}

impl Chained {
    /// `None` where the usual samplers in their usual order are enough.
    pub fn of(p: &SampleParams) -> Option<Box<Chained>> {
        let c = &p.chain;
        let mu = (c.mirostat == 2.0).then_some(2.0 * f64::from(c.mirostat_tau));
        let mut steps = if mu.is_some() { vec![Step::Temperature] } else { c.samplers.clone() };
        steps.retain(|step| is_on(*step, p));
        let new = |s: &Step| matches!(s, Step::Dry | Step::TopNSigma | Step::TypicalP | Step::Xtc);
        let is_usual = c.samplers.iter().eq(ALL.iter().map(|(step, ..)| step))
            && mu.is_none()
            && c.dynatemp_range == 0.0
            && !steps.iter().any(new);
        let history = steps.contains(&Step::Dry).then(|| History::new(c));
        (!is_usual).then(|| Box::new(Chained { steps, list: Vec::new(), history, mu }))
    }

    /// Takes the samplers' steps; the list holds what is left, with `recent` as the last tokens.
    pub fn cut(
        &mut self,
        logits: &[f32],
        p: &SampleParams,
        recent: &[u32],
        random: &mut dyn FnMut() -> f64,
    ) {
        let all = (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        let all = all.map(|(id, logit)| Choice { id, logit: f64::from(logit.min(f32::MAX) + 0.0) });
        self.list.clear();
        self.list.extend(all);
        for step in self.steps.clone() {
            match step {
                Step::Penalties => self.change(&penalty::counts(recent, p), |logit, count| {
                    f64::from(penalty::penalized(logit as f32, *count, p))
                }),
                Step::Dry => {
                    let penalties = self.history.as_mut().map(|h| h.penalties(recent, &p.chain));
                    self.change(&penalties.unwrap_or_default(), |logit, penalty| logit - penalty);
                }
                Step::TopNSigma => self.keep_near_best(f64::from(p.chain.top_n_sigma)),
                Step::TopK => self.keep(p.top_k),
                Step::TypicalP => self.keep_typical(f64::from(p.chain.typical_p)),
                Step::TopP => {
                    let (weights, total) = self.sorted();
                    let enough = f64::from(p.top_p) * total;
                    self.keep(reach(&weights, |sum| sum >= enough));
                }
                Step::MinP => self.keep_likely(f64::from(p.min_p)),
                Step::Xtc => self.exclude_top(p, random),
                Step::Temperature => self.heat(p),
            }
        }
    }

    /// Chooses one of the logits by its place; `None` if all are impossible.
    pub fn choose(
        &mut self,
        logits: &[f32],
        p: &SampleParams,
        recent: &[u32],
        random: &mut dyn FnMut() -> f64,
    ) -> Option<u32> {
        self.cut(logits, p, recent, random);
        if let Some(mu) = self.mu {
            let (_, total) = self.weights();
            self.keep_likely(total * (-mu).exp2());
        }
        let (weights, total) = self.sorted();
        let draw = random() * total;
        let at = reach(&weights, |sum| sum > draw).checked_sub(1)?;
        if let Some(mu) = &mut self.mu {
            let surprise = -(weights[at] / total).log2();
            let error = surprise - f64::from(p.chain.mirostat_tau);
            *mu -= f64::from(p.chain.mirostat_eta) * error;
        }
        Some(self.list[at].id)
    }

    /// What each is of the best one's probability, and the sum.
    fn weights(&self) -> (Vec<f64>, f64) {
        let best = self.best();
        let weights: Vec<f64> = self.list.iter().map(|c| (c.logit - best).exp()).collect();
        let total = weights.iter().sum();
        (weights, total)
    }

    /// The same of the list in order, the likeliest first.
    fn sorted(&mut self) -> (Vec<f64>, f64) {
        self.list.sort_unstable_by(by_logit);
        self.weights()
    }

    fn best(&self) -> f64 {
        self.list.iter().map(|c| c.logit).fold(f64::MIN, f64::max)
    }

    /// Leaves the likeliest, at least one, in any order.
    fn keep(&mut self, k: usize) {
        if (1..self.list.len()).contains(&k) {
            self.list.select_nth_unstable_by(k - 1, by_logit);
            self.list.truncate(k);
        }
    }

    /// Leaves those whose probability is at least this part of the best one's, at least one.
    fn keep_likely(&mut self, least: f64) {
        if least > 1.0 {
            return self.keep(1);
        }
        let best = self.best();
        self.list.retain(|c| (c.logit - best).exp() >= least);
    }

    /// Changes the logits of some tokens.
    fn change<T>(&mut self, by: &BTreeMap<u32, T>, f: impl Fn(f64, &T) -> f64) {
        self.list.sort_unstable_by_key(|c| c.id);
        for (id, by) in by {
            if let Ok(at) = self.list.binary_search_by_key(id, |c| c.id) {
                self.list[at].logit = f(self.list[at].logit, by);
            }
        }
    }

    fn keep_near_best(&mut self, n: f64) {
        let count = self.list.len() as f64;
        let mean = self.list.iter().map(|c| c.logit).sum::<f64>() / count;
        let square = self.list.iter().map(|c| (c.logit - mean).powi(2)).sum::<f64>() / count;
        let best = self.best();
        self.list.retain(|c| c.logit >= best - n * square.sqrt());
    }

    fn keep_typical(&mut self, p: f64) {
        let (weights, total) = self.sorted();
        let surprise: Vec<f64> = weights.iter().map(|w| total.ln() - w.ln()).collect();
        let expected = entropy(&weights, total);
        let distance = |i: &usize| (surprise[*i] - expected).abs();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let ordered: Vec<f64> = order.iter().map(|i| weights[*i]).collect();
        order.truncate(reach(&ordered, |sum| sum > p * total));
        self.list = order.into_iter().map(|i| self.list[i]).collect();
    }

    fn exclude_top(&mut self, p: &SampleParams, random: &mut dyn FnMut() -> f64) {
        if self.list.len() < 2 || random() > f64::from(p.chain.xtc_probability) {
            return;
        }
        let (weights, total) = self.sorted();
        let least = f64::from(p.chain.xtc_threshold) * total;
        let likely = weights.iter().take_while(|w| **w >= least).count();
        self.list.drain(..likely.saturating_sub(1));
    }

    fn heat(&mut self, p: &SampleParams) {
        let range = if self.mu.is_some() { 0.0 } else { p.chain.dynatemp_range };
        let mut temperature = f64::from(p.temperature);
        if range > 0.0 && self.list.len() > 1 {
            let (weights, total) = self.weights();
            let part = entropy(&weights, total) / (weights.len() as f64).ln();
            let least = (temperature - f64::from(range)).max(0.0);
            let span = temperature + f64::from(range) - least;
            temperature = least + span * part.powf(f64::from(p.chain.dynatemp_exponent));
        }
        // Nothing above 0 is smaller as f32.
        if temperature < 1e-45 {
            return self.keep(1);
        }
        for c in &mut self.list {
            c.logit = (c.logit / temperature).clamp(-1e200, 1e200);
        }
    }
}

/// Whether a sampler changes anything.
fn is_on(step: Step, p: &SampleParams) -> bool {
    let c = &p.chain;
    match step {
        Step::Penalties => penalty::active(p),
        Step::Dry => c.dry_multiplier != 0.0 && c.window() > 0,
        Step::TopNSigma => c.top_n_sigma > 0.0,
        Step::TopK => p.top_k > 0,
        Step::TypicalP => c.typical_p < 1.0,
        Step::TopP => p.top_p < 1.0,
        Step::MinP => p.min_p > 0.0,
        Step::Xtc => c.xtc_probability > 0.0 && c.xtc_threshold <= 0.5,
        Step::Temperature => p.temperature != 1.0 || c.dynatemp_range > 0.0,
    }
}

/// The larger one first.
fn by_logit(a: &Choice, b: &Choice) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// In nats, of weights with their sum.
fn entropy(weights: &[f64], total: f64) -> f64 {
    let of = |w: &f64| if *w > 0.0 { w / total * (total / w).ln() } else { 0.0 };
    weights.iter().map(of).sum()
}

/// How many are needed until their sum is enough; all if it never is.
fn reach(weights: &[f64], is_enough: impl Fn(f64) -> bool) -> usize {
    let mut sum = 0.0;
    let reached = weights.iter().position(|w| {
        sum += w;
        is_enough(sum)
    });
    reached.map_or(weights.len(), |at| at + 1)
}
