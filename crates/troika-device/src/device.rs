//! Devices, executables, queues.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use troika_graph::Subgraph;

use crate::caps::{Caps, DeviceKind};
use crate::clock::Clock;
use crate::error::DeviceError;
use crate::executable::{Executable, Weights};
use crate::forward_batch::ForwardBatch;
use crate::host::{HostTask, LoadTask};
use crate::memory::{Buffer, OutOfMemory, View};
use crate::timeline::{Signal, Timelines, Wait, Waiting};
use crate::weight::WeightSource;

/// Memory for a subgraph's inputs, states and outputs, in its order.
///
/// A view whose rows follow each other without gaps is a range of bytes: a value's rows lie in it
/// one after another from its start on. A view whose rows lie apart has rows as wide as the
/// value's.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// For [`Subgraph::inputs`].
    pub inputs: Vec<View>,
    /// For [`Subgraph::states`].
    pub states: Vec<View>,
    /// For [`Subgraph::outputs`].
    pub outputs: Vec<View>,
}

/// One entry of a command list.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The caller's name for it, given back in [`TaskTime`].
    pub tag: u32,
    /// What to do.
    pub work: Work,
}

/// What a queue does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs an executable.
    Run(Run),
    /// Copies rows between memory spaces, or within one to where they follow each other without
    /// gaps. Goes to the queue of a device that reaches both.
    Copy(CopyRows),
    /// Runs a small function. Goes to the queue of a device that runs them
    /// ([`Caps::host_tasks`]).
    Host(Arc<HostTask>),
    /// Makes or reads something; goes where host tasks go.
    Load(Arc<LoadTask>),
}

/// A copy of rows to a view with as many rows of as many bytes.
#[derive(Clone, Debug)]
pub struct CopyRows {
    /// Where they are.
    pub from: View,
    /// Where they go.
    pub to: View,
}

/// One run of an executable.
#[derive(Clone, Debug)]
pub struct Run {
    /// What to run: weights, with the code that reads them.
    pub weights: Arc<Weights>,
    /// On which memory. Where the device takes static shapes only, views of inputs and outputs
    /// have room for all rows of the shape that was compiled; those behind `rows` are padding:
    /// their contents are undefined, and what is computed of them is nobody's.
    pub bindings: Arc<Bindings>,
    /// Value of the symbol `rows`: how many are valid.
    pub rows: usize,
    /// The sequences behind the rows (attention looks at it).
    pub forward: Arc<ForwardBatch>,
}

/// Submissions that run in order on one queue and complete together.
#[derive(Debug, Default)]
pub struct CommandList {
    /// The caller's name for it.
    pub id: u64,
    /// The runs.
    pub tasks: Vec<Submission>,
    /// Report each task's times.
    pub timed: bool,
    /// Room for the times; the caller gives it back with the next list.
    pub times: Vec<TaskTime>,
    /// What some tasks wait for before they begin, in the order of the tasks. None for queues that
    /// do not wait by themselves ([`Caps::queue_waits`]).
    pub waits: Vec<Wait>,
    /// What the queue's timeline reaches after some tasks, in the order of the tasks.
    pub signals: Vec<Signal>,
    /// How to wait.
    pub waiting: Waiting,
    /// How far the queues have come that run parts of the same graph.
    pub timelines: Option<Arc<Timelines>>,
}

/// When a task ran, by the queue's clock.
#[derive(Clone, Copy, Debug)]
pub struct TaskTime {
    /// The submission's tag.
    pub tag: u32,
    /// Start.
    pub start: Duration,
    /// End.
    pub end: Duration,
    /// What a modelled device would have taken; `None` for devices that only measure.
    pub modelled: Option<Duration>,
}

/// Report of a finished command list.
#[derive(Debug)]
pub struct Completion {
    /// Which queue of the receiver: the number given to [`Device::queue`].
    pub queue: usize,
    /// The list, emptied; its allocation can be used again.
    pub list: CommandList,
    /// Whether all tasks ran; after a failure the rest of the list is skipped.
    pub outcome: Result<(), DeviceError>,
    /// Times, when asked for.
    pub times: Vec<TaskTime>,
}

/// A device: a handful of verbs.
pub trait Device: Send + Sync {
    /// Name, unique in the process (`cpu`, `cpu1`, `npu`).
    fn name(&self) -> &str;

    /// Class.
    fn kind(&self) -> DeviceKind;

    /// Capabilities and limits.
    fn caps(&self) -> &Caps;

    /// The virtual clock that a modelled device's time can pass on; `None` for a device that works
    /// in real time. A run whose devices all have the same one goes by it; beside others, a
    /// modelled device computes at once and reports what it would have taken
    /// ([`TaskTime::modelled`]).
    fn clock(&self) -> Option<Arc<dyn Clock>> {
        None
    }

    /// Predicts for each op of a subgraph whether the device takes it: `None`, or why not.
    /// Compiling decides.
    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        vec![None; graph.nodes.len()]
    }

    /// Memory in the first of the device's spaces ([`Caps::spaces`]).
    ///
    /// # Errors
    /// When there is not so much.
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        Buffer::zeroed(bytes)
    }

    /// Makes code of a subgraph, for all of the same shape ([`Subgraph::same_code`]). May take
    /// long; the result is cheap to run.
    ///
    /// # Errors
    /// An op, type or size the device cannot do.
    fn compile(&self, graph: &Subgraph) -> Result<Arc<Executable>, DeviceError>;

    /// Brings a subgraph's weights into the form in which code of its shape reads them. A device
    /// that bakes them into code ([`Caps::bakes_weights`]) finishes that here, and takes the
    /// graph only that the code was made of.
    ///
    /// # Errors
    /// A weight that cannot be had or does not fit; code of another device or shape.
    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError>;

    /// Opens a queue whose completions carry `number` and go to `done`, which has room for one of
    /// each list that is in flight: no message needs memory of its own.
    ///
    /// # Errors
    /// When the device has no queue left or its driver fails.
    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError>;
}

impl Weights {
    /// Compiles a graph and loads its weights, for a caller that shares the code with no other.
    ///
    /// # Errors
    /// As [`Device::compile`] and [`Device::load`].
    pub fn compiled(
        device: &dyn Device,
        graph: &Subgraph,
        source: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        device.load(&device.compile(graph)?, graph, source)
    }
}

/// An in-order queue of a device.
pub trait Queue: Send {
    /// Hands over a command list and returns at once.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] when the device no longer works.
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError>;

    /// Whether the queue still works on its lists. One whose thread died reports nothing any more;
    /// what it had reported before is on its way.
    fn is_alive(&self) -> bool {
        true
    }

    /// Runs a list on the calling thread, for a caller that has nothing else to do: the
    /// completion is returned, not sent, and nobody is woken up. Nothing may be in flight on the
    /// queue.
    ///
    /// # Errors
    /// The list back from a queue that does not compute on the caller's thread: submit it.
    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        Err(list)
    }
}
