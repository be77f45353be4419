//! Compares models with logits and greedy tokens of the reference library.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use troika::engine::sample::SampleParams;
use troika::engine::{EngineError, WantedLogits};
use troika::plan::Plan;
use troika::weights::{FloatType, parse_safetensors};
use troika::{
    Control, DeviceOptions, DeviceSpec, Model, OpenOptions, Request, make_plan, open_devices,
};
pub use troika_check::relative_error;

/// Usually allowed difference from the reference, relative to the largest logit.
pub const REFERENCE_TOLERANCE: f32 = 2e-4;
/// Allowed difference between chunkings on devices of like numerics, relative to the largest logit:
/// GPUs sum products of few rows in another order than those of many.
pub const CHUNK_TOLERANCE: f32 = 2e-5;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A model with its reference outputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name in reports.
    pub name: String,
    /// Folder or .gguf file.
    pub model: PathBuf,
    /// safetensors with `input_ids`, `logits`, `greedy`.
    pub golden: PathBuf,
}

/// Reference outputs.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Prompt.
    pub input_ids: Vec<u32>,
    /// `[T, V]`.
    pub logits: Vec<f32>,
    /// Tokens that greedy decoding appends.
    pub greedy: Vec<u32>,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// Largest difference from the reference, relative to the largest logit.
    pub error: f32,
    /// Largest difference between any two chunkings, relative to the largest logit.
    pub chunk_error: f32,
    /// Whether the greedy tokens equal the reference's.
    pub greedy: bool,
    /// Whether all devices compute by the same code. Otherwise chunks that meet other devices
    /// differ as much as devices do.
    pub alike: bool,
    /// Whether the result is bit-identical to that of a single device, where it must be.
    pub same_bits: Option<bool>,
    /// Prompt tokens.
    pub tokens: usize,
    /// How many of them the reference has. A context that ends before is checked as far as it goes,
    /// without greedy tokens.
    pub of: usize,
}

impl Report {
    /// Whether all of the reference was checked, tokens are the reference's, and logits differ by no
    /// more than is allowed: from the reference by `tolerance`.
    pub fn holds(&self, tolerance: f32) -> bool {
        self.tokens == self.of && self.holds_in_context(tolerance)
    }

    /// The same of the tokens that the model's context takes.
    pub fn holds_in_context(&self, tolerance: f32) -> bool {
        self.greedy
            && self.same_bits != Some(false)
            && self.error <= tolerance
            && self.chunk_error <= if self.alike { CHUNK_TOLERANCE } else { tolerance }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let greedy = if self.greedy { "same" } else { "DIFFER" };
        write!(
            f,
            "max error {:.2e}  chunked {:.2e}  greedy {greedy}  ({} tokens)",
            self.error, self.chunk_error, self.tokens
        )?;
        if self.tokens < self.of {
            write!(f, "  the context ends {} tokens before the reference", self.of - self.tokens)?;
        }
        match self.same_bits {
            None => Ok(()),
            Some(true) => f.write_str("  bits of one device"),
            Some(false) => f.write_str("  bits DIFFER from one device's"),
        }
    }
}

