//! Opening a model: files, spec, weights, plan, engine, tokenizer.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use troika_device::{Clock, Device, RealClock};
use troika_engine::{
    CompileControl, Engine, EngineError, EngineParts, PhaseCopies, Sharing, copies,
};
use troika_graph::{ActivationFormat, DType};
use troika_model::chat::ChatTemplate;
use troika_model::lower::{LowerOptions, Lowered, lower};
use troika_model::spec::ModelSpec;
use troika_model::tokenizer::Tokenizer;
use troika_plan::{
    Alternative, Decide, DeviceFacts, Goal, Plan, PlanError, PlanRequest, Policy, ProfiledCosts,
    SolveDevice, SolveRequest, Solved, Strategy, SyncMode, check_memory, describe_refusals, solve,
};
use troika_trace::{Span, Tracer};
use troika_weights::{BindOptions, FileSource, FloatType, OnProgress, Quant, WeightStore};

use crate::by_load::about_load;
use crate::describe::{Described, describe};
use crate::devices::{DeviceOptions, computes_nothing, open_devices, virtual_clock};
use crate::driver::{Driver, EngineGuard};
use crate::error::Error;
use crate::generation::GenerationDefaults;
use crate::profile_file::{self, ProfileAt, solve_device};
use crate::source::Source;
use crate::subject::{Subject, synthetic};
use crate::text;

/// Weights of more bytes are not scanned at load: it would read all of them from disk.
const SCAN_LIMIT: u64 = 4 << 30;

/// How to open a model.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Type of float matrices. `Auto` also lets products take activations in eight bits with
    /// quantized weights and in bf16 with bf16 weights, where the device gains from it; with a
    /// type given, activations stay in f32.
    pub dtype: FloatType,
    /// Activation formats, besides f32, that products may take; `None`: as `dtype` says.
    pub activations: Option<Vec<ActivationFormat>>,
    /// Quantization of float matrices at load.
    pub quant: Quant,
    /// Folder where quantized weights are kept for the next start; `None`: they are not kept.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that folder may have: files that were not used for longest are removed.
    pub cache_bytes: Option<u64>,
    /// Told how far quantization has come.
    pub progress: Option<LoadProgress>,
    /// How compiling is watched and ended.
    pub compile: CompileControl,
    /// Longest sequence; `None`: the model's own.
    pub context: Option<usize>,
    /// Rows of a prompt chunk.
    pub chunk: usize,
    /// How the model is divided over the devices.
    pub strategy: Strategy,
    /// The order in which ready segments run.
    pub policy: Policy,
    /// Prompt chunks under way at once; `None`: as the planner sees fit.
    pub chunks_in_flight: Option<usize>,
    /// How devices wait for each other.
    pub sync: SyncMode,
    /// How sessions share the model.
    pub sharing: Sharing,
    /// A plan made before: it says what `context`, `chunk`, `kv_dtype`, `activations` and the four
    /// fields above would.
    pub plan: Option<Plan>,
    /// The file that `plan` was read from: errors of the plan name it.
    pub plan_file: Option<PathBuf>,
    /// By what it is decided where a chunk runs, of the ways that the plan holds.
    pub decide: Decide,
    /// Choose the plan by a profile, in place of `strategy`.
    pub solve: Option<SolveOptions>,
    /// Let other devices compute what those of `plan` refuse, instead of refusing the plan.
    pub fallback: bool,
    /// Type of the KV cache; `None`: f32 when computing in f32, else f16.
    pub kv_dtype: Option<DType>,
    /// Type of the values between segments: F32, F16 or BF16.
    pub values: DType,
    /// Devices.
    pub devices: DeviceOptions,
    /// Look for NaN and infinities in weights that are used as the files have them, if these are
    /// up to 4 GiB: it reads all of them. Those that are quantized are looked at in any case.
    pub scan: bool,
    /// Spans.
    pub tracer: Tracer,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            dtype: FloatType::Auto,
            activations: None,
            quant: Quant::None,
            cache_dir: None,
            cache_bytes: None,
            progress: None,
            compile: CompileControl::default(),
            context: None,
            chunk: 512,
            strategy: Strategy::default(),
            policy: Policy::default(),
            chunks_in_flight: None,
            sync: SyncMode::default(),
            sharing: Sharing::default(),
            plan: None,
            plan_file: None,
            decide: Decide::default(),
            solve: None,
            fallback: false,
            kv_dtype: None,
            values: DType::F32,
            devices: DeviceOptions::default(),
            scan: false,
            tracer: Tracer::off(),
        }
    }
}

