//! Runs a model on all processors of a virtual SoC: the real engine, plan and scheduler in virtual
//! time, with numerics off.

mod costs;
mod placed;
mod single;
mod strategy;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use serde_json::Value;
use troika::sim::{Board, CoRun, Processor, ProcessorKind, Soc, SocError, Usage, VirtualDevice};
use troika_device::{Clock, Device, DeviceError, Queue, read_text};
use troika_engine::{Engine, EngineParts, SeqId, SequenceInput, Sharing, WantedLogits};
use troika_graph::DType;
use troika_model::lower::{LowerOptions, Lowered, WeightShape, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_model::{families, presets};
use troika_plan::{DeviceFacts, Goal, Plan, PlanDevice, PlanRequest, SyncMode, make};
use troika_solve::{SolveRequest, solve};
use troika_trace::Tracer;
use troika_weights::{Quant, SYNTHETIC_DTYPES, WeightStore};

pub use single::{ProductChoice, ProductShape, ProductTime};
pub use strategy::SocStrategy;

use troika::Error;
use troika::plan_device;

/// Why a simulation is impossible.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An error in the SoC's file.
    #[error(transparent)]
    Soc(#[from] SocError),
    /// A strategy that needs a processor the SoC lacks.
    #[error("strategy {strategy} needs {need}, and SoC {soc} has none")]
    Processor {
        /// The strategy.
        strategy: &'static str,
        /// The processor it needs.
        need: &'static str,
        /// The SoC.
        soc: String,
    },
    /// A SoC that computes values.
    #[error("SoC {0} computes values (numerics = \"on\"); simulations need numerics = \"off\"")]
    Numerics(String),
    /// A co-running game on a SoC without a GPU.
    #[error("SoC {0} has no GPU that could draw frames")]
    NoFrames(String),
    /// An unreadable config file.
    #[error("{file} cannot be read as a config: {why}")]
    Config {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
    /// No tokens, or too many.
    #[error(
        "the prompt has {prompt} tokens, and {generate} are to be generated: give from 1 to {most} \
         of a prompt, and fewer in all than the context's {context}"
    )]
    Tokens {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate.
        generate: usize,
        /// The longest possible prompt.
        most: usize,
        /// The model's context.
        context: usize,
    },
    /// A time beyond the range of the virtual clock.
    #[error(
        "the modelled times of SoC {0} add up to more than 292 years; look for a rate in its file \
         that is far too small, or a time that is far too large"
    )]
    Years(String),
    /// An unknown strategy.
    #[error("{0}")]
    Strategy(String),
    /// An error of another part.
    #[error(transparent)]
    Other(#[from] Error),
}

impl From<troika_engine::EngineError> for SimulateError {
    fn from(e: troika_engine::EngineError) -> Self {
        SimulateError::Other(e.into())
    }
}

impl From<DeviceError> for SimulateError {
    fn from(e: DeviceError) -> Self {
        SimulateError::Other(e.into())
    }
}

/// A model's shape, with the type of its weights.
#[derive(Clone, Debug)]
pub struct Shape {
    name: String,
    spec: ModelSpec,
    dtype: DType,
}

/// The default type of weights: four bits, as usual on phones.
const WEIGHTS: DType = DType::Q4_0;

impl Shape {
    /// A preset's name, or the path of a folder with a `config.json` or of a config that ends in
    /// `.json`; each with `:TYPE` for weights of another type than Q4_0.
    ///
    /// # Errors
    /// An unknown preset or type, a file that cannot be read as a config.
    pub fn find(text: &str) -> Result<Shape, SimulateError> {
        let known =
            |name: &str| SYNTHETIC_DTYPES.into_iter().find(|d| d.name().eq_ignore_ascii_case(name));
        let suffix = text.rsplit_once(':').filter(|_| !Path::new(text).exists());
        let (name, dtype) = match suffix {
            Some((name, dtype)) if !dtype.contains('/') && !dtype.ends_with(".json") => {
                let no_type = || Error::NoPresetType {
                    name: text.into(),
                    known: SYNTHETIC_DTYPES.map(|d| d.name()).join(", "),
                };
                (name, known(dtype).ok_or_else(no_type)?)
            }
            _ => (text, WEIGHTS),
        };
        let path = Path::new(name);
        let config = match presets::config(name) {
            Some(config) => config,
            None if path.is_dir() => read_config(&path.join("config.json"))?,
            None if name.ends_with(".json") => read_config(path)?,
            None => {
                let known = presets::names().join(", ");
                return Err(Error::NoPreset { name: name.into(), known }.into());
            }
        };
        let model = families::from_config(&config)
            .map_err(|error| Error::Config { model: name.into(), error })?;
        Ok(Shape { name: name.into(), spec: model.spec, dtype })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }
}

