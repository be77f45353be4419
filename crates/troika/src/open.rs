//! Opening a model: files, spec, weights, plan, engine, tokenizer.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use troika_device::{Clock, Device, RealClock};
use troika_engine::{CompileControl, Engine, EngineError, EngineParts, Sharing};
use troika_graph::{ActivationFormat, DType};
use troika_model::chat::ChatTemplate;
use troika_model::lower::{LowerOptions, Lowered, lower};
use troika_model::spec::ModelSpec;
use troika_model::tokenizer::Tokenizer;
use troika_plan::{
    DeviceFacts, Goal, Plan, PlanDevice, PlanError, PlanRequest, Policy, Strategy, SyncMode,
    describe_refusals,
};
use troika_program::{PhaseCopies, copies};
use troika_solve::{Alternative, ProfiledCosts, SolveRequest, Solved, check_memory, solve};
use troika_trace::{Span, Tracer};
use troika_weights::{BindOptions, FileSource, FloatType, OnProgress, Quant, WeightStore};

use crate::describe::{Described, describe};
use crate::devices::{DeviceOptions, computes_nothing, open_devices, virtual_clock};
use crate::driver::{Driver, EngineGuard};
use crate::error::Error;
use crate::generation::GenerationDefaults;
use crate::profile_file::{self, ProfileAt, plan_device};
use crate::source::Source;
use crate::subject::{Subject, synthetic};
use crate::text;

/// Weights of more bytes are not scanned at load: scanning reads all of them from disk.
const SCAN_LIMIT: u64 = 4 << 30;

/// How to open a model.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Type of float matrices. `Auto` also allows activations in eight bits with quantized weights
    /// and in bf16 with bf16 weights, where that is faster. Any other value keeps activations in
    /// f32.
    pub dtype: FloatType,
    /// Activation formats, besides f32, that products may use; `None`: those that `dtype` allows.
    pub activations: Option<Vec<ActivationFormat>>,
    /// Quantization of float matrices at load.
    pub quant: Quant,
    /// Folder that stores quantized weights for the next start; `None`: not stored.
    pub cache_dir: Option<PathBuf>,
    /// The most bytes in that folder; the least recently used files are removed.
    pub cache_bytes: Option<u64>,
    /// Receives the progress of quantization.
    pub progress: Option<LoadProgress>,
    /// How to watch and stop compiling.
    pub compile: CompileControl,
    /// The longest sequence; `None`: the model's own limit.
    pub context: Option<usize>,
    /// The most rows of a prompt chunk.
    pub chunk: usize,
    /// How the model is divided over the devices.
    pub strategy: Strategy,
    /// The order in which ready segments run.
    pub policy: Policy,
    /// The most prompt chunks in flight; `None`: chosen by the planner.
    pub chunks_in_flight: Option<usize>,
    /// How devices wait for each other.
    pub sync: SyncMode,
    /// How sessions share the model.
    pub sharing: Sharing,
    /// An existing plan. It replaces `context`, `chunk`, `kv_dtype`, `activations` and the four
    /// fields above.
    pub plan: Option<Plan>,
    /// The file that `plan` was read from, named in errors of the plan.
    pub plan_file: Option<PathBuf>,
    /// Choose the plan by a profile, in place of `strategy`.
    pub solve: Option<SolveOptions>,
    /// Moves ops that a device of `plan` refuses to other devices, instead of failing.
    pub fallback: bool,
    /// Type of the KV cache; `None`: f32 if computing in f32, else bf16 where multiplied, else f16.
    pub kv_dtype: Option<DType>,
    /// Type of the values between segments: F32, F16 or BF16.
    pub values: DType,
    /// The devices to open.
    pub devices: DeviceOptions,
    /// Looks for NaN and infinities in weights that are used as they are in the files, up to 4 GiB:
    /// it reads all of them. Quantized weights are always checked.
    pub scan: bool,
    /// Records spans.
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
    /// How to bind weights.
    pub fn bind(&self) -> BindOptions {
        BindOptions { float: self.dtype, quant: self.quant }
    }
}

/// How to choose a plan by a profile.
#[derive(Clone, Debug)]
pub struct SolveOptions {
    /// The profile.
    pub profile: ProfileAt,
    /// What the plan should optimise.
    pub goal: Goal,
    /// Tokens of the prompt to optimise for; `None`: 512, or the context.
    pub prompt: Option<usize>,
    /// Tokens generated after it; `None`: 128, or what the context leaves.
    pub generate: Option<usize>,
    /// Whether weights may be held in several forms.
    pub several_copies: bool,
}

