//! A finished measurement and its derived figures.

use std::sync::Arc;

use troika::device::ExpertStats;
use troika::graph::{ActivationFormat, DType};
use troika::plan::Plan;
use troika::weights::TokenCost;
use troika::{DeviceOptions, Limit, Limits, Model, TokenUse, multiply_of};

use crate::error::CliError;

/// What is measured.
#[derive(Clone, Copy)]
pub(super) struct Test {
    pub prompt: usize,
    pub generate: usize,
    pub depth: usize,
    /// Sequences computed together.
    pub sequences: usize,
}

impl Test {
    pub fn name(self) -> String {
        let base = match self.prompt {
            0 => format!("tg{}", self.generate),
            n => format!("pp{n}"),
        };
        if self.depth == 0 { base } else { format!("{base} @ d{}", self.depth) }
    }

    /// Tokens of a sequence.
    pub fn tokens(self) -> usize {
        self.prompt.saturating_add(self.generate)
    }
}

/// Facts that are the same for all tests.
pub struct Facts {
    pub model: String,
    pub family: String,
    pub size: u64,
    pub params: u64,
    /// The type of most weights in products.
    pub quant: &'static str,
    pub cpu_info: String,
    pub plan: Arc<Plan>,
    /// The time to open the model, compiling included.
    pub load_ms: f64,
    /// The activation format of most products.
    pub activations: ActivationFormat,
    pub threads: usize,
    /// The limits of what it runs on; `None` if all devices are virtual.
    pub limits: Option<Limits>,
    /// The source of energy figures, or why there is none; `None` if virtual devices model none.
    pub energy: Option<Result<String, String>>,
    /// Where the CPU's figures are from.
    pub cpu: String,
    /// The limit of products with the weights' type.
    pub multiply: Option<Limit>,
    cost: TokenCost,
    /// For each cache tensor, bytes per position and the window in which they are read.
    states: Vec<(usize, Option<usize>)>,
}

impl Facts {
    pub fn of(
        name: String,
        options: &DeviceOptions,
        model: &Model,
        limits: Option<Limits>,
        energy: Option<Result<String, String>>,
        cpu: String,
    ) -> Result<Facts, CliError> {
        let classes = model.store().classes();
        let dtype = main_type(model);
        let cost = model.store().token_cost(model.spec());
        let engine = model.engine()?;
        let lowered = engine.lowered();
        let states = lowered.states.iter();
        let states =
            states.map(|s| (s.row_bytes(), lowered.page_groups[s.page_group].window(0))).collect();
        let plan = model.plan();
        let activations =
            dtype.map_or(ActivationFormat::F32, |d| activation_format_of(d, &plan.activations()));
        let multiply = match (dtype, &limits) {
            (Some(d), Some(limits)) => multiply_of(limits, options, d, activations)?,
            _ => None,
        };
        Ok(Facts {
            model: name,
            size: classes.iter().map(|c| c.bytes).sum(),
            params: classes.iter().map(|c| c.parameters).sum(),
            quant: dtype.map_or("", DType::name),
            cpu_info: cpu_info(options),
            plan,
            load_ms: model.load_time().as_secs_f64() * 1e3,
            activations,
            threads: options.threads(),
            multiply,
            limits,
            energy,
            cpu,
            cost,
            states,
            family: model.spec().family.clone(),
        })
    }

    /// Bytes of cache read for a token after `positions` others.
    fn kv_bytes(&self, positions: f64) -> f64 {
        let of = |(bytes, window): &(usize, Option<usize>)| {
            *bytes as f64 * window.map_or(positions, |w| positions.min(w as f64))
        };
        self.states.iter().map(of).sum()
    }
}

/// The type of most weights, by bytes, among those used for every prompt token.
fn main_type(model: &Model) -> Option<DType> {
    let classes = model.store().classes();
    let counts = |class: &str| matches!(class, "attention" | "feed-forward" | "experts");
    let mut sums: Vec<(DType, u64)> = Vec::new();
    for c in classes.iter().filter(|c| counts(c.class)) {
        match sums.iter_mut().find(|s| s.0 == c.dtype) {
            Some(sum) => sum.1 += c.bytes,
            None => sums.push((c.dtype, c.bytes)),
        }
    }
    sums.into_iter().max_by_key(|s| s.1).map(|s| s.0)
}

/// The activation format of products with weights of a type, under the plan's formats.
fn activation_format_of(weight: DType, allowed: &[ActivationFormat]) -> ActivationFormat {
    let wanted = match weight {
        DType::BF16 => ActivationFormat::Bf16,
        d if d.is_quantized() => ActivationFormat::INT8,
        _ => ActivationFormat::F32,
    };
    wanted.restricted(allowed, weight.uses_all_bits())
}

