//! What tests set up alike: models, devices, plans and requests.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod engines;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use troika::engine::{Engine, EngineError, SeqId, SequenceInput, WantedLogits};
use troika::npu::RuntimePlaces;
use troika::plan::{Phase, Plan, PlanDevice, PlanRequest, Strategy, make};
use troika::weights::FloatType;
use troika::{Described, DeviceOptions, Model, NpuSettings, OpenObserver, describe};
use troika_check::{DeviceCase, op_cases};
use troika_cpu::{CpuDevice, CpuOptions};
use troika_device::Device;
use troika_graph::DType;
use troika_sim::{Board, Soc, VirtualClock, VirtualDevice};

use conformance::golden::{Case, Golden, bits, read_golden};
use conformance::suite::model_cases;

/// A path within the repository.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The folder of a small model with the reference's outputs.
pub fn golden_dir(name: &str) -> PathBuf {
    root("tests/golden").join(name)
}

/// Such a model as a case.
pub fn case(name: &str) -> Case {
    let model = golden_dir(name);
    Case { name: name.into(), golden: model.join("golden.safetensors"), model }
}

/// The reference's outputs of such a model.
pub fn golden(name: &str) -> Golden {
    read_golden(&case(name).golden).unwrap()
}

/// Such a model with weights in f32.
pub fn described(name: &str) -> Described {
    describe(&golden_dir(name), FloatType::F32).unwrap()
}

/// Devices, as `troika run --device` takes them.
pub fn on(devices: &[&str]) -> DeviceOptions {
    let devices = devices.iter().map(|device| device.parse().unwrap()).collect();
    DeviceOptions { devices, ..DeviceOptions::default() }
}

/// A processor of a file in `socs`, which may be told behind a colon, as a device.
pub fn virtual_spec(name: &str, place: &str) -> String {
    format!("{name}=virtual:{}", root("socs").join(place).display())
}

/// The CPU as a device.
pub fn cpu(name: &str, threads: usize) -> Arc<dyn Device> {
    let options = CpuOptions { name: name.into(), threads, ..CpuOptions::default() };
    Arc::new(CpuDevice::new(options).unwrap())
}

/// A SoC file of two processors, of which the second one takes longer to begin.
pub const TWO_PROCESSORS: &str = "name = \"two\"
[[processor]]
name = \"a\"
kind = \"npu\"
peak_gops = 1.0
bandwidth_gb_s = 10.0
launch_us = 20.0
[[processor]]
name = \"b\"
kind = \"gpu\"
peak_gops = 1.0
bandwidth_gb_s = 10.0
launch_us = 50.0
";

/// The processors of a SoC file's text as devices, which share its memory.
pub fn processors(text: &str, clock: &Arc<VirtualClock>) -> Vec<Arc<dyn Device>> {
    let soc = Soc::parse("test.toml", text).unwrap();
    let board = Board::new(&soc, clock.clone());
    let devices = soc.processors.iter().map(|p| VirtualDevice::on(&board, &p.name, p).unwrap());
    devices.map(|device| Arc::new(device) as Arc<dyn Device>).collect()
}

/// Writes the text of a SoC file; its first processor as a device.
pub fn written_spec(dir: &Path, name: &str, text: &str) -> String {
    let file = dir.join(name).with_extension("toml");
    std::fs::write(&file, text).unwrap();
    format!("{name}=virtual:{}", file.display())
}

/// The text of a file of `socs/odd`.
pub fn odd_text(name: &str) -> String {
    std::fs::read_to_string(root("socs/odd").join(name).with_extension("toml")).unwrap()
}

/// A device named `off`, which computes nothing: its outputs stay unchanged.
pub fn spec_without_numerics(dir: &Path) -> String {
    let text = odd_text("queue-depth-1");
    let off = text.replacen("\n\n", "\nnumerics = \"off\"\n\n", 1);
    assert_ne!(off, text);
    written_spec(dir, "off", &off)
}