fn read_config(file: &Path) -> Result<Value, SimulateError> {
    let refuse = |why: String| SimulateError::Config { file: file.display().to_string(), why };
    let text = read_text(file).map_err(|e| refuse(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| refuse(e.to_string()))
}

/// The input of a simulation.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The SoC.
    pub soc: Soc,
    /// The model.
    pub shape: Shape,
    /// The division over the processors.
    pub strategy: SocStrategy,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to generate.
    pub generate: usize,
    /// How processors wait for each other.
    pub sync: SyncMode,
    /// A game that draws frames on the GPU meanwhile.
    pub co_run: Option<CoRun>,
    /// Records spans.
    pub tracer: Tracer,
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
    /// Joules of the prompt, with those of code that is made for it, if it is known what the SoC
    /// takes.
    pub prefill_j: Option<f64>,
    /// Joules of all tokens after the first.
    pub decode_j: Option<f64>,
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

    /// Joules of prompt and answer.
    pub fn energy_j(&self) -> Option<f64> {
        Some(self.prefill_j? + self.decode_j?)
    }

    /// From the request to the last token, in milliseconds.
    pub fn total_ms(&self) -> f64 {
        (self.ttft_ns + self.decode_ns) as f64 * 1e-6
    }
}

/// A model opened on a SoC.
pub struct Simulation {
    engine: Engine,
    board: Arc<Board>,
    vocab: usize,
    /// The SoC's name.
    soc: String,
    weight_bytes: u64,
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
    pub fn open(options: &SimulateOptions) -> Result<Simulation, SimulateError> {
        let SimulateOptions { soc, shape, strategy, prompt, generate, sync, tracer, .. } = options;
        if soc.numerics {
            return Err(SimulateError::Numerics(soc.name.clone()));
        }
        let context = shape.spec.context;
        let most = placed::MOST_ROWS.min(context.saturating_sub(1));
        let all = prompt.saturating_add(*generate);
        if !(1..=most).contains(prompt) || all >= context {
            let (prompt, generate) = (*prompt, *generate);
            return Err(SimulateError::Tokens { prompt, generate, most, context });
        }
        let (devices, board) = on_board(soc)?;
        if let Some(task) = &options.co_run {
            let gpu = soc.processors.iter().position(|p| p.kind == ProcessorKind::Gpu);
            let none = || SimulateError::NoFrames(soc.name.clone());
            board.co_run(gpu.ok_or_else(none)?, *task);
        }
        let (dtype, shape_block) = (shape.dtype, shape.dtype.block_len());
        let store = WeightStore::synthetic_lazy(&shape.spec, shape.dtype, 1, Quant::None);
        // Engines for phones give all matrices the same type, including the head.
        let shapes = |key| {
            let shape = store.shape(key)?;
            let packed = shape.dtype.is_quantized() && shape.cols.is_multiple_of(shape_block);
            Some(WeightShape { dtype: if packed { dtype } else { shape.dtype }, ..shape })
        };
        let lowering =
            LowerOptions { max_rows: *prompt, max_kv: prompt + generate + 1, kv_dtype: DType::F16 };
        let lowered = lower(&shape.spec, &shapes, lowering)
            .map_err(|e| Error::Engine(troika_engine::EngineError::Lower(e)))?;
        let request = placed::Request {
            soc,
            spec: &shape.spec,
            lowered: &lowered,
            strategy: *strategy,
            prompt: *prompt,
            context: lowering.max_kv,
            sync: *sync,
        };
        let mut plan = match strategy {
            SocStrategy::Solved => solved(&request, &shapes, &devices, options)?,
            _ => placed::plan(&request)?,
        };
        around_refusals(&shape.spec, &shapes, &mut plan, &devices)?;
        let clock: Arc<dyn Clock> = board.clock().clone();
        // Frames are drawn while a queue is open: open one if the plan does not use the GPU.
        let idle = soc.processors.iter().find(|p| {
            options.co_run.is_some()
                && p.kind == ProcessorKind::Gpu
                && !plan.devices.contains(&p.name)
        });
        let idle = idle.and_then(|p| devices.iter().find(|d| d.name() == p.name));
        let (sender, _) = sync_channel(1);
        let frames = idle.map(|gpu| gpu.queue(devices.len(), clock.clone(), sender)).transpose()?;
        let parts = EngineParts {
            spec: &shape.spec,
            shapes: &shapes,
            weights: &store,
            plan,
            devices: &devices,
            clock: clock.clone(),
            tracer: tracer.clone(),
            sharing: Sharing::default(),
        };
        let before = board.usage();
        let engine = Engine::new(parts)?;
        let prepared = strategy.prepares_online().then(|| [before, board.usage()]);
        Ok(Simulation {
            engine,
            board,
            vocab: shape.spec.vocab,
            soc: soc.name.clone(),
            weight_bytes: weight_bytes(&lowered),
            prompt: *prompt,
            generate: *generate,
            prepared,
            _frames: frames,
        })
    }

