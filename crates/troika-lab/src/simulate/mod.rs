//! Runs a model on all processors of a virtual SoC: the real engine, plan and scheduler in virtual
//! time, with numerics off.

mod placed;
mod single;
mod strategy;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use troika::sim::{Board, CoRun, ProcessorKind, Soc, Usage};
use troika::{BoundModel, Error, Model, OpenOptions, SocCosts, TokenUse};
use troika_device::{Device, Queue};
use troika_engine::{SequenceInput, WantedLogits};
use troika_graph::{DType, ProductForm};
use troika_model::lower::{LowerOptions, Lowered, WeightShapes, lower};
use troika_plan::{Goal, Phase, Plan, PlanDevice, PlanError, PlanRequest, SyncMode, make};
use troika_solve::{Forms, PredictRequest, SolveRequest, predict, solve, task_times};
use troika_trace::Tracer;
use troika_weights::Quant;

use crate::error::{LabError as SimulateError, Result};
use crate::subject::Shape;
pub(crate) use placed::{CHUNK, on_board};
pub use single::{ProductChoice, ProductShape, ProductTime};
pub use strategy::SocStrategy;

/// The default type of weights: four bits, as usual on phones.
pub const WEIGHTS: DType = DType::Q4_0;

/// The input of a simulation.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The SoC.
    pub soc: Soc,
    /// The model.
    pub shape: Shape,
    /// The division over the processors.
    pub strategy: SocStrategy,
    /// A plan to run instead of the strategy's.
    pub plan: Option<Plan>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to generate.
    pub generate: usize,
    /// How processors wait for each other.
    pub sync: SyncMode,
    /// Whether products may have their operands exchanged, where that is faster.
    pub exchange: bool,
    /// A game that draws frames on the GPU meanwhile.
    pub co_run: Option<CoRun>,
    /// Records spans.
    pub tracer: Tracer,
}

impl SimulateOptions {
    /// A prompt by a strategy, with predicted waits and operands in the faster order.
    pub fn new(soc: Soc, shape: Shape, strategy: SocStrategy, prompt: usize) -> SimulateOptions {
        SimulateOptions {
            soc,
            shape,
            strategy,
            plan: None,
            prompt,
            generate: 1,
            sync: SyncMode::Predicted,
            exchange: true,
            co_run: None,
            tracer: Tracer::off(),
        }
    }

    /// Checks what a simulation cannot do.
    fn check(&self) -> Result<()> {
        if self.soc.numerics {
            let why = "computes values (numerics = \"on\"); simulations need numerics = \"off\"";
            return Err(SimulateError::Impossible(format!("SoC {} {why}", self.soc.name)));
        }
        let (prompt, generate, context) = (self.prompt, self.generate, self.shape.spec.context);
        let most = placed::MOST_ROWS.min(context.saturating_sub(1));
        if !(1..=most).contains(&prompt) || prompt.saturating_add(generate) >= context {
            return Err(SimulateError::Asked(format!(
                "the prompt has {prompt} tokens, and {generate} are to be generated: give from 1 to \
                 {most} of a prompt, and fewer in all than the context's {context}"
            )));
        }
        Ok(())
    }
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// From the request to the first token, in nanoseconds. Includes compiling for the prompt.
    pub ttft_ns: u64,
    /// The part of it spent on compiling.
    pub prepare_ns: u64,
    /// From the first token to the last, in nanoseconds.
    pub decode_ns: u64,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated.
    pub generated: usize,
    /// Joules of the prompt and of making code for it, if the SoC's energy is known.
    pub prefill_j: Option<f64>,
    /// The former without making code, by what used it.
    pub prefill_parts: Option<Vec<(String, f64)>>,
    /// Joules of all tokens after the first.
    pub decode_j: Option<f64>,
    /// For how long the CPUs worked, for the prompt with its code, and for all later tokens.
    pub cpu_time: [Duration; 2],
    /// The most bytes held: weights, cache, values.
    pub peak_bytes: u64,
    /// Frames per second drawn during the prompt, and during decoding.
    pub frame_rates: [f64; 2],
}