impl OpenOptions {
    /// How weights are bound.
    pub(crate) fn bind(&self) -> BindOptions {
        BindOptions { float: self.dtype, quant: self.quant }
    }
}

/// How a plan is chosen by a profile.
#[derive(Clone, Debug)]
pub struct SolveOptions {
    /// The profile.
    pub profile: ProfileAt,
    /// What the plan is to be best at.
    pub goal: Goal,
    /// Tokens of the prompt that it is to be best for; `None`: 512, or the context.
    pub prompt: Option<usize>,
    /// Tokens that are generated after it; `None`: 128, or what the context leaves.
    pub generate: Option<usize>,
    /// Weights may be held in several forms.
    pub several_copies: bool,
}

impl SolveOptions {
    /// Tokens of the prompt and after it, within the context.
    fn lengths(&self, context: usize) -> Result<(usize, usize), PlanError> {
        let within = |what, value: Option<usize>, (low, high), default: usize| match value {
            Some(got) if got < low || got > high => Err(PlanError::Range { what, got, low, high }),
            value => Ok(value.unwrap_or(default.min(high))),
        };
        let prompt = within("the length of prompts", self.prompt, (1, context), 512)?;
        let rest = context - prompt;
        let generate = within("the count of generated tokens", self.generate, (0, rest), 128)?;
        Ok((prompt, generate))
    }
}

/// Receives (weights quantized, weights to quantize) while a model is opened.
#[derive(Clone)]
pub struct LoadProgress(pub OnProgress);

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadProgress")
    }
}

/// The plan that opening a model would make.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// A sentence for each device whose refusals changed it, and for what else is to be known of it.
    pub changes: Vec<String>,
    /// Where it was chosen by a profile, the plans that it beat, the best first.
    pub alternatives: Vec<Alternative>,
    model: (ModelSpec, WeightStore),
    devices: Vec<Arc<dyn Device>>,
}

impl Planned {
    /// What the plan copies between memories for a chunk of a prompt and for a decoded token.
    ///
    /// # Errors
    /// What keeps the plan from being run.
    pub fn copies(&self) -> Result<Vec<PhaseCopies>, Error> {
        let (spec, store) = &self.model;
        Ok(copies(spec, &|key| store.shape(key), &self.plan, &self.devices)?)
    }
}

/// The plan that opening a model with these options would make.
///
/// # Errors
/// As [`Model::open`], but that nothing is compiled.
pub fn make_plan(subject: &Subject, options: &OpenOptions) -> Result<Planned, Error> {
    let devices = open_devices(&options.devices)?;
    let model = subject.described(options.bind(), true)?;
    let (plan, changes, alternatives) = plan_of(&model.0, &model.1, options, &devices)?;
    Ok(Planned { plan, changes, alternatives, model, devices })
}

/// The plan on the first device that the options describe.
pub(crate) fn one_device_plan(
    spec: &ModelSpec,
    store: &WeightStore,
    options: &OpenOptions,
    devices: &[Arc<dyn Device>],
) -> Result<Plan, Error> {
    let strategy = Strategy::OneDevice;
    let kv_dtype = options.kv_dtype.or(solved_kv_dtype(store, options, devices));
    let options = OpenOptions { strategy, kv_dtype, ..options.clone() };
    Ok(new_plan(spec, store, &options, devices)?)
}

/// The type of the cache where placements are chosen by their price, if it is not the default of
/// the devices that a plan comes to use: one for all placements, as runs are measured with one.
fn solved_kv_dtype(
    store: &WeightStore,
    options: &OpenOptions,
    devices: &[Arc<dyn Device>],
) -> Option<DType> {
    let request = plan_request(store, options);
    let gains = |d: &Arc<dyn Device>| match &request.activations {
        Some(list) => list.contains(&ActivationFormat::Bf16),
        None => d.caps().activation_formats.contains(&ActivationFormat::Bf16),
    };
    // The others read it, too, but do not gain from it.
    (!request.single_precision && devices.iter().any(gains)).then_some(DType::BF16)
}

/// What an open model is made of, wherever it came from.
struct Parts {
    name: String,
    spec: ModelSpec,
    store: WeightStore,
    text: (Option<Arc<Tokenizer>>, Option<ChatTemplate>),
    defaults: GenerationDefaults,
    warnings: Vec<String>,
}

/// An open model. Clones are the same model; it is closed with the last of them and of its
/// sessions.
#[derive(Clone)]
pub struct Model {
    pub(crate) opened: Arc<Opened>,
}