    /// The plan in use.
    pub fn plan(&self) -> &Plan {
        self.engine.plan()
    }

    /// Computes the prompt and generates. `progress` is told how many tokens are generated, of how
    /// many.
    ///
    /// # Errors
    /// A failing device.
    pub fn run(
        &mut self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Figures, SimulateError> {
        let seq = self.engine.open();
        let start = self.board.usage();
        self.feed(seq, self.prompt)?;
        let first = self.board.usage();
        for made in 1..self.generate {
            progress(made, self.generate);
            self.feed(seq, 1)?;
        }
        progress(self.generate, self.generate);
        let end = self.board.usage();
        if end.now_ns > u64::MAX / 2 {
            // Beyond this the clock saturates.
            return Err(SimulateError::Years(self.soc.clone()));
        }
        self.engine.close(seq);
        let memory = self.engine.memory();
        let engine_bytes = memory.kv_cache + memory.activations + memory.scratch;
        let between = |a: &Usage, b: &Usage| b.now_ns - a.now_ns;
        let (mut prefill_j, mut prepare_ns) = (self.board.energy_j(&start, &first), 0);
        if let Some([before, after]) = &self.prepared {
            let prepare_j = self.board.energy_j(before, after);
            prefill_j = prefill_j.zip(prepare_j).map(|(run, prepare)| run + prepare);
            prepare_ns = between(before, after);
        }
        Ok(Figures {
            ttft_ns: between(&start, &first) + prepare_ns,
            prepare_ns,
            decode_ns: between(&first, &end),
            prompt: self.prompt,
            generated: self.generate,
            prefill_j,
            decode_j: self.board.energy_j(&first, &end),
            peak_bytes: self.weight_bytes + engine_bytes,
            frame_rates: [(&start, &first), (&first, &end)].map(|(a, b)| {
                let frames = (b.frames - a.frames) as f64;
                frames / (between(a, b).max(1) as f64 * 1e-9)
            }),
        })
    }

    fn feed(&mut self, seq: SeqId, count: usize) -> Result<(), SimulateError> {
        let tokens: Vec<u32> = (0..count).map(|i| (i % self.vocab) as u32).collect();
        let input = [SequenceInput { seq, tokens: &tokens, logits: WantedLogits::Last }];
        Ok(self.engine.run_unread(&input)?)
    }
}

/// Devices, and the SoC they belong to.
type OnBoard = (Vec<Arc<dyn Device>>, Arc<Board>);

/// All processors of a SoC. They share its memory and a clock.
///
/// # Errors
/// The CPU kernels that compute their values cannot be set up.
fn on_board(soc: &Soc) -> Result<OnBoard, DeviceError> {
    let board = Board::new(soc, Arc::default());
    let open =
        |p: &Processor| Ok(Arc::new(VirtualDevice::on(&board, &p.name, p)?) as Arc<dyn Device>);
    let devices = soc.processors.iter().map(open).collect::<Result<_, DeviceError>>()?;
    Ok((devices, board))
}

/// Bytes of all weights, each counted once.
fn weight_bytes(lowered: &Lowered) -> u64 {
    let mut sum: u64 = 0;
    let mut seen = std::collections::HashSet::new();
    for w in lowered.segments.iter().flat_map(|s| &s.graph.weights) {
        if seen.insert(&w.name) {
            let row = w.dtype.row_bytes(w.cols).unwrap_or(0) as u64;
            sum = sum.saturating_add((w.rows as u64).saturating_mul(row));
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
) -> Result<Plan, SimulateError> {
    let base = PlanRequest {
        context: Some(r.context),
        chunk: r.prompt,
        kv_dtype: Some(DType::F16),
        sync: r.sync,
        ..PlanRequest::default()
    };
    let facts: Vec<DeviceFacts> = devices.iter().map(|d| DeviceFacts::of(&**d)).collect();
    let one = make(r.spec, &facts, &base).map_err(Error::Plan)?;
    let refusals = troika_engine::examine(r.spec, shapes, &one, devices)?;
    // The CPU is left to control the other processors, if there are any (HeteroInfer, section 4).
    let alone = r.soc.processors.iter().all(|p| p.kind == ProcessorKind::Cpu);
    let used = devices.iter().zip(&r.soc.processors);
    let used = used.filter(|(_, p)| alone || p.kind != ProcessorKind::Cpu);
    let devices: Vec<PlanDevice> = used.map(|(d, _)| plan_device(d)).collect();
    let candidates = hand_made(r, &devices);
    let request = SolveRequest {
        spec: r.spec,
        lowered: r.lowered,
        devices: &devices,
        cost: &costs::SocCosts::of(r.soc, &devices),
        refusals: &refusals,
        goal: Goal::Ttft,
        base: &base,
        prompt: r.prompt,
        generate: options.generate,
        several_copies: false,
        lengths: &[],
        candidates: &candidates,
    };
    Ok(solve(&request).map_err(Error::Plan)?.plan)
}

/// The plans of the other strategies, as far as the devices can run them. Code that is made for one
/// prompt is no part of a plan for others.
fn hand_made(r: &placed::Request<'_>, devices: &[PlanDevice]) -> Vec<(String, Plan)> {
    let usable = |plan: &Plan| plan.devices.iter().all(|d| devices.iter().any(|o| o.name == *d));
    let others = SocStrategy::ALL.into_iter();
    let others = others.filter(|s| *s != SocStrategy::Solved && !s.prepares_online());
    let plan = |strategy| Some((strategy, placed::plan(&placed::Request { strategy, ..*r }).ok()?));
    let plans = others.filter_map(plan).filter(|(_, plan)| usable(plan));
    plans.map(|(strategy, plan)| (strategy.name().to_string(), plan)).collect()
}

/// Moves ops that the plan's processors refuse to others.
fn around_refusals(
    spec: &ModelSpec,
    shapes: WeightShapes<'_>,
    plan: &mut Plan,
    devices: &[Arc<dyn Device>],
) -> Result<(), SimulateError> {
    let refusals = troika_engine::examine(spec, shapes, plan, devices)?;
    let names: Vec<&str> = devices.iter().map(|d| d.name()).collect();
    plan.avoid(&refusals, &names).map_err(Error::Plan)?;
    Ok(())
}