impl SolveOptions {
    /// Tokens of the prompt and of the answer, within the context.
    fn lengths(&self, context: usize) -> Result<(usize, usize), PlanError> {
        let prompt = self.prompt.unwrap_or(512.min(context));
        if !(1..=context).contains(&prompt) {
            let (what, got, low, high) = ("the length of prompts", prompt, 1, context);
            return Err(PlanError::Range { what, got, low, high });
        }
        let rest = context - prompt;
        let generate = self.generate.unwrap_or(128.min(rest));
        if generate > rest {
            return Err(PlanError::TooLong { prompt, generate, context });
        }
        Ok((prompt, generate))
    }
}

/// Receives (quantized weights, all weights to quantize) while a model is opened.
#[derive(Clone)]
pub struct LoadProgress(pub OnProgress);

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadProgress")
    }
}

/// The plan that opening a model would use.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// A sentence for each device whose refusals changed it, and for what else is to be known of it.
    pub changes: Vec<String>,
    /// If a profile chose the plan: the plans it beat, the best first.
    pub alternatives: Vec<Alternative>,
    model: (ModelSpec, WeightStore),
    devices: Vec<Arc<dyn Device>>,
}

impl Planned {
    /// The copies between memories for a chunk of a prompt and for a decoded token.
    ///
    /// # Errors
    /// Why the plan cannot run.
    pub fn copies(&self) -> Result<Vec<PhaseCopies>, Error> {
        let (spec, store) = &self.model;
        let devices: Vec<PlanDevice> = self.devices.iter().map(plan_device).collect();
        let counted = copies(spec, &|key| store.shape(key), &self.plan, &devices);
        Ok(counted.map_err(EngineError::from)?)
    }
}

/// Makes the plan that opening a model with these options would use.
///
/// # Errors
/// Those of [`Model::open`]; but nothing is compiled.
pub fn make_plan(subject: &Subject, options: &OpenOptions) -> Result<Planned, Error> {
    let devices = open_devices(&options.devices)?;
    let model = subject.described(options.bind(), true)?;
    let (plan, changes, alternatives) = plan_of(&model.0, &model.1, options, &devices)?;
    Ok(Planned { plan, changes, alternatives, model, devices })
}

/// A plan on the first device of the options.
pub fn one_device_plan(
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

/// The cache type for plans chosen by price, if it differs from the devices' default. It is the
/// same for all placements, since runs are measured with one type.
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
    // Other devices can read it too, but are not faster with it.
    (!request.single_precision && devices.iter().any(gains)).then_some(DType::BF16)
}

/// The parts of an open model, from any source.
struct Parts {
    name: String,
    spec: ModelSpec,
    store: WeightStore,
    text: (Option<Arc<Tokenizer>>, Option<ChatTemplate>),
    defaults: GenerationDefaults,
    warnings: Vec<String>,
}

/// An open model. Clones share it; it closes when the last clone and the last session are dropped.
#[derive(Clone)]
pub struct Model {
    pub(crate) opened: Arc<Opened>,
}

pub(crate) struct Opened {
    pub name: String,
    pub spec: ModelSpec,
    pub store: WeightStore,
    pub driver: Driver,
    /// The longest sequence.
    pub context: usize,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    pub defaults: GenerationDefaults,
    pub clock: Arc<dyn Clock>,
    pub computes: bool,
    pub modelled: bool,
    pub tracer: Tracer,
    pub warnings: Vec<String>,
    pub load_time: Duration,
}

impl Model {
    /// Opens a folder, a .gguf file or the built-in model on this machine's devices.
    ///
    /// # Errors
    /// Anything from a missing file to an op that a device refuses.
    pub fn open(source: impl Into<Source>, options: &OpenOptions) -> Result<Model, Error> {
        let devices = open_devices(&options.devices)?;
        Model::open_on(source, options, &devices)
    }

    /// Opens a model on given devices.
    ///
    /// # Errors
    /// Those of [`Model::open`].
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
        // The tokenizer is loaded. Free this memory before weights are packed.
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

