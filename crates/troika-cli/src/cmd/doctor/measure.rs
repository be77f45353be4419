//! The measurements of `troika doctor --report`, and the time that they may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use troika::graph::DType;
use troika::weights::WeightStore;
use troika::{
    BoundModel, DeviceOptions, DeviceSpec, Model, OpenOptions, check_device, free_memory,
    measure_limits, open_devices,
};
use troika_lab::{HandOverBy, ProfileOptions, Shape, Subject, measure_hand_overs, profile};

use super::presets::SMALL;
use crate::cmd::bench;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::progress::counting;

/// Tokens of prompts, and how many are decoded.
const PROMPT: usize = 128;
const DECODED: usize = 16;
/// Seconds for a byte of weights to make it and to decode with it, and those of a thread to compute
/// prompts with it: only to foresee how many layers there is time for.
const MADE: f64 = 9e-9;
const COMPUTED: f64 = 34e-9;

/// The time that is left, which Ctrl-C ends.
#[derive(Clone)]
pub struct Budget {
    pub end: Instant,
    pub interrupt: Interrupt,
}

impl Budget {
    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether there is some.
    pub fn goes_on(&self) -> bool {
        !self.interrupt.pressed() && !self.left().is_zero()
    }

    /// The part of one of several steps: twice its share, since many need less.
    pub fn part(&self, steps: usize) -> Budget {
        let part = (self.left() * 2 / steps as u32).min(self.left());
        Budget { end: Instant::now() + part, ..self.clone() }
    }
}

/// What was measured, for people and in numbers.
pub type Measured = Result<(String, Value), CliError>;

/// Compares the kernels of a device with the reference's.
pub fn kernels(device: &DeviceOptions, budget: &Budget) -> Measured {
    let (mut count, mut of) = (counting("checking"), 0);
    let mut progress = |done, all| {
        count(done, all);
        of = all;
        budget.goes_on()
    };
    let devices = open_devices(device)?;
    let checked = devices.iter().map(|device| check_device(&**device, &mut progress));
    let checked = checked.collect::<Result<Vec<_>, _>>()?.concat();
    let faults = checked.iter().filter_map(|k| Some(format!("{}: {}", k.name, k.fault.as_ref()?)));
    let faults: Vec<String> = faults.collect();
    let fine = checked.len() - faults.len();
    let mut says = format!("{fine} of {of} as the CPU's");
    if checked.len() < of {
        says.push_str(&format!("; {} not compared in this time", of - checked.len()));
    }
    faults.iter().for_each(|fault| says.push_str(&format!("; {fault}")));
    Ok((says, json!({ "compared": checked.len(), "of": of, "as_the_cpu": fine })))
}

/// Measures what a device reaches at most.
pub fn limits(device: &DeviceOptions) -> Measured {
    let limits = measure_limits(device)?;
    let mut says = format!("reads {:.1} GB/s", limits.read);
    let mut result = json!({ "read_gb_per_s": limits.read });
    for way in &limits.multiply {
        says.push_str(&format!(", {} {:.0} {}", way.words, way.value, way.unit));
        result[way.name] = way.value.into();
    }
    Ok((says, result))
}

/// The same devices, and the CPU.
fn with_cpu(device: &DeviceOptions) -> DeviceOptions {
    let mut both = device.clone();
    both.devices.push(DeviceSpec::default());
    both
}

/// Measures hand-overs from a device to the CPU and back, or between two of the CPU's queues.
pub fn hand_overs(device: &DeviceOptions, budget: &Budget) -> Measured {
    let (mut says, mut result) = (Vec::new(), json!({}));
    let mut add = |name: &str, us: f64| {
        says.push(format!("{name} {us:.1} us"));
        result[name] = us.into();
    };
    if device.devices.iter().all(DeviceSpec::is_cpu) {
        let ways = [("predicted", HandOverBy::Predicting), ("asleep", HandOverBy::Blocking)];
        for (name, by) in ways {
            let found = measure_hand_overs(by, 200, Duration::from_micros(500))?;
            add(name, found.p50().as_secs_f64() * 1e6);
        }
        return Ok((says.join(", "), result));
    }
    let ends = Arc::new(AtomicBool::new(false));
    let open = OpenOptions { devices: with_cpu(device), ..open_options() };
    let options = ProfileOptions { open, file: None, soc: false, cancel: Some(ends.clone()) };
    let mut count = counting("measuring");
    let outcome = profile(&Subject::Synthetic(SMALL.into()), &options, &mut |done, all| {
        count(done, all);
        ends.store(!budget.goes_on(), Ordering::SeqCst);
    })?;
    if outcome.profile.pairs.is_empty() {
        return Err(CliError::Failure("the time was too short".into()));
    }
    for pair in &outcome.profile.pairs {
        let to = if pair.from == 0 { "to the CPU" } else { "back" };
        add(&format!("{to}, predicted"), pair.predicted_ns.median / 1e3);
        add(&format!("{to}, asleep"), pair.blocking_ns.median / 1e3);
    }
    Ok((says.join(", "), result))
}

