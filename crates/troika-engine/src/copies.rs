//! What a plan copies between memory spaces, counted on the tasks that would run: the engine makes
//! them on devices that compile nothing and compute nothing.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Buffer, Caps, Clock, CommandList, Completion, Device, DeviceError, DeviceKind, Executable,
    OutOfMemory, PackFn, PackLayout, Packed, Queue, RealClock, SpaceId, WeightData, WeightSource,
    Weights, Work,
};
use troika_graph::Subgraph;
use troika_model::lower::WeightShapes;
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, own_space};
use troika_trace::Tracer;

use crate::engine::{Engine, EngineParts, Sharing};
use crate::error::EngineError;
use crate::input::{SequenceInput, WantedLogits};
use crate::schedule::Task;

/// Copies from one memory to another, or within one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCount {
    /// The device whose memory is read; `None`: the host's.
    pub from: Option<String>,
    /// The device whose memory is written; `None`: the host's.
    pub to: Option<String>,
    /// How many copies.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What a phase copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseCopies {
    /// The phase.
    pub phase: Phase,
    /// Tokens that are computed at once.
    pub tokens: usize,
    /// Positions that are cached before.
    pub cached: usize,
    /// The copies of caches that these positions need before, once.
    pub handover: Vec<CopyCount>,
    /// The copies of values, for each such run.
    pub values: Vec<CopyCount>,
}

/// Counts what a plan copies for a chunk of a prompt and for a decoded token, without weights: the
/// tasks are made as for a run, and not run.
///
/// # Errors
/// What keeps the plan from being run: a spec that cannot be lowered, a split that leaves a device
/// nothing, or no memory for values between segments.
pub fn copies(
    spec: &ModelSpec,
    shapes: WeightShapes<'_>,
    plan: &Plan,
    devices: &[Arc<dyn Device>],
) -> Result<Vec<PhaseCopies>, EngineError> {
    let dry = |d: &Arc<dyn Device>| Arc::new(DryDevice(d.clone())) as Arc<dyn Device>;
    let dry: Vec<Arc<dyn Device>> = devices.iter().map(dry).collect();
    // What is copied does not depend on the context: a cache of few positions is made.
    let chunk = plan.prefill.chunk.min(plan.context.saturating_sub(1)).max(1);
    let plan = Plan { context: plan.context.min(chunk + 1), ..plan.clone() };
    let context = plan.context;
    let mut engine = Engine::new(EngineParts {
        spec,
        shapes,
        weights: &NoWeights,
        plan,
        devices: &dry,
        clock: Arc::new(RealClock::new()),
        tracer: Tracer::off(),
        sharing: Sharing::default(),
    })?;
    let seq = engine.open();
    let mut phases = Vec::new();
    let (prompt, token) = (vec![0; chunk], [0]);
    for (phase, tokens) in [(Phase::Prefill, &prompt[..]), (Phase::Decode, &token[..])] {
        let cached = engine.len(seq);
        if cached + tokens.len() > context {
            // A context of one token: nothing is decoded.
            break;
        }
        let input = SequenceInput { seq, tokens, logits: WantedLogits::Last };
        let (handover, tasks) = engine.tasks_without_running(&input)?;
        let (handover, values) = (count(&handover, &dry), count(&tasks, &dry));
        phases.push(PhaseCopies { phase, tokens: tokens.len(), cached, handover, values });
    }
    Ok(phases)
}

/// The copies among some tasks, by the memories that they join, in the order of the first of each.
fn count(tasks: &[Task], devices: &[Arc<dyn Device>]) -> Vec<CopyCount> {
    let owner = |space: SpaceId| {
        let owner = devices.iter().find(|d| own_space(d.caps()) == space);
        owner.filter(|_| space != SpaceId::HOST).map(|d| d.name().to_string())
    };
    let mut counts: Vec<CopyCount> = Vec::new();
    for task in tasks {
        let Work::Copy(copy) = &task.work else { continue };
        let (from, to) = (owner(copy.from.buffer().space()), owner(copy.to.buffer().space()));
        let rect = copy.to.rect();
        let bytes = (rect.rows() as u64).saturating_mul(rect.row_bytes() as u64);
        match counts.iter_mut().find(|c| (&c.from, &c.to) == (&from, &to)) {
            Some(known) => {
                known.count += 1;
                known.bytes = known.bytes.saturating_add(bytes);
            }
            None => counts.push(CopyCount { from, to, count: 1, bytes }),
        }
    }
    counts
}

/// A device by its name and limits, which compiles to nothing and whose memory nobody fills.
struct DryDevice(Arc<dyn Device>);

impl Device for DryDevice {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn kind(&self) -> DeviceKind {
        self.0.kind()
    }

    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        match own_space(self.caps()) {
            SpaceId::HOST => Buffer::zeroed(bytes),
            own => Buffer::in_space(own, bytes, 0),
        }
    }

    fn compile(&self, _: &Subgraph) -> Result<Arc<Executable>, DeviceError> {
        Ok(Arc::new(Executable::new((), 0)))
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        _: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        Ok(Arc::new(Weights::new(executable, ())))
    }

    fn queue(
        &self,
        _: usize,
        _: Arc<dyn Clock>,
        _: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        Ok(Box::new(NoQueue(self.name().into())))
    }
}

/// A queue that runs nothing.
struct NoQueue(String);

impl Queue for NoQueue {
    fn submit(&mut self, _: CommandList) -> Result<(), DeviceError> {
        Err(DeviceError::Gone(self.0.clone()))
    }
}

/// Nobody asks for weights.
struct NoWeights;

impl NoWeights {
    fn refuse<T>(name: &str) -> Result<T, DeviceError> {
        let why = "is not read where nothing is compiled".into();
        Err(DeviceError::Weight { name: name.into(), why })
    }
}

impl WeightSource for NoWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        NoWeights::refuse(name)
    }

    fn packed(&self, name: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        NoWeights::refuse(name)
    }
}
