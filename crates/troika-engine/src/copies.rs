//! Counts what a plan copies between memory spaces. It makes the tasks that would run, on devices
//! that neither compile nor compute.

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
    /// The device whose memory is read; `None`: host memory.
    pub from: Option<String>,
    /// The device whose memory is written; `None`: host memory.
    pub to: Option<String>,
    /// Number of copies.
    pub count: usize,
    /// Bytes of all copies together.
    pub bytes: u64,
}

/// The copies of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseCopies {
    /// The phase.
    pub phase: Phase,
    /// Tokens computed at once.
    pub tokens: usize,
    /// Positions that are cached already.
    pub cached: usize,
    /// Copies of the caches, once before these tokens.
    pub handover: Vec<CopyCount>,
    /// Copies of values, in each such run.
    pub values: Vec<CopyCount>,
}

/// Counts what a plan copies for a chunk of a prompt and for a decoded token. It needs no weights:
/// the tasks are made but not run.
///
/// # Errors
/// Why the plan cannot run: the spec cannot be lowered, a split leaves a device nothing, or there
/// is no memory for values between segments.
pub fn copies(
    spec: &ModelSpec,
    shapes: WeightShapes<'_>,
    plan: &Plan,
    devices: &[Arc<dyn Device>],
) -> Result<Vec<PhaseCopies>, EngineError> {
    let dry = |d: &Arc<dyn Device>| Arc::new(DryDevice(d.clone())) as Arc<dyn Device>;
    let dry: Vec<Arc<dyn Device>> = devices.iter().map(dry).collect();
    // The copies do not depend on the context: a small cache is enough.
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
            // A context of one token leaves nothing to decode.
            break;
        }
        let input = SequenceInput { seq, tokens, logits: WantedLogits::Last };
        let (handover, tasks) = engine.tasks_without_running(&input)?;
        let (handover, values) = (count(&handover, &dry), count(&tasks, &dry));
        phases.push(PhaseCopies { phase, tokens: tokens.len(), cached, handover, values });
    }
    Ok(phases)
}

/// Counts copies by pair of memories, in the order of the first copy of each pair.
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

/// A device with the name and limits of another; it compiles nothing and its memory stays empty.
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

/// Weights that nobody reads.
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
