//! The measurements of `troika doctor --report`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use troika::graph::DType;
use troika::model::spec::ModelSpec;
use troika::plan::Phase;
use troika::weights::{WeightMix, WeightStore};
use troika::{
    BoundModel, CheckedKernel, DeviceOptions, DeviceSpec, EnergyMeter, Metering, Model,
    OpenObserver, OpenOptions, check_device, free_memory, measure_limits, open_devices,
};
use troika_lab::{HandOverBy, ProfileOptions, Shape, Subject, measure_hand_overs, median, profile};

use super::report::Budget;
use crate::cmd::bench::{LOOK, feed, ids, session};
use crate::error::CliError;
use crate::gpu;
use crate::progress::counting;

/// Tokens of the prompts, of the warm-up, and the most that are decoded.
const PROMPT: usize = 128;
const DECODED: usize = 64;
/// Prompts after the warm-up.
const PROMPTS: usize = 3;
/// What products reach of the limit of multiplying at least, and what weights are made at, in
/// bytes a second: only to foresee how many layers fit into the time.
const OF_LIMIT: f64 = 0.2;
const MADE: f64 = 0.25e9;
/// Products and sums for a token by a byte of weights in four or five bits.
const OPERATIONS: f64 = 3.6;
/// The shape whose values are handed over between devices.
const SMALL: &str = "qwen3-moe-tiny:Q8_0";

/// What was measured: for people, and in numbers.
pub struct Measured {
    pub says: String,
    pub result: Value,
}

/// A device of its own.
#[derive(Clone)]
pub struct Target {
    /// As `--device` takes it.
    pub name: String,
    pub spec: DeviceSpec,
    /// Whether the CPU stands in for it: its times say nothing.
    pub software: bool,
    /// Bytes of weights that it has memory for, where they are not the host's.
    pub memory: Option<u64>,
    /// 10^9 operations per second, once its limits are known.
    pub multiply: f64,
}

impl Target {
    /// The options of this device, with the CPU for what an NPU refuses.
    fn devices(&self, others: &DeviceOptions) -> DeviceOptions {
        let cpu = self.spec.npu.is_some().then(DeviceSpec::default);
        let devices = std::iter::once(self.spec.clone()).chain(cpu).collect();
        DeviceOptions { devices, ..others.clone() }
    }
}

fn of_device(e: troika::device::DeviceError) -> CliError {
    CliError::Troika(e.into())
}

/// Compares the kernels with the reference's.
pub fn kernels(
    target: &Target,
    others: &DeviceOptions,
    budget: &Budget,
) -> Result<Measured, CliError> {
    let devices = vec![target.spec.clone()];
    let devices = open_devices(&DeviceOptions { devices, ..others.clone() }).map_err(of_device)?;
    let (mut count, mut of) = (counting("checking"), 0);
    let mut checked = Vec::new();
    for device in &devices {
        checked = check_device(&**device, &mut |done, all| {
            count(done, all);
            of = all;
            budget.goes_on()
        })
        .map_err(of_device)?;
    }
    let wrong: Vec<&CheckedKernel> = checked.iter().filter(|k| k.fault.is_some()).collect();
    let worst = checked.iter().filter_map(|k| k.error).fold(0.0, f32::max);
    let mut says = format!("{} as the CPU's, {} not", checked.len() - wrong.len(), wrong.len());
    if checked.len() < of {
        says.push_str(&format!(", {} not compared in this time", of - checked.len()));
    }
    let faults: Vec<Value> =
        wrong.iter().map(|k| json!({ "kernel": k.name, "fault": k.fault })).collect();
    let result = json!({
        "compared": checked.len(), "of": of, "not_used": faults, "largest_difference": worst,
    });
    Ok(Measured { says, result })
}

/// Measures what the device reaches at most.
pub fn limits(target: &mut Target, others: &DeviceOptions) -> Result<Measured, CliError> {
    let limits = measure_limits(&target.devices(others)).map_err(of_device)?;
    target.multiply = limits.multiply.iter().map(|l| l.value).fold(0.0, f64::max);
    let ways = limits.multiply.iter().map(|l| format!(", {} {:.0} {}", l.words, l.value, l.unit));
    let says = format!("reads {:.1} GB/s{}", limits.read, ways.collect::<String>());
    let ways: Vec<Value> =
        limits.multiply.iter().map(|l| json!({ "of": l.name, "giga_per_s": l.value })).collect();
    Ok(Measured { says, result: json!({ "read_gb_per_s": limits.read, "multiply": ways }) })
}

