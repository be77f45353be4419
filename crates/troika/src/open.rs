//! Opening a model: files, spec, weights, plan, engine, tokenizer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use troika_device::{Clock, ExpertStats, RealClock, lock};
use troika_engine::{Engine, EngineError, EngineParts, LastingWeights, Sharing};
use troika_model::chat::HelperCommand;
use troika_model::spec::ModelSpec;
use troika_model::tokenizer::Tokenizer;
use troika_plan::{Plan, Refusal};
use troika_solve::{PredictRequest, task_times};
use troika_trace::{Span, Tracer};
use troika_weights::{Quant, WeightStore};

use crate::describe::{BoundModel, Described, describe};
use crate::devices::{self, virtual_clock};
use crate::driver::{Driver, EngineGuard};
use crate::error::Error;
use crate::free_memory::free_memory;
use crate::generation::GenerationDefaults;
use crate::loss::{CpuInstead, CurrentPlan};
use crate::memory::{forecast, limit_experts, read_ahead, trace_waits};
use crate::options::OpenOptions;
use crate::planning::Planned;
use crate::pooling::Embeddings;
use crate::source::Source;
use crate::text::ModelText;
use crate::turn::turn;

/// An engine, and the clock of its devices.
type Compiled = (Engine, Option<Arc<dyn Clock>>);

/// Weights of more bytes are not scanned: scanning reads all of them from disk.
const SCAN_LIMIT: u64 = 4 << 30;

/// An open model. Clones share it; it closes when the last clone and the last session are dropped.
#[derive(Clone)]
pub struct Model {
    pub(crate) opened: Arc<Opened>,
}

pub(crate) struct Opened {
    pub name: String,
    pub spec: ModelSpec,
    pub store: Arc<WeightStore>,
    pub driver: Driver,
    /// The longest sequence.
    pub context: usize,
    /// What runs where, as it was compiled.
    pub plan: CurrentPlan,
    /// What devices refused of it, before compiling and while.
    pub refusals: Vec<Refusal>,
    pub text: ModelText,
    pub clock: Arc<dyn Clock>,
    pub computes: bool,
    pub modelled: bool,
    pub tracer: Tracer,
    pub load_time: Duration,
}

/// The warning for a context in which the model's index would leave keys out.
fn denser(name: &str, exact: usize, context: usize) -> Option<String> {
    (context > exact).then(|| {
        format!(
            "from token {exact} on, {name} attends to all tokens, where the model's index would \
             leave some out: its answers are not the model's (-c {exact} for those alone)"
        )
    })
}

impl Model {
    /// Opens a folder, a .gguf file or the built-in model on this machine's devices. Where devices are
    /// chosen ([`DeviceOptions::auto`](crate::DeviceOptions::auto)) and fail, they get less, or the CPU
    /// takes their place.
    ///
    /// # Errors
    /// Anything from a missing file to an op that a device refuses.
    pub fn open(source: impl Into<Source>, options: &OpenOptions) -> Result<Model, Error> {
        Model::open_with_helper(source, options, None)
    }

    /// The same; a helper renders the model's chat template in a process of its own, see
    /// [`ChatTemplate::with_helper`](troika_model::chat::ChatTemplate::with_helper).
    ///
    /// # Errors
    /// Those of [`Model::open`].
    pub fn open_with_helper(
        source: impl Into<Source>,
        options: &OpenOptions,
        helper: Option<HelperCommand>,
    ) -> Result<Model, Error> {
        let (source, clock) = (source.into(), RealClock::new());
        let (name, mut options) = (source.name(), options.clone());
        loop {
            // GPUs are looked for while files are read.
            let search = options.look(source.bytes());
            let described = describe(&source, options.bind())?;
            let Described { spec, store, .. } = &described;
            let (folder, tell) = (std::env::temp_dir(), |line: &str| options.tell(line));
            let _turn = turn(&folder, store.bytes(), free_memory(), &tell);
            let chosen = options.chosen_by(search, &name, spec, store)?;
            match Model::open_described(&source, described, &chosen, helper.clone(), clock) {
                Err(e) => options = options.after(&chosen, &name, &e).ok_or(e)?,
                opened => return opened,
            }
        }
    }