fn cpu_info(options: &DeviceOptions) -> String {
    // Without devices there are no facts; opening the model reports the reason.
    let devices = troika::open_devices(options).unwrap_or_default();
    let facts = devices.iter().flat_map(|d| d.caps().facts.iter());
    facts.map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join("; ")
}

/// A finished measurement.
pub struct Row<'a> {
    pub test: Test,
    pub samples_ns: Vec<u64>,
    /// What all repetitions used.
    pub used: TokenUse,
    /// What became of experts that are not all in memory.
    pub experts: Option<ExpertStats>,
    /// The same of experts that devices load, by the devices' names.
    pub device_experts: Vec<(String, ExpertStats)>,
    /// What a virtual SoC's file predicts, if there is one.
    pub predicted_ns: Option<u64>,
    pub facts: &'a Facts,
}

impl Row<'_> {
    /// How far off the prediction is, as a share of the fastest repetition: the file's times hold
    /// for a machine that does nothing else.
    pub fn prediction_error(&self) -> Option<f64> {
        let fastest = self.samples_ns.iter().min().filter(|ns| **ns > 0)?;
        Some(self.predicted_ns? as f64 / *fastest as f64 - 1.0)
    }

    /// Tokens per second of all sequences together, for each repetition.
    pub fn rates(&self) -> Vec<f64> {
        let n = (self.test.tokens() * self.test.sequences) as f64;
        self.samples_ns.iter().map(|&ns| n * 1e9 / ns as f64).collect()
    }

    /// Time of a prompt up to its first token in ms; `None` for decode.
    pub fn ttft_ms(&self) -> Option<f64> {
        let ns: Vec<f64> = self.samples_ns.iter().map(|&n| n as f64).collect();
        (self.test.prompt > 0).then(|| mean_sd(&ns).0 / 1e6)
    }

    /// GB/s of weights and cache read for decoded tokens; the weights count once for all sequences.
    /// `None` for prefill, which reuses them.
    pub fn gb_per_s(&self) -> Option<f64> {
        let (rate, sequences) = (mean_sd(&self.rates()).0, self.test.sequences as f64);
        (self.test.generate > 0).then(|| self.token_bytes() * rate / sequences / 1e9)
    }

    /// Those bytes.
    fn token_bytes(&self) -> f64 {
        let positions = self.test.depth as f64 + self.test.generate as f64 / 2.0;
        let sequences = self.test.sequences;
        self.facts.cost.bytes(sequences) as f64 + sequences as f64 * self.facts.kv_bytes(positions)
    }

    /// Whether what a decoded token reads fits the last-level caches, or comes faster than memory
    /// gives it: then memory does not limit it.
    pub fn reads_from_cache(&self) -> bool {
        let (Some(gb), Some(limits)) = (self.gb_per_s(), &self.facts.limits) else { return false };
        gb > limits.read || limits.cache.is_some_and(|cache| self.token_bytes() <= cache as f64)
    }

    /// 10^9 operations per second of products with weights. A prompt uses the head once. Attention
    /// does not count, so at depth the machine does more than this.
    pub fn gop_per_s(&self) -> f64 {
        let (n, cost) = (self.test.tokens() as f64, &self.facts.cost);
        let heads = if self.test.prompt > 0 { 1.0 / n } else { 1.0 };
        2.0 * (cost.body as f64 + cost.head as f64 * heads) * mean_sd(&self.rates()).0 / 1e9
    }

    /// The share of the limit that binds: bandwidth for decoding, products for prompts. Between 0
    /// and 1; none where the limit is not known, and where weights come from a cache.
    pub fn share(&self) -> Option<f64> {
        match self.gb_per_s() {
            Some(_) if self.reads_from_cache() => None,
            Some(gb) => {
                let read = self.facts.limits.as_ref()?.read;
                Some(gb / read).filter(|s| s.is_finite())
            }
            None => self.facts.multiply.map(|l| self.gop_per_s() / l.value),
        }
    }

    /// The name of the binding limit.
    pub fn bound(&self) -> &'static str {
        match self.test.prompt {
            _ if self.facts.limits.is_none() => "",
            0 if self.reads_from_cache() => "last_level_cache",
            0 => "read_bandwidth",
            _ => self.facts.multiply.map_or("", |l| l.name),
        }
    }
}

/// Mean and standard deviation of a sample.
pub fn mean_sd(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let var = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    (mean, var.sqrt())
}

/// The types of values between segments in a plan's rules, without duplicates.
pub fn value_types(plan: &Plan) -> String {
    let rules = plan.prefill.rules.iter().chain(&plan.decode.rules);
    let mut names: Vec<String> = rules.map(|r| r.values.name().to_lowercase()).collect();
    names.sort_unstable();
    names.dedup();
    names.join("+")
}