/// Segments of models with different layers.
pub fn segment_cases() -> Vec<DeviceCase> {
    let models = ["qwen3-moe", "gemma-2", "deepseek-v2", "gpt-oss", "phi-2"];
    models.iter().flat_map(|model| model_cases(&golden_dir(model)).unwrap()).collect()
}

/// Ops and such segments.
pub fn all_cases() -> Vec<DeviceCase> {
    op_cases().unwrap().into_iter().chain(segment_cases()).collect()
}

/// Settings of NPUs with a Python environment of their runtimes, which is made once.
pub fn npu_settings() -> NpuSettings {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let environment = MADE.get_or_init(|| {
        let environment = root("target/npu-runtimes");
        let made = Command::new(root(".ci/npu-runtimes")).arg(&environment).status().unwrap();
        assert!(made.success());
        environment
    });
    let runtime = RuntimePlaces { library: None, environments: vec![environment.clone()] };
    NpuSettings { runtime, ..NpuSettings::default() }
}

/// A request for a plan in f32 alone.
pub fn in_f32(strategy: Strategy, chunk: usize) -> PlanRequest {
    let (kv_dtype, activations) = (Some(DType::F32), Some(Vec::new()));
    PlanRequest { strategy, chunk, kv_dtype, activations, ..PlanRequest::default() }
}

/// The plan of a model for some devices.
pub fn plan_of(d: &Described, devices: &[Arc<dyn Device>], request: &PlanRequest) -> Plan {
    let facts: Vec<PlanDevice> = devices.iter().map(PlanDevice::of).collect();
    make(&d.spec, &facts, request).unwrap()
}

/// Feeds a sequence: several tokens as of a prompt, one as of an answer. Gives the logits behind
/// each.
///
/// # Errors
/// Those of [`Engine::run`].
pub fn feed(e: &mut Engine, seq: SeqId, tokens: &[u32]) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut rows = Vec::new();
    let fed = if tokens.len() == 1 { SequenceInput::decode } else { SequenceInput::prompt };
    e.run(&[fed(seq, tokens, WantedLogits::All)], &mut |_, _, row| rows.push(row.to_vec()))?;
    Ok(rows)
}

/// The logits behind each of a sequence's tokens.
pub fn logits_of(e: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let seq = e.open();
    let rows = feed(e, seq, tokens).unwrap();
    e.close(seq);
    rows
}

/// The bits of the logits of a prompt, which may take several chunks, and of tokens after it.
pub fn session_bits(model: &Model) -> Vec<u32> {
    let mut session = model.session().unwrap();
    let prompt: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % 200).collect();
    let mut all = Vec::new();
    let mut keep = |_: usize, row: &mut [f32]| all.extend(bits(row));
    session.feed(&prompt, WantedLogits::All, &mut keep).unwrap();
    for token in [7, 90, 13, 7, 150] {
        session.feed_as(Phase::Decode, &[token], WantedLogits::Last, &mut keep).unwrap();
    }
    all
}

/// Tokens of a text, another one for each seed.
pub fn some_tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 37 + i / 7 * seed + seed * 11) % 200) as u32).collect()
}

/// The token of the largest logit; of several, the first.
pub fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// Root mean square of the differences, relative to that of the reference. (The largest difference
/// says little: where a token's choice of experts changes, so do all its logits.)
pub fn relative_rms(got: &[f32], reference: &[f32]) -> f32 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let differences: f64 = got.iter().zip(reference).map(|(a, b)| square(a - b)).sum();
    (differences / reference.iter().map(|x| square(*x)).sum::<f64>()).sqrt() as f32
}

/// Keeps what is said of a model.
#[derive(Debug, Default)]
pub struct Told {
    /// Which devices are chosen.
    pub placed: Mutex<Vec<String>>,
    /// What happens later.
    pub noticed: Mutex<Vec<String>>,
}

impl OpenObserver for Told {
    fn placed(&self, sentence: &str) {
        self.placed.lock().unwrap().push(sentence.to_string());
    }

    fn notice(&self, sentence: &str) {
        self.noticed.lock().unwrap().push(sentence.to_string());
    }
}