    /// Opens a model whose files are read on the options' devices.
    fn open_described(
        source: &Source,
        described: Described,
        options: &OpenOptions,
        helper: Option<HelperCommand>,
        clock: RealClock,
    ) -> Result<Model, Error> {
        let Described { files, spec, mut store } = described;
        let (devices, notes) = options.devices_by(clock)?;
        options.calibration().iter().try_for_each(|c| c.apply(&spec, &mut store))?;
        let mut text = ModelText::load(&files.source, spec.vocab, helper);
        let warnings = &mut text.warnings;
        warnings.extend_from_slice(store.warnings());
        if options.quant != Quant::None && !store.makes_weights() {
            let quant = options.quant.name();
            warnings.push(format!("quantization to {quant} changes nothing: matrices are of that type or quantized already"));
        }
        warnings.extend(limit_experts(&mut store, &spec, options));
        warnings.extend(keep_packed(&mut store, options));
        read_ahead(&store, &spec, options)?;
        // The tokenizer is loaded. Free this memory before weights are packed.
        drop(files);
        troika_device::trim_heap();
        let model = BoundModel { spec, store, devices };
        let mut opened = Model::assemble(source.to_string(), model, text, options, clock)?;
        if options.observer.is_none() {
            opened.text.warnings.extend(notes.take());
        }
        Ok(Model { opened: Arc::new(opened) })
    }

    /// Opens a model with bound weights, without a tokenizer, on given devices. The options'
    /// devices do not count.
    ///
    /// # Errors
    /// Those of [`Model::open`].
    pub fn open_bound(
        name: &str,
        model: BoundModel,
        options: &OpenOptions,
    ) -> Result<Model, Error> {
        let text = ModelText::default();
        let opened = Model::assemble(name.into(), model, text, options, RealClock::new())?;
        Ok(Model { opened: Arc::new(opened) })
    }

    /// Plans and compiles. The clock began with opening.
    fn assemble(
        name: String,
        mut model: BoundModel,
        mut text: ModelText,
        options: &OpenOptions,
        real: RealClock,
    ) -> Result<Opened, Error> {
        if let Some(observer) = options.observer.clone() {
            model.store.on_progress(Arc::new(move |done, all| observer.quantized(done, all)));
        }
        let of_plan = |e: Error| e.of_plan(options.plan.file());
        let mut planned = model.plan(options).map_err(of_plan)?;
        options.takes_layers(&planned.plan, &planned.refusals)?;
        planned.fit_weights(options)?;
        // Opening takes real time even with a virtual clock.
        let real = Arc::new(real);
        let (mut engine, own) = planned.compile(options, &real).map_err(of_plan)?;
        let (modelled, clock) = (own.is_some(), own.unwrap_or_else(|| real.clone()));
        let silent = engine.silent().map(String::from);
        let Planned { plan, changes, refusals, kv_bytes, model, .. } = planned;
        let BoundModel { spec, store, .. } = model;
        let warnings = &mut text.warnings;
        warnings.extend(changes.into_iter().chain(silent.as_deref().map(computes_nothing)));
        warnings.extend(denser(&name, spec.context, plan.context));
        let unkept = store.finish_packed();
        store.open_experts(&unkept)?;
        warnings.extend(unkept);
        if !modelled {
            trace_waits(&store, &options.tracer, &clock);
        }
        warnings.extend(non_finite(&store.non_finite()));
        let (store, context) = (Arc::new(store), plan.context);
        let plan: CurrentPlan = Arc::new(Mutex::new(Arc::new(plan)));
        engine.load_experts(&(store.clone() as LastingWeights), forecast(options).as_ref());
        if options.fallback && !modelled {
            let sharing = Sharing { kv_bytes, ..options.sharing };
            let options = OpenOptions { sharing, ..options.clone() };
            let (spec, store, clock) = (spec.clone(), store.clone(), clock.clone());
            let instead = CpuInstead { spec, store, options, clock, plan: plan.clone() };
            engine.on_loss(Box::new(move |loss| instead.engine(loss)));
        }
        let opened = Opened {
            name,
            context,
            spec,
            store,
            plan,
            refusals,
            driver: Driver::new(engine),
            text,
            clock,
            computes: silent.is_none(),
            modelled,
            tracer: options.tracer.clone(),
            load_time: real.now(),
        };
        if !modelled {
            opened.record("load", Duration::ZERO);
        }
        Ok(opened)
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

    /// Gives memory of the KV cache that nothing uses back to the system; with `kept` also what is
    /// kept for prompts that begin alike. Does nothing while work is in flight.
    ///
    /// # Errors
    /// This thread holds the engine.
    pub fn give_back(&self, kept: bool) -> Result<(), Error> {
        self.engine()?.give_back(if kept { 0 } else { u64::MAX });
        Ok(())
    }

    /// What became of experts that are read when tokens choose them; `None` if all are in memory.
    pub fn expert_stats(&self) -> Option<ExpertStats> {
        self.store().expert_stats()
    }

    /// What became of experts that devices load when tokens choose them, by the devices' names.
    ///
    /// # Errors
    /// This thread holds the engine.
    pub fn device_experts(&self) -> Result<Vec<(String, ExpertStats)>, Error> {
        Ok(self.engine()?.expert_stats())
    }

    /// The clock of this model: real time, or the modelled time of its virtual devices.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.opened.clock
    }

