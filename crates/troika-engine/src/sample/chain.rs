//! The other samplers of llama.cpp, one after another in any order, over a list of candidates.
//!
//! Defaults, order and bounds are those of llama.cpp (`src/llama-sampler.cpp`). Locally typical:
//! Meister et al. 2022, equation 7. Top-n-sigma: Tang et al. 2024, algorithm 1. Mirostat 2: Basu et
//! al. 2021, as its authors simplified it. DRY and XTC: p-e-w, pull requests 5677 and 6335 of
//! text-generation-webui. Dynamic temperature: kalomaze, pull request 4972 of llama.cpp.

use std::collections::BTreeMap;

use super::SampleParams;
use super::dry::History;
use super::penalty;

/// A sampler of a chain, as llama.cpp names it.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

/// All samplers in llama.cpp's order, each with its name and letter there.
const ALL: [(Step, &str, &str); 9] = [
    (Step::Penalties, "penalties", "e"),
    (Step::Dry, "dry", "d"),
    (Step::TopNSigma, "top_n_sigma", "s"),
    (Step::TopK, "top_k", "k"),
    (Step::TypicalP, "typ_p", "y"),
    (Step::TopP, "top_p", "p"),
    (Step::MinP, "min_p", "m"),
    (Step::Xtc, "xtc", "x"),
    (Step::Temperature, "temperature", "t"),
];

impl Step {
    /// Reads an order of names and letters in llama.cpp's spellings. Those of its other samplers are
    /// passed over: its clients list them, and they are off.
    ///
    /// # Errors
    /// A sampler that is not known, or is named twice; the sentence follows a field's name.
    pub fn order<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Step>, String> {
        let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
        let mut order = Vec::new();
        for name in names {
            let spelled = plain(name);
            let spelled = match spelled.as_str() {
                "infill" | "i" | "adaptivep" | "a" | "tfsz" => continue,
                "nucleus" => "topp",
                "temp" => "temperature",
                "typ" | "typicalp" => "typp",
                other => other,
            };
            let is = |known: &str, letter: &str| plain(known) == spelled || letter == spelled;
            let found = ALL.iter().find(|(_, known, letter)| is(known, letter));
            let new = found.map(|(step, ..)| *step).filter(|step| !order.contains(step));
            order.push(new.ok_or_else(|| {
                let known = ALL.map(|(_, known, _)| known).join(", ");
                format!("has {name:?}; name each of these once at most: {known}")
            })?);
        }
        Ok(order)
    }