pub(crate) struct Opened {
    pub name: String,
    pub spec: ModelSpec,
    pub store: WeightStore,
    pub driver: Driver,
    /// Longest sequence.
    pub context: usize,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    pub defaults: GenerationDefaults,
    pub clock: Arc<dyn Clock>,
    pub computes: bool,
    pub tracer: Tracer,
    pub warnings: Vec<String>,
    pub load_time: Duration,
}

impl Model {
    /// Opens a folder, a .gguf file or the built-in model on this machine's devices.
    ///
    /// # Errors
    /// Anything from a missing file to a device that refuses an op.
    pub fn open(source: impl Into<Source>, options: &OpenOptions) -> Result<Model, Error> {
        let devices = open_devices(&options.devices)?;
        Model::open_on(source, options, &devices)
    }

    /// Opens a model on given devices.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_on(
        source: impl Into<Source>,
        options: &OpenOptions,
        devices: &[Arc<dyn Device>],
    ) -> Result<Model, Error> {
        let source = source.into();
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let start = clock.now();
        let mut described = describe(&source, options.bind())?;
        let (tokenizer, template, mut warnings) = text::load(&described.files.source)?;
        warnings.extend_from_slice(described.store.warnings());
        if options.quant != Quant::None && !described.store.makes_weights() {
            let quant = options.quant.name();
            warnings.push(format!("quantization to {quant} changes nothing: matrices are of that type or quantized already"));
        }
        warnings.extend(keep_packed(&mut described, options));
        let report = described.store.report();
        if options.scan && report.mapped + report.owned <= SCAN_LIMIT {
            warnings.extend(non_finite(&described.store.scan_non_finite()));
        }
        let vocab = described.spec.vocab;
        let (mut defaults, about) = GenerationDefaults::read(&described.files.source, vocab);
        warnings.extend(about);
        if let Some(t) = &tokenizer {
            let by_name = matches!(described.files.source, FileSource::Gguf { .. });
            defaults.add_from_tokenizer(t, by_name);
        }
        // The tokenizer was made of them. What making it took goes back before weights are packed.
        drop(described.files);
        troika_device::trim_heap();
        let parts = Parts {
            name: source.to_string(),
            spec: described.spec,
            store: described.store,
            text: (tokenizer.map(Arc::new), template),
            defaults,
            warnings,
        };
        Model::assemble(parts, options, devices, clock, start)
    }

    /// A model of a known shape with random weights, for measurements: the shape's name, or
    /// `NAME:TYPE` (`qwen3-0.6b:Q4_0`); without a type, bf16.
    ///
    /// # Errors
    /// An unknown name or type, or as [`Model::open`].
    pub fn synthetic(preset: &str, options: &OpenOptions) -> Result<Model, Error> {
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let start = clock.now();
        let devices = open_devices(&options.devices)?;
        let (spec, store) = synthetic(preset, options.quant, devices.iter().all(computes_nothing))?;
        let parts = Parts {
            name: preset.into(),
            store,
            spec,
            text: (None, None),
            defaults: GenerationDefaults::default(),
            warnings: Vec::new(),
        };
        Model::assemble(parts, options, &devices, clock, start)
    }

    fn assemble(
        parts: Parts,
        options: &OpenOptions,
        devices: &[Arc<dyn Device>],
        clock: Arc<dyn Clock>,
        start: Duration,
    ) -> Result<Model, Error> {
        let Parts { name, spec, mut store, text: (tokenizer, template), defaults, mut warnings } =
            parts;
        if let Some(progress) = &options.progress {
            store.on_progress(progress.0.clone());
        }
        let of_plan = |e: Error| e.of_plan(options.plan_file.as_deref());
        let planned = plan_of(&spec, &store, options, devices);
        let (plan, changes, _) = planned.map_err(of_plan)?;
        warnings.extend(changes);
        let used = devices.iter().filter(|d| plan.devices.iter().any(|name| name == d.name()));
        let silent = used.clone().find(|d| computes_nothing(d));
        warnings.extend(silent.map(|d| {
            let name = d.name();
            format!("device {name} computes nothing (its numerics are off): tokens are counted up, not generated")
        }));
        let computes = silent.is_none();
        // Opening takes real time in any case.
        let modelled = virtual_clock(used);
        let (opened, clock) = (clock.clone(), modelled.clone().unwrap_or(clock));
        let parts = EngineParts {
            spec: &spec,
            shapes: &|key| store.shape(key),
            weights: &store,
            plan,
            devices,
            clock: clock.clone(),
            tracer: options.tracer.clone(),
            sharing: options.sharing,
        };
        let engine = Engine::compiled(parts, &options.compile).map_err(|e| of_plan(e.into()))?;
        warnings.extend(store.finish_packed());
        warnings.extend(non_finite(&store.non_finite()));
        let load_time = opened.now() - start;
        let opened = Opened {
            name,
            spec,
            store,
            context: engine.plan().context,
            driver: Driver::new(engine),
            tokenizer,
            template,
            defaults,
            clock,
            computes,
            tracer: options.tracer.clone(),
            warnings,
            load_time,
        };
        if modelled.is_none() {
            opened.record("load", start);
        }
        Ok(Model { opened: Arc::new(opened) })
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.opened.spec
    }

    /// The weights.
    pub fn store(&self) -> &WeightStore {
        &self.opened.store
    }

    /// The engine itself, for its facts and for callers that feed it beside all sessions: while it
    /// is held, no session goes on.
    ///
    /// # Errors
    /// This thread has it already, or is in the middle of a step.
    pub fn engine(&self) -> Result<EngineGuard<'_>, Error> {
        self.opened.driver.engine()
    }

    /// What times of this model go by: real time, or that of its virtual devices.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.opened.clock
    }

    /// Whether there are logits to read: not where a device only models time.
    pub fn computes(&self) -> bool {
        self.opened.computes
    }

    /// Longest sequence.
    pub fn context(&self) -> usize {
        self.opened.context
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.opened.tokenizer.as_deref()
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.opened.template.is_some()
    }

    /// What the model's authors recommend.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.opened.defaults
    }

    /// Things a user should know, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.opened.warnings
    }

    /// Time to open.
    pub fn load_time(&self) -> Duration {
        self.opened.load_time
    }
}