    /// A model of a known shape with random weights, for measurements. `preset` is the shape's name
    /// or `NAME:TYPE` (`qwen3-0.6b:Q4_0`); the default type is bf16.
    ///
    /// # Errors
    /// An unknown name or type, or those of [`Model::open`].
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
        // Opening takes real time even with a virtual clock.
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
            modelled: modelled.is_some(),
            tracer: options.tracer.clone(),
            warnings,
            load_time,
        };
        if modelled.is_none() {
            opened.record("load", start);
        }
        Ok(Model { opened: Arc::new(opened) })
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.opened.spec
    }

    /// The weights.
    pub fn store(&self) -> &WeightStore {
        &self.opened.store
    }

    /// The engine itself, to query it or to feed it directly. While it is held, no session
    /// proceeds.
    ///
    /// # Errors
    /// This thread holds it already, or is in the middle of a step.
    pub fn engine(&self) -> Result<EngineGuard<'_>, Error> {
        self.opened.driver.engine()
    }

    /// The clock of this model: real time, or that of its virtual devices.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.opened.clock
    }

    /// Whether there are logits to read: not if a device models time only.
    pub fn computes(&self) -> bool {
        self.opened.computes
    }

    /// The longest sequence.
    pub fn context(&self) -> usize {
        self.opened.context
    }

    /// Whether all of its devices are virtual, so that its times are modelled.
    pub fn is_modelled(&self) -> bool {
        self.opened.modelled
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.opened.tokenizer.as_deref()
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.opened.template.is_some()
    }

    /// The recommendations of the model's authors.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.opened.defaults
    }

    /// Warnings for the user, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.opened.warnings
    }

    /// The time it took to open.
    pub fn load_time(&self) -> Duration {
        self.opened.load_time
    }
}

impl Opened {
    /// Records a span on the host's lane that ends now.
    pub(crate) fn record(&self, name: &'static str, start: Duration) {
        if self.tracer.enabled() {
            let end = self.clock.now();
            let lane = "host".into();
            self.tracer.record(Span { name: name.into(), lane, start, end, args: Vec::new() });
        }
    }
}

/// The given plan, or a new one by the options. Refused ops move to other devices: in a new plan
/// always, with a report; in a given plan only with `fallback`.
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
            let plan = plan.clone();
            if devices.iter().any(|d| d.caps().max_resident_bytes.is_some()) {
                let devices: Vec<PlanDevice> = devices.iter().map(plan_device).collect();
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
            None => Ok((plan, changes, alternatives)),
        };
    }
    let met = plan.avoid(&refusals, &names)?;
    changes.extend(describe_refusals(&plan, &met));
    Ok((plan, changes, alternatives))
}

/// Lowers the model for a plan's chunk and context.
pub fn lowered(spec: &ModelSpec, store: &WeightStore, plan: &Plan) -> Result<Lowered, Error> {
    let bounds = LowerOptions {
        max_rows: plan.prefill.chunk,
        max_kv: plan.context,
        kv_dtype: plan.kv_dtype,
    };
    Ok(lower(spec, &|key| store.shape(key), bounds).map_err(EngineError::from)?)
}

/// The best plan by a profile; `None` if there is no profile and none was required.
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
        // This profile was optional.
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
    // All ops that devices refuse, whichever plan is chosen.
    let refusals = troika_engine::examine(spec, &shapes, &one, devices)?;
    let devices: Vec<PlanDevice> = devices.iter().map(plan_device).collect();
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
    };
    Ok(Some(solve(&request)?))
}

/// A new plan by the options.
fn new_plan(
    spec: &ModelSpec,
    store: &WeightStore,
    options: &OpenOptions,
    devices: &[Arc<dyn Device>],
) -> Result<Plan, PlanError> {
    let devices: Vec<DeviceFacts> = devices.iter().map(|d| DeviceFacts::of(&**d)).collect();
    troika_plan::make(spec, &devices, &plan_request(store, options))
}

/// The plan request that follows from the options.
fn plan_request(store: &WeightStore, options: &OpenOptions) -> PlanRequest {
    // With an explicit type, activations stay in f32.
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

/// Takes quantized weights from the cache, and stores new ones. Failures are warnings, since
/// everything also works without the cache.
fn keep_packed(d: &mut Described, options: &OpenOptions) -> Option<String> {
    let dir = options.cache_dir.as_ref()?;
    let kept = d.store.keep_packed(dir, options.cache_bytes);
    kept.err().map(|e| format!("quantized weights are not kept in {} ({e})", dir.display()))
}

/// A sentence per tensor.
fn non_finite(tensors: &[String]) -> impl Iterator<Item = String> {
    tensors.iter().map(|t| format!("tensor {t} holds NaN or infinite values"))
}

/// Whether all matrices are f32, so that f32 is the model's own precision.
fn all_f32(store: &WeightStore) -> bool {
    store.classes().iter().filter(|c| c.class != "norms").all(|c| c.dtype == DType::F32)
}