impl Figures {
    /// Time to the first token, in milliseconds.
    pub fn ttft_ms(&self) -> f64 {
        self.ttft_ns as f64 * 1e-6
    }

    /// Time per later token, in milliseconds; `None` if there is none.
    pub fn tpot_ms(&self) -> Option<f64> {
        let later = self.generated.checked_sub(1).filter(|n| *n > 0)?;
        Some(self.decode_ns as f64 * 1e-6 / later as f64)
    }

    /// Tokens of the prompt per second.
    pub fn prefill_rate(&self) -> f64 {
        self.prompt as f64 * 1e3 / self.ttft_ms()
    }

    /// Later tokens per second.
    pub fn decode_rate(&self) -> Option<f64> {
        self.tpot_ms().map(|ms| 1e3 / ms)
    }

    /// Mean watts of the prompt.
    pub fn prefill_w(&self) -> Option<f64> {
        self.used()[0].watts()
    }

    /// Mean watts of decoding; `None` if no token is decoded.
    pub fn decode_w(&self) -> Option<f64> {
        self.used()[1].watts()
    }

    /// What the prompt used, and what all tokens after the first one did.
    pub fn used(&self) -> [TokenUse; 2] {
        let [prompt, later] = self.cpu_time;
        let of = |tokens, ns: u64, joules, cpu: Duration| {
            let (seconds, cpu_seconds) = (ns as f64 * 1e-9, Some(cpu.as_secs_f64()));
            TokenUse { tokens, seconds, joules, cpu_seconds, cpu_cycles: None }
        };
        [
            of(self.prompt, self.ttft_ns, self.prefill_j, prompt),
            of(self.generated.saturating_sub(1), self.decode_ns, self.decode_j, later),
        ]
    }

    /// Joules of prompt and answer.
    pub fn energy_j(&self) -> Option<f64> {
        Some(self.prefill_j? + self.decode_j?)
    }
}

/// A model opened on a SoC.
pub struct Simulation {
    model: Model,
    devices: Vec<PlanDevice>,
    board: Arc<Board>,
    /// The SoC's name.
    soc: String,
    prompt: usize,
    generate: usize,
    /// Before and after making code, where that counts as a part of the prompt.
    prepared: Option<[Usage; 2]>,
    /// The queue of a GPU that draws frames and has no other.
    _frames: Option<Box<dyn Queue>>,
}

impl Simulation {
    /// Opens a model.
    ///
    /// # Errors
    /// A SoC that cannot run the strategy, or a model that cannot be lowered.
    pub fn open(options: &SimulateOptions) -> Result<Simulation> {
        options.check()?;
        let SimulateOptions { soc, shape, strategy, prompt, generate, sync, .. } = options;
        let (devices, board) = on_board(soc)?;
        let draws = options.co_run.map(|task| draw_frames(soc, &board, task)).transpose()?;
        let store = shape.lazy_weights(Quant::None).in_one_type(shape.mix.base());
        let shapes = |key| store.shape(key);
        let lowering =
            LowerOptions { max_rows: *prompt, max_kv: prompt + generate + 1, kv_dtype: DType::F16 };
        let lowered = Arc::new(lower(&shape.spec, &shapes, lowering)?);
        let mut facts: Vec<PlanDevice> = devices.iter().map(PlanDevice::of).collect();
        let may = |form: &ProductForm| options.exchange || *form != ProductForm::Exchanged;
        facts.iter_mut().for_each(|d| d.caps.forms.retain(may));
        let request = placed::Request {
            soc,
            spec: &shape.spec,
            lowered: &lowered,
            strategy: *strategy,
            prompt: *prompt,
            context: lowering.max_kv,
            sync: *sync,
            devices: &facts,
        };
        let mut plan = match (&options.plan, strategy) {
            (Some(plan), _) => plan.clone(),
            (None, SocStrategy::Solved) => solved(&request, &shapes, &devices, options)?,
            (None, _) => placed::fastest(&request, &shapes, &devices)?,
        };
        if options.plan.is_none() {
            Forms::new(&lowered, &facts, &SocCosts::of(soc, &facts)).choose(&mut plan);
        }
        let before = board.usage();
        let opening = OpenOptions {
            plan: plan.into(),
            // A strategy's ops that its processors refuse move to others.
            fallback: true,
            tracer: options.tracer.clone(),
            ..OpenOptions::default()
        };
        let bound = BoundModel { spec: shape.spec.clone(), store, devices: devices.clone() };
        let model = Model::open_bound(&shape.name, bound, &opening)?;
        let online = options.plan.is_none() && *strategy == SocStrategy::OnlinePrepare;
        let prepared = online.then(|| [before, board.usage()]);
        // Frames are drawn while a queue is open: open one if the plan does not use the GPU.
        let used = model.engine()?.plan().devices.clone();
        let idle = draws.filter(|gpu| !used.contains(&soc.processors[*gpu].name));
        let frames = idle
            .map(|gpu| devices[gpu].queue(devices.len(), board.clock().clone(), sync_channel(1).0))
            .transpose()?;
        Simulation {
            model,
            devices: devices.iter().map(PlanDevice::of).collect(),
            board,
            soc: soc.name.clone(),
            prompt: *prompt,
            generate: *generate,
            prepared,
            _frames: frames,
        }
        .knowing_times()
    }