    /// Joules that virtual devices have used since they were opened; `None` for real ones, and where
    /// their file does not know.
    pub fn joules(&self) -> Option<f64> {
        devices::joules(&*self.opened.clock)
    }

    /// For how long the CPUs among virtual devices have worked since they were opened; `None` for real
    /// ones.
    pub fn cpu_time(&self) -> Option<Duration> {
        devices::cpu_time(&*self.opened.clock)
    }

    /// Whether there are logits to read: not if a device models time only.
    pub fn computes(&self) -> bool {
        self.opened.computes
    }

    /// The longest sequence.
    pub fn context(&self) -> usize {
        self.opened.context
    }

    /// What runs where, as it was compiled.
    pub fn plan(&self) -> Arc<Plan> {
        lock(&self.opened.plan).clone()
    }

    /// What devices refused, before compiling and while.
    pub fn refusals(&self) -> &[Refusal] {
        &self.opened.refusals
    }

    /// Whether all of its devices are virtual, so that its times are modelled.
    pub fn is_modelled(&self) -> bool {
        self.opened.modelled
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.opened.text.tokenizer.as_deref()
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.opened.text.template.is_some()
    }

    /// The recommendations of the model's authors.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.opened.text.defaults
    }

    /// How embeddings are made, or a sentence on why they cannot be.
    ///
    /// # Errors
    /// The model's authors make them in a way that is not computed.
    pub fn embeddings(&self) -> Result<Embeddings, String> {
        self.opened.text.embeddings.clone().unwrap_or(Ok(Embeddings::default()))
    }

    /// Warnings for the user, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.opened.text.warnings
    }

    /// A sentence for each tensor with NaN or infinite values among weights that are used as they
    /// are in the files, up to 4 GiB: all of them are read. Others are checked on opening.
    pub fn scan(&self) -> Vec<String> {
        let report = self.store().report();
        if report.mapped + report.owned > SCAN_LIMIT {
            return Vec::new();
        }
        non_finite(&self.store().scan_non_finite()).collect()
    }

    /// The time it took to open.
    pub fn load_time(&self) -> Duration {
        self.opened.load_time
    }
}

impl Planned {
    /// Compiles the plan. What a device refuses only while compiling is planned around, as what it
    /// refuses before. Also returns the clock of its devices, if time is modelled.
    fn compile(&mut self, options: &OpenOptions, real: &Arc<RealClock>) -> Result<Compiled, Error> {
        let Planned { plan, changes, refusals, kv_bytes, profile, model, .. } = self;
        let sharing = Sharing { kv_bytes: *kv_bytes, ..options.sharing };
        let shapes = |key| model.store.shape(key);
        loop {
            let used = model.devices.iter().filter(|d| plan.devices.iter().any(|n| n == d.name()));
            let own = virtual_clock(used);
            let parts = EngineParts {
                spec: &model.spec,
                shapes: &shapes,
                weights: &model.store,
                plan: plan.clone(),
                devices: &model.devices,
                clock: own.clone().unwrap_or_else(|| real.clone()),
                tracer: options.tracer.clone(),
                sharing,
            };
            match Engine::new(parts, &options.compile_control()) {
                Err(EngineError::Refused { refusals: more, .. })
                    if options.may_change_plan() && more.iter().any(|r| !refusals.contains(r)) =>
                {
                    let new: Vec<_> = more.into_iter().filter(|r| !refusals.contains(r)).collect();
                    refusals.extend(new);
                    changes.extend(model.avoid(plan, refusals)?);
                    options.takes_layers(plan, refusals)?;
                    model.check_memory(plan, options)?;
                }
                made => {
                    let mut engine = made?;
                    let say = |request: &PredictRequest<'_>| task_times(request, plan);
                    let times = model.priced(engine.lowered(), profile.as_ref(), options, say)?;
                    engine.expect(times.unwrap_or_default());
                    return Ok((engine, own));
                }
            }
        }
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

/// Takes quantized weights from the cache, and stores new ones. Failures are warnings, since
/// everything also works without the cache.
fn keep_packed(store: &mut WeightStore, options: &OpenOptions) -> Option<String> {
    let folder = options.cache.as_ref()?;
    let failed = store.keep_packed(folder).err()?;
    Some(format!("quantized weights are not kept in {} ({failed})", folder.dir().display()))
}

fn computes_nothing(device: &str) -> String {
    format!(
        "device {device} computes nothing (its numerics are off): tokens are counted up, not generated"
    )
}

/// A sentence per tensor.
fn non_finite(tensors: &[String]) -> impl Iterator<Item = String> {
    tensors.iter().map(|t| format!("tensor {t} holds NaN or infinite values"))
}