impl Opened {
    /// A span on the host's lane that ends now.
    pub(crate) fn record(&self, name: &'static str, start: Duration) {
        if self.tracer.enabled() {
            let end = self.clock.now();
            let lane = "host".into();
            self.tracer.record(Span { name: name.into(), lane, start, end, args: Vec::new() });
        }
    }
}

/// The plan of the options, or the one that they describe. Ops that a device refuses go to others:
/// a plan made here is changed so and the change reported, a given one only with `fallback`.
fn plan_of(
    spec: &ModelSpec,
    store: &WeightStore,
    options: &OpenOptions,
    devices: &[Arc<dyn Device>],
) -> Result<(Plan, Vec<String>, Vec<Alternative>), Error> {
    let names: Vec<&str> = devices.iter().map(|d| d.name()).collect();
    let (mut alternatives, mut changes) = (Vec::new(), Vec::new());
    let mut plan = match (&options.plan, &options.solve) {
        (Some(plan), _) => {
            plan.check(spec, &names)?;
            let find = |name: &str| devices.iter().find(|d| d.name() == name);
            plan.check_shapes(&|name| find(name).is_some_and(|d| d.caps().static_shapes))?;
            let plan = plan.clone().decided(options.decide);
            if devices.iter().any(|d| d.caps().max_resident_bytes.is_some()) {
                let devices: Vec<SolveDevice> = devices.iter().map(solve_device).collect();
                check_memory(&plan, &lowered(spec, store, &plan)?, &devices)?;
            }
            plan
        }
        (None, wanted) => {
            let solved = match wanted {
                Some(wanted) => solved(spec, store, (options, wanted), devices, &mut changes)?,
                None => None,
            };
            match solved {
                Some(solved) => {
                    alternatives = solved.alternatives;
                    solved.plan
                }
                None => new_plan(spec, store, options, devices)?,
            }
        }
    };
    let refusals = troika_engine::examine(spec, &|key| store.shape(key), &plan, devices)?;
    if options.plan.is_some() && !options.fallback {
        return match plan.refused(&refusals).first() {
            Some(refusal) => Err(PlanError::NotTaken(Box::new((*refusal).clone())).into()),
            None => {
                changes.extend(about_load(&plan, options.decide, devices));
                Ok((plan, changes, alternatives))
            }
        };
    }
    let met = plan.avoid(&refusals, &names)?;
    changes.extend(describe_refusals(&plan, &met));
    changes.extend(about_load(&plan, options.decide, devices));
    Ok((plan, changes, alternatives))
}

/// The model within the bounds of a plan.
pub(crate) fn lowered(
    spec: &ModelSpec,
    store: &WeightStore,
    plan: &Plan,
) -> Result<Lowered, Error> {
    let bounds = LowerOptions {
        max_rows: plan.prefill.chunk,
        max_kv: plan.context,
        kv_dtype: plan.kv_dtype,
    };
    Ok(lower(spec, &|key| store.shape(key), bounds).map_err(EngineError::from)?)
}