/// All cases in a folder: checkpoint folders, and .gguf files with a .safetensors beside them.
///
/// # Errors
/// The folder cannot be read.
pub fn find(dir: &Path) -> std::io::Result<Vec<Case>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    paths.push(dir.to_path_buf());
    let mut cases = Vec::new();
    for path in paths {
        let (name, golden) = match path.extension() {
            _ if path.is_dir() => (path.file_name(), path.join("golden.safetensors")),
            Some(e) if e == "gguf" => (path.file_stem(), path.with_extension("safetensors")),
            _ => continue,
        };
        if golden.exists() {
            let name = name.unwrap_or_default().to_string_lossy().into_owned();
            cases.push(Case { name, model: path, golden });
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

/// Reads reference outputs.
///
/// # Errors
/// The file lacks them.
pub fn read_golden(path: &Path) -> Result<Golden> {
    let bytes = std::fs::read(path)?;
    let entries = parse_safetensors(&bytes, bytes.len())?;
    let get = |name: &str| {
        let e = entries.get(name).ok_or_else(|| format!("{}: no {name}", path.display()))?;
        Ok::<_, Box<dyn std::error::Error>>(&bytes[e.range.clone()])
    };
    let ids = |b: &[u8]| -> Vec<u32> {
        b.as_chunks::<8>().0.iter().map(|c| i64::from_le_bytes(*c) as u32).collect()
    };
    Ok(Golden {
        input_ids: ids(get("input_ids")?),
        logits: get("logits")?.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
        greedy: ids(get("greedy")?),
    })
}

/// What is changed of the plan that options make.
pub type PlanChange<'a> = &'a dyn Fn(&mut Plan);

/// Opens a model with the plan that its options make, changed.
///
/// # Errors
/// The model does not open.
pub fn open_changed(model: &Path, options: &OpenOptions, change: PlanChange<'_>) -> Result<Model> {
    let mut plan = make_plan(model, options)?.plan;
    change(&mut plan);
    Ok(Model::open(model, &OpenOptions { plan: plan.into(), ..options.clone() })?)
}

/// Logits of all positions of a prompt.
///
/// # Errors
/// An error of the engine.
pub fn all_logits(model: &Model, tokens: &[u32]) -> Result<Vec<f32>> {
    let mut out = Vec::new();
    model.session()?.feed(tokens, WantedLogits::All, &mut |_, row| out.extend_from_slice(row))?;
    Ok(out)
}

/// The bits of floats.
pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

/// A request for so many tokens, each of them the likeliest.
pub fn greedy_request(n: usize) -> Request {
    let params = SampleParams { temperature: 0.0, ..SampleParams::default() };
    Request { params, max_tokens: Some(n), ignore_eos: true, ..Request::default() }
}

/// Greedy continuation of a prompt.
///
/// # Errors
/// An error of the engine.
pub fn greedy(model: &Model, prompt: &[u32], n: usize) -> Result<Vec<u32>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    Ok(model.session()?.generate(prompt, &greedy_request(n), &mut |_, _| Control::Continue)?.tokens)
}

/// Runs a case on the devices of the options, divided as they say: whole prompt, chunked, token by
/// token, and greedy decoding, all in f32.
///
/// # Errors
/// The model does not open or run.
pub fn check(case: &Case, options: &OpenOptions) -> Result<Report> {
    check_with(case, options, None)
}

/// The same with plans that are changed.
///
/// # Errors
/// The model does not open or run.
pub fn check_with(
    case: &Case,
    options: &OpenOptions,
    change: Option<PlanChange<'_>>,
) -> Result<Report> {
    let open = |chunk: usize, options: &OpenOptions, change: Option<PlanChange<'_>>| {
        let (dtype, chunk) = (FloatType::F32, Some(chunk));
        let options = OpenOptions { dtype, chunk, ..options.clone() };
        match change {
            Some(change) => open_changed(&case.model, &options, change),
            None => Ok(Model::open(&case.model, &options)?),
        }
    };
    let opened = open_devices(&options.devices)?.into_iter();
    let alike = opened.map(|d| d.caps().numerics.clone()).collect::<HashSet<_>>().len() == 1;
    let mut golden = read_golden(&case.golden)?;
    let of = golden.input_ids.len();
    let whole = open(of + 3, options, change)?;
    let tokens = of.min(whole.context());
    if tokens < of {
        golden.greedy.clear();
        golden.input_ids.truncate(tokens);
        golden.logits.truncate(golden.logits.len() / of * tokens);
    }
    if let Some(device) = whole.engine()?.silent() {
        return Err(EngineError::NoNumerics(device.into()).into());
    }
    let logits = all_logits(&whole, &golden.input_ids)?;
    let mut report = Report {
        error: relative_error(&logits, &golden.logits),
        chunk_error: 0.0,
        greedy: greedy(&whole, &golden.input_ids, golden.greedy.len())? == golden.greedy,
        alike,
        same_bits: None,
        tokens,
        of,
    };
    // A device with the same numerics that takes everything.
    let specs = &options.devices.devices;
    let first: Vec<DeviceSpec> =
        specs.iter().find(|s| s.processor.is_none()).cloned().into_iter().collect();
    let compare = alike && *specs != first;
    let first = DeviceOptions { devices: first, ..options.devices.clone() };
    let first = OpenOptions { devices: first, ..OpenOptions::default() };
    for chunk in [1, 7, 16] {
        let model = open(chunk, options, change)?;
        let chunked = all_logits(&model, &golden.input_ids)?;
        if compare {
            let alone = all_logits(&open(chunk, &first, None)?, &golden.input_ids)?;
            let same = bits(&alone) == bits(&chunked);
            report.same_bits = Some(same && report.same_bits != Some(false));
        }
        report.chunk_error = report.chunk_error.max(relative_error(&chunked, &logits));
        report.greedy &= greedy(&model, &golden.input_ids, golden.greedy.len())? == golden.greedy;
    }
    Ok(report)
}