    /// The same with an engine that knows what tasks take.
    fn knowing_times(self) -> Result<Simulation> {
        let times = self.by_prices(task_times)?;
        self.model.engine()?.expect(times);
        Ok(self)
    }

    /// What prices say of the plan in use.
    fn by_prices<T>(
        &self,
        say: impl FnOnce(&PredictRequest<'_>, &Plan) -> Result<T, PlanError>,
    ) -> Result<T> {
        let engine = self.model.engine()?;
        let request = PredictRequest {
            lowered: engine.lowered(),
            devices: &self.devices,
            cost: &SocCosts::of(self.board.soc(), &self.devices),
            prompt: self.prompt,
            generate: self.generate,
        };
        Ok(say(&request, engine.plan()).map_err(Error::Plan)?)
    }

    /// The plan in use, with what it is predicted to take.
    ///
    /// # Errors
    /// This thread holds the engine.
    pub fn plan(&self) -> Result<Plan> {
        let predicted = Some(self.by_prices(predict)?);
        Ok(Plan { predicted, ..Plan::clone(&self.model.plan()) })
    }

    /// Computes the prompt and generates. `progress` is told how many tokens are generated, of how
    /// many.
    ///
    /// # Errors
    /// A failing device.
    pub fn run(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<Figures> {
        let mut engine = self.model.engine()?;
        let vocab = self.model.spec().vocab;
        let seq = engine.open();
        let mut feed = |count: usize, phase: Phase| {
            let tokens: Vec<u32> = (0..count).map(|i| (i % vocab) as u32).collect();
            let logits = WantedLogits::Last;
            engine.run_unread(&[SequenceInput { seq, tokens: &tokens, logits, phase }])
        };
        let start = self.board.usage();
        feed(self.prompt, Phase::Prefill)?;
        let first = self.board.usage();
        for made in 1..self.generate {
            progress(made, self.generate);
            feed(1, Phase::Decode)?;
        }
        progress(self.generate, self.generate);
        let end = self.board.usage();
        if end.now_ns > u64::MAX / 2 {
            // Beyond this the clock saturates.
            return Err(SimulateError::Impossible(format!(
                "the modelled times of SoC {} add up to more than 292 years; look for a rate in its \
                 file that is far too small, or a time that is far too large",
                self.soc
            )));
        }
        engine.close(seq);
        let memory = engine.memory();
        let engine_bytes = memory.kv_cache + memory.activations + memory.scratch;
        let between = |a: &Usage, b: &Usage| b.now_ns - a.now_ns;
        let soc = self.board.soc();
        let (mut prefill_j, mut prepare_ns) = (soc.energy_j(&start, &first), 0);
        let mut cpu_time = [soc.cpu_time(&start, &first), soc.cpu_time(&first, &end)];
        if let Some([before, after]) = &self.prepared {
            let prepare_j = soc.energy_j(before, after);
            prefill_j = prefill_j.zip(prepare_j).map(|(run, prepare)| run + prepare);
            prepare_ns = between(before, after);
            cpu_time[0] += soc.cpu_time(before, after);
        }
        Ok(Figures {
            ttft_ns: between(&start, &first) + prepare_ns,
            prepare_ns,
            decode_ns: between(&first, &end),
            prompt: self.prompt,
            generated: self.generate,
            prefill_j,
            prefill_parts: soc.energy_parts(&start, &first),
            decode_j: soc.energy_j(&first, &end),
            cpu_time,
            peak_bytes: weight_bytes(engine.lowered()) + engine_bytes,
            frame_rates: [(&start, &first), (&first, &end)].map(|(a, b)| {
                let frames = (b.frames - a.frames) as f64;
                frames / (between(a, b).max(1) as f64 * 1e-9)
            }),
        })
    }
}

/// Lets the first GPU draw frames. Returns its number.
fn draw_frames(soc: &Soc, board: &Board, task: CoRun) -> Result<usize> {
    let gpu = soc.processors.iter().position(|p| p.kind == ProcessorKind::Gpu);
    let none = || format!("SoC {} has no GPU that could draw frames", soc.name);
    let gpu = gpu.ok_or_else(|| SimulateError::Asked(none()))?;
    board.co_run(gpu, task);
    Ok(gpu)
}

/// Bytes of all weights, each counted once.
fn weight_bytes(lowered: &Lowered) -> u64 {
    let mut sum: u64 = 0;
    let mut seen = std::collections::HashSet::new();
    for w in lowered.segments.iter().flat_map(|s| &s.graph.weights) {
        if seen.insert(&w.name) {
            sum = sum.saturating_add(w.bytes());
        }
    }
    sum
}

/// The solver's plan.
fn solved(
    r: &placed::Request<'_>,
    shapes: WeightShapes<'_>,
    devices: &[Arc<dyn Device>],
    options: &SimulateOptions,
) -> Result<Plan> {
    let base = PlanRequest {
        context: Some(r.context),
        chunk: r.prompt,
        kv_dtype: Some(DType::F16),
        sync: r.sync,
        ..PlanRequest::default()
    };
    let one = make(r.spec, r.devices, &base).map_err(Error::Plan)?;
    let refusals = troika_engine::examine(r.spec, shapes, &one, devices)?;
    // The CPU is left to control a GPU, if there is one (HeteroInfer, section 4).
    let controls = r.soc.processors.iter().any(|p| p.kind == ProcessorKind::Gpu);
    let used = r.devices.iter().zip(&r.soc.processors);
    let used = used.filter(|(_, p)| !controls || p.kind != ProcessorKind::Cpu);
    let devices: Vec<PlanDevice> = used.map(|(d, _)| d.clone()).collect();
    let candidates = hand_made(r, &devices);
    let request = SolveRequest {
        spec: r.spec,
        lowered: r.lowered,
        devices: &devices,
        cost: &SocCosts::of(r.soc, &devices),
        refusals: &refusals,
        goal: Goal::Ttft,
        base: &base,
        prompt: r.prompt,
        generate: options.generate,
        lengths: &[],
        candidates: &candidates,
    };
    Ok(solve(&request).map_err(Error::Plan)?.plan)
}

/// The plans of the other strategies, as far as the devices can run them. Code that is made for one
/// prompt does not belong in a plan for others.
fn hand_made(r: &placed::Request<'_>, devices: &[PlanDevice]) -> Vec<(String, Plan)> {
    let usable = |plan: &Plan| plan.devices.iter().all(|d| devices.iter().any(|o| o.name == *d));
    let others = SocStrategy::all().into_iter();
    let others = others.filter(|s| !matches!(s, SocStrategy::Solved | SocStrategy::OnlinePrepare));
    let plan = |strategy| Some((strategy, placed::plan(&placed::Request { strategy, ..*r }).ok()?));
    let plans = others.filter_map(plan).filter(|(_, plan)| usable(plan));
    plans.map(|(strategy, plan)| (strategy.name().to_string(), plan)).collect()
}