/// The plan that a profile says is best; `None` without a profile where none is asked for.
fn solved(
    spec: &ModelSpec,
    store: &WeightStore,
    (options, wanted): (&OpenOptions, &SolveOptions),
    devices: &[Arc<dyn Device>],
    changes: &mut Vec<String>,
) -> Result<Option<Solved>, Error> {
    let one = one_device_plan(spec, store, options, devices)?;
    let here = profile_file::subject_of(spec, store, &one, devices);
    let file = profile_file::file_of(&wanted.profile, &here);
    match wanted.profile {
        ProfileAt::IfIn(_) if !file.exists() => return Ok(None),
        ProfileAt::Folder(_) if !file.exists() => {
            return Err(Error::NoKeptProfile { file: file.display().to_string() });
        }
        _ => {}
    }
    let measured = match (profile_file::read(&file, &here), &wanted.profile) {
        // Nobody asked for this profile.
        (Err(e), ProfileAt::IfIn(_)) => {
            changes.push(format!("no profile is used: {e}"));
            return Ok(None);
        }
        (measured, _) => measured?,
    };
    let (prompt, generate) = wanted.lengths(one.context)?;
    let (known, asked) = (measured.most_positions(), prompt + generate);
    if asked > known {
        changes.push(format!(
            "{}: the profile was measured with up to {known} tokens, and the plan is for {asked}, so \
             its predictions are extrapolated; measure with a larger context (troika profile -c)",
            file.display()
        ));
    }
    let base = PlanRequest { kv_dtype: Some(one.kv_dtype), ..plan_request(store, options) };
    let (lowered, shapes) = (lowered(spec, store, &one)?, |key| store.shape(key));
    // What a device refuses on any plan, whatever that plan would have it compute.
    let refusals = troika_engine::examine(spec, &shapes, &one, devices)?;
    let devices: Vec<SolveDevice> = devices.iter().map(solve_device).collect();
    let refuse = |error| Error::Profile { file: file.display().to_string(), error };
    let cost = ProfiledCosts::new(&measured, &devices).map_err(refuse)?;
    let request = SolveRequest {
        spec,
        lowered: &lowered,
        devices: &devices,
        cost: &cost,
        refusals: &refusals,
        goal: wanted.goal,
        base: &base,
        prompt,
        generate,
        several_copies: wanted.several_copies,
        lengths: &[],
        candidates: &[],
        by_load: options.decide == Decide::Load,
    };
    Ok(Some(solve(&request)?))
}

/// The plan that the options describe.
fn new_plan(
    spec: &ModelSpec,
    store: &WeightStore,
    options: &OpenOptions,
    devices: &[Arc<dyn Device>],
) -> Result<Plan, PlanError> {
    let devices: Vec<DeviceFacts> = devices.iter().map(|d| DeviceFacts::of(&**d)).collect();
    troika_plan::make(spec, &devices, &plan_request(store, options))
}

/// What the options ask of a plan.
fn plan_request(store: &WeightStore, options: &OpenOptions) -> PlanRequest {
    // With a type given, activations stay in f32.
    let f32_only = (options.dtype != FloatType::Auto).then(Vec::new);
    PlanRequest {
        strategy: options.strategy,
        context: options.context,
        chunk: options.chunk,
        chunks_in_flight: options.chunks_in_flight,
        policy: options.policy,
        sync: options.sync,
        kv_dtype: options.kv_dtype,
        values: options.values,
        activations: options.activations.clone().or(f32_only),
        single_precision: options.dtype == FloatType::F32 || all_f32(store),
    }
}

/// Takes quantized weights from the cache, and keeps those that are made. What goes wrong is a
/// warning: without the cache everything works, too.
fn keep_packed(d: &mut Described, options: &OpenOptions) -> Option<String> {
    let dir = options.cache_dir.as_ref()?;
    let kept = d.store.keep_packed(dir, options.cache_bytes);
    kept.err().map(|e| format!("quantized weights are not kept in {} ({e})", dir.display()))
}

/// A sentence per tensor.
fn non_finite(tensors: &[String]) -> impl Iterator<Item = String> {
    tensors.iter().map(|t| format!("tensor {t} holds NaN or infinite values"))
}

/// Whether all matrices are single precision, so that f32 is the model's own precision.
fn all_f32(store: &WeightStore) -> bool {
    store.classes().iter().filter(|c| c.class != "norms").all(|c| c.dtype == DType::F32)
}