fn open_options() -> OpenOptions {
    OpenOptions { context: Some(512), ..OpenOptions::default() }
}

/// Bytes of weights that there is time and memory for.
fn most_bytes(device: &DeviceOptions, memory: Option<u64>, budget: &Budget) -> u64 {
    let cpu = device.devices.iter().all(DeviceSpec::is_cpu);
    let each = if cpu { MADE + COMPUTED / device.threads() as f64 } else { MADE };
    let free = free_memory().map_or(u64::MAX, |free| free / 2);
    let free = free.min(memory.map_or(u64::MAX, |memory| memory / 5 * 4));
    free.min((budget.left().as_secs_f64() / each) as u64)
}

/// Measures prompts and decoding with random weights of a shape, with as many layers as there is time
/// and memory for: on a device, or on those that are chosen.
pub fn speed(
    shape: &str,
    device: &DeviceOptions,
    memory: Option<u64>,
    budget: &Budget,
) -> Measured {
    let most = most_bytes(device, memory, budget);
    // The CPU takes what an NPU refuses.
    let npu = device.devices.iter().any(|spec| spec.npu.is_some());
    let devices = if npu { with_cpu(device) } else { device.clone() };
    let options = OpenOptions { devices, ..open_options() };
    let whole = Shape::find(shape, DType::BF16)?;
    let all = whole.spec.layers.len();
    let cut = |layers: usize| {
        let mut cut = whole.clone();
        cut.spec.layers.truncate(layers);
        cut
    };
    let bytes = |shape: &Shape| -> u64 {
        shape.lazy_weights(options.quant).classes().iter().map(|class| class.bytes).sum()
    };
    let layers = (2..=all).rev().find(|layers| bytes(&cut(*layers)) <= most).unwrap_or(1);
    let Shape { spec, mix, .. } = cut(layers);
    let lazy = WeightStore::synthetic_lazy(&spec, mix, 1, options.quant);
    let options = options.chosen(shape, &spec, &lazy)?;
    if options.devices.devices.is_empty() {
        return Ok(("the CPU alone".into(), json!({ "devices": ["cpu"] })));
    }
    let store = WeightStore::synthetic(&spec, mix, 1, options.quant);
    let bound = BoundModel { devices: options.open_devices()?, spec, store };
    let model = Model::open_bound(shape, bound, &options)?;
    let (prompt, prompt_j) = bench::rate(&model, PROMPT, 0)?;
    let (decode, joules) = bench::rate(&model, 0, DECODED)?;
    let (prompt_w, decode_w) = (prompt_j.map(|j| j * prompt), joules.map(|j| j * decode));
    let plan = model.plan();
    let mut says = format!("prompt {prompt:.1}, decode {decode:.1} tok/s");
    if layers < all {
        says.push_str(&format!(", {layers} of {all} layers"));
    }
    if let (Some(joules), Some(prompt_w), Some(decode_w)) = (joules, prompt_w, decode_w) {
        says += &format!(", {joules:.2} J a token, {prompt_w:.1} W and {decode_w:.1} W");
    }
    if plan.devices.len() > 1 {
        says.push_str(&format!(", {} by {}", plan.devices.join(", "), plan.strategy));
    }
    let result = json!({
        "layers": layers, "of_layers": all, "devices": plan.devices, "strategy": plan.strategy,
        "prompt_per_s": prompt, "decode_per_s": decode, "joules_per_token": joules,
        "prompt_watts": prompt_w, "decode_watts": decode_w,
    });
    Ok((says, result))
}