/// Measures hand-overs between two of the CPU's queues.
pub fn hand_overs() -> Result<Measured, CliError> {
    let ways = [
        ("predicting", HandOverBy::Predicting),
        ("blocking", HandOverBy::Blocking),
        ("spinning", HandOverBy::Spinning),
    ];
    let (mut says, mut result) = (Vec::new(), json!({}));
    for (name, by) in ways {
        let found = measure_hand_overs(by, 200, Duration::from_micros(500)).map_err(of_device)?;
        let us = found.p50().as_secs_f64() * 1e6;
        says.push(format!("{name} {us:.1} us"));
        result[name] = json!({ "median_us": us, "cores": found.share() });
    }
    Ok(Measured { says: says.join(", "), result })
}

/// Measures hand-overs between a device and the CPU.
pub fn hand_overs_with(
    target: &Target,
    others: &DeviceOptions,
    budget: &Budget,
) -> Result<Measured, CliError> {
    let devices = vec![target.spec.clone(), DeviceSpec::default()];
    let devices = DeviceOptions { devices, ..others.clone() };
    let open = OpenOptions { devices, context: Some(2048), ..OpenOptions::default() };
    let ends = Arc::new(AtomicBool::new(false));
    let options = ProfileOptions { open, file: None, soc: false, cancel: Some(ends.clone()) };
    let mut count = counting("measuring");
    let outcome = profile(&Subject::Synthetic(SMALL.into()), &options, &mut |done, all| {
        count(done, all);
        ends.store(!budget.goes_on(), Ordering::SeqCst);
    })?;
    if outcome.profile.pairs.is_empty() {
        return Err(CliError::Failure("the time was too short".into()));
    }
    let name = |at: usize| if at == 0 { &*target.name } else { "cpu" };
    let (mut says, mut result) = (Vec::new(), Vec::new());
    for pair in &outcome.profile.pairs {
        let us = |ns: f64| ns / 1e3;
        let (poll, block) = (us(pair.predicted_ns.median), us(pair.blocking_ns.median));
        let (from, to) = (name(pair.from), name(pair.to));
        says.push(format!("to {to} {poll:.1} us, asleep {block:.1} us"));
        result.push(json!({ "from": from, "to": to, "predicting_us": poll, "blocking_us": block }));
    }
    Ok(Measured { says: says.join(", "), result: result.into() })
}

/// A known shape with as many of its layers as fit.
struct CutShape {
    name: String,
    spec: ModelSpec,
    mix: WeightMix,
    all: usize,
}

impl CutShape {
    /// One of at most so many bytes, with a layer at least.
    fn new(name: &str, most: u64) -> Result<CutShape, CliError> {
        let Shape { spec, mix, .. } = Shape::find(name, DType::BF16)?;
        let mut cut = CutShape { name: name.into(), all: spec.layers.len(), spec, mix };
        let whole = cut.bytes();
        let layers = std::mem::take(&mut cut.spec.layers);
        cut.spec.layers = layers[..1].to_vec();
        let one = cut.bytes();
        // Layers of a shape are alike, or nearly so.
        let each = (whole - one) / (cut.all as u64 - 1).max(1);
        let fit = 1 + most.saturating_sub(one) / each.max(1);
        cut.spec.layers = layers[..cut.all.min(fit as usize)].to_vec();
        Ok(cut)
    }

    fn lazy(&self) -> WeightStore {
        WeightStore::synthetic_lazy(&self.spec, self.mix, 1, OpenOptions::default().quant)
    }

    fn bytes(&self) -> u64 {
        self.lazy().classes().iter().map(|class| class.bytes).sum()
    }
}

/// Bytes of weights that memory and time are there for.
fn most_bytes(target: &Target, budget: &Budget) -> u64 {
    let memory = free_memory().map_or(u64::MAX, |free| free / 2);
    let memory = memory.min(target.memory.unwrap_or(u64::MAX) / 5 * 4);
    let prompts = 2.0 * PROMPT as f64 * OPERATIONS;
    let each = 1.0 / MADE + prompts / (OF_LIMIT * target.multiply.max(1.0) * 1e9);
    memory.min((budget.left().as_secs_f64() / each) as u64)
}

/// Measures prompts and decoding of a shape on a device alone.
pub fn speed(
    shape: &str,
    target: &Target,
    others: &DeviceOptions,
    budget: &Budget,
) -> Result<Measured, CliError> {
    let cut = CutShape::new(shape, most_bytes(target, budget))?;
    let devices = target.devices(others);
    speed_with(cut, OpenOptions { devices, ..OpenOptions::default() }, budget)
}