    /// Whether it changes anything.
    fn is_on(self, p: &SampleParams) -> bool {
        let c = &p.chain;
        match self {
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
}

/// The struct of a chain from a list of its numbers, each with its default and bounds.
macro_rules! numbers {
    ($($(#[doc = $doc:literal])* $name:ident = $default:literal in $least:expr, $most:expr;)*) => {
        /// The order of the samplers, and the parameters of those that are off by default.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Chain {
            /// The samplers that work, in their order.
            pub samplers: Vec<Step>,
            /// Texts beyond which DRY follows no repetition.
            pub dry_sequence_breakers: Vec<String>,
            $($(#[doc = $doc])* pub $name: f32,)*
        }

        impl Default for Chain {
            /// llama.cpp's defaults.
            fn default() -> Chain {
                Chain {
                    samplers: ALL.map(|(step, ..)| step).to_vec(),
                    dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_string).to_vec(),
                    $($name: $default,)*
                }
            }
        }

        impl Chain {
            /// All numbers by their names.
            pub fn numbers_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut f32)> {
                [$((stringify!($name), &mut self.$name)),*].into_iter()
            }

            /// All numbers with their names and bounds.
            pub(super) fn bounds(&self) -> impl Iterator<Item = (&'static str, f32, (f32, f32))> {
                [$((stringify!($name), self.$name, ($least, $most))),*].into_iter()
            }
        }
    };
}

numbers! {
    /// DRY: the penalty of a token that goes on with a repetition of the allowed length (0: off).
    dry_multiplier = 0.0 in 0.0, f32::MAX;
    /// By how much the penalty grows with each further token of the repetition.
    dry_base = 1.75 in 1.0, f32::MAX;
    /// The shortest repetition whose next token has a penalty.
    dry_allowed_length = 2.0 in 0.0, f32::MAX;
    /// How many recent tokens are looked at (0: off; -1: all).
    dry_penalty_last_n = 64.0 in f32::MIN, f32::MAX;
    /// Keep logits at most so many standard deviations below the best (0 and less: all).
    top_n_sigma = -1.0 in f32::MIN, f32::MAX;
    /// Keep the tokens whose surprise is nearest to the expected one, up to this probability (1: all).
    typical_p = 1.0 in 0.0, 1.0;
    /// XTC: how often the likeliest tokens are dropped (0: never).
    xtc_probability = 0.0 in 0.0, 1.0;
    /// Those at least so likely are dropped, but for the last of them (above 0.5: none).
    xtc_threshold = 0.1 in 0.0, 1.0;
    /// The temperature goes so far down and up with the entropy (0: it is fixed).
    dynatemp_range = 0.0 in 0.0, f32::MAX;
    /// The power of the entropy by which it does.
    dynatemp_exponent = 1.0 in 0.0, f32::MAX;
    /// 2: mirostat 2 in place of all samplers but temperature; 0: off.
    mirostat = 0.0 in 0.0, 2.0;
    /// Mirostat's target for a token's surprise in bits.
    mirostat_tau = 5.0 in 0.0, f32::MAX;
    /// How fast it is followed.
    mirostat_eta = 0.1 in 0.0, f32::MAX;
}

impl Chain {
    /// How many recent tokens DRY looks at.
    pub(super) fn window(&self) -> usize {
        if self.dry_penalty_last_n < 0.0 { usize::MAX } else { self.dry_penalty_last_n as usize }
    }
}

/// A token and its logit at some place in the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub id: u32,
    pub logit: f64,
}

/// A chain at work.
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
        steps.retain(|step| step.is_on(p));
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
        let all = all.map(|(id, logit)| Choice { id, logit: f64::from(logit.min(f32::MAX)) });
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
                    let (weights, total) = self.weights();
                    let enough = f64::from(p.top_p) * total;
                    self.keep(reach(&weights, |sum| sum >= enough));
                }
                Step::MinP => {
                    let (weights, _) = self.weights();
                    let few = weights.iter().take_while(|w| **w >= f64::from(p.min_p)).count();
                    self.keep(few);
                }
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
            let (weights, total) = self.weights();
            let known = weights.iter().take_while(|w| -(**w / total).log2() <= mu).count();
            self.keep(known.max(1));
        }
        let (weights, total) = self.weights();
        let draw = random() * total;
        let at = reach(&weights, |sum| sum > draw).checked_sub(1)?;
        if let Some(mu) = &mut self.mu {
            let surprise = -(weights[at] / total).log2();
            let error = surprise - f64::from(p.chain.mirostat_tau);
            *mu -= f64::from(p.chain.mirostat_eta) * error;
        }
        Some(self.list[at].id)
    }

    /// Sorts, the likeliest first. Returns what each is of the best one's probability, and the sum.
    fn weights(&mut self) -> (Vec<f64>, f64) {
        self.list.sort_unstable_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
        let best = self.list.first().map_or(0.0, |c| c.logit);
        let weights: Vec<f64> = self.list.iter().map(|c| (c.logit - best).exp()).collect();
        let total = weights.iter().sum();
        (weights, total)
    }

    /// Leaves the likeliest.
    fn keep(&mut self, k: usize) {
        if k < self.list.len() {
            self.weights();
            self.list.truncate(k);
        }
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
        let best = self.list.iter().map(|c| c.logit).fold(f64::MIN, f64::max);
        self.list.retain(|c| c.logit >= best - n * square.sqrt());
    }

    fn keep_typical(&mut self, p: f64) {
        let (weights, total) = self.weights();
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
        let (weights, total) = self.weights();
        if self.list.len() < 2 || random() > f64::from(p.chain.xtc_probability) {
            return;
        }
        let least = f64::from(p.chain.xtc_threshold) * total;
        let likely = weights.iter().take_while(|w| **w >= least).count();
        self.list.drain(..likely.saturating_sub(1));
    }

    fn heat(&mut self, p: &SampleParams) {
        let range = if self.mu.is_some() { 0.0 } else { p.chain.dynatemp_range };
        let mut temperature = p.temperature;
        if range > 0.0 && self.list.len() > 1 {
            let (weights, total) = self.weights();
            let part = entropy(&weights, total) / (weights.len() as f64).ln();
            let least = f64::from((temperature - range).max(0.0));
            let span = f64::from(temperature) + f64::from(range) - least;
            temperature = (least + span * part.powf(f64::from(p.chain.dynatemp_exponent))) as f32;
        }
        if temperature == 0.0 {
            return self.keep(1);
        }
        for c in &mut self.list {
            c.logit = (c.logit / f64::from(temperature)).clamp(-1e200, 1e200);
        }
    }
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