/// Hears which devices are chosen.
#[derive(Debug, Default)]
struct Chosen(Mutex<String>);

impl OpenObserver for Chosen {
    fn placed(&self, sentence: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sentence.to_string();
    }
}

/// Says what is chosen for a shape where no device is named, and measures that, if it is not the CPU
/// alone.
pub fn choice(
    shape: &str,
    cpu: &Target,
    others: &DeviceOptions,
    budget: &Budget,
) -> Result<Measured, CliError> {
    let cut = CutShape::new(shape, most_bytes(cpu, budget))?;
    let heard = Arc::new(Chosen::default());
    let devices = DeviceOptions { auto: Some(gpu::auto(None)), ..others.clone() };
    let observer = Some(heard.clone() as Arc<dyn OpenObserver>);
    let context = Some(2 * (PROMPT + DECODED));
    let options = OpenOptions { devices, observer, context, ..OpenOptions::default() };
    let options = options.chosen(&cut.name, &cut.spec, &cut.lazy())?;
    let sentence = heard.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if options.devices.devices.is_empty() {
        let says = "the CPU alone".to_string();
        return Ok(Measured { says, result: json!({ "devices": ["cpu"], "why": sentence }) });
    }
    let mut measured = speed_with(cut, options, budget)?;
    measured.says.push_str(&format!(" ({sentence})"));
    measured.result["why"] = sentence.into();
    Ok(measured)
}

fn speed_with(
    cut: CutShape,
    mut options: OpenOptions,
    budget: &Budget,
) -> Result<Measured, CliError> {
    options.context = Some(2 * (PROMPT + DECODED));
    let store = WeightStore::synthetic(&cut.spec, cut.mix, 1, options.quant);
    let (layers, all) = (cut.spec.layers.len(), cut.all);
    let bound = BoundModel { devices: options.open_devices()?, spec: cut.spec, store };
    let model = Model::open_bound(&cut.name, bound, &options)?;
    let prompt = prompts(&model, budget)?;
    let (decode, joules) = decoding(&model, budget)?;
    let rate = |r: Option<f64>| r.map_or("no time".into(), |r| format!("{r:.1} tok/s"));
    let mut says = format!("prompt {}, decode {}", rate(prompt), rate(decode));
    if layers < all {
        says.push_str(&format!(", {layers} of {all} layers"));
    }
    if let Some(joules) = joules {
        says.push_str(&format!(", {joules:.2} J a token"));
    }
    let plan = model.plan();
    let result = json!({
        "layers": layers, "of_layers": all, "devices": plan.devices,
        "strategy": plan.strategy, "prompt_tokens": PROMPT, "prompt_per_s": prompt,
        "decode_per_s": decode, "joules_per_token": joules,
    });
    Ok(Measured { says, result })
}

/// Tokens per second of prompts: the middle of as many as there is time for.
fn prompts(model: &Model, budget: &Budget) -> Result<Option<f64>, CliError> {
    let (mut rates, mut logits) = (Vec::new(), Vec::new());
    for i in 0..=PROMPTS {
        if !budget.goes_on() {
            break;
        }
        let (mut session, tokens) = (session(model)?, ids(PROMPT, i * PROMPT, model.spec().vocab));
        let start = Instant::now();
        feed(&mut session, Phase::Prefill, &tokens, &mut logits)?;
        // The first one warms up.
        rates.extend((i > 0).then(|| PROMPT as f64 / start.elapsed().as_secs_f64()));
    }
    Ok(median(rates))
}

/// Tokens per second while decoding, and joules for each where they can be read.
fn decoding(model: &Model, budget: &Budget) -> Result<(Option<f64>, Option<f64>), CliError> {
    let (mut session, mut logits) = (session(model)?, Vec::new());
    let tokens = ids(DECODED + 1, 0, model.spec().vocab);
    feed(&mut session, Phase::Decode, &tokens[..1], &mut logits)?;
    let meter = EnergyMeter::find(Path::new("/sys")).ok();
    let metering = meter.as_ref().and_then(|meter| meter.start(LOOK));
    let (start, mut done) = (Instant::now(), 0);
    while done < DECODED && budget.goes_on() {
        feed(&mut session, Phase::Decode, &tokens[done + 1..done + 2], &mut logits)?;
        done += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let joules = metering.and_then(Metering::stop).filter(|_| done > 0);
    let rate = (done > 0).then(|| done as f64 / seconds);
    Ok((rate, joules.map(|joules| joules / done as f64)))
}
