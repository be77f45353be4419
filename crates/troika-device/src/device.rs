//! Devices, executables, queues.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use troika_graph::Subgraph;

use crate::buffer::Buffer;
use crate::caps::{Caps, DeviceKind};
use crate::clock::Clock;
use crate::error::DeviceError;
use crate::step::Step;
use crate::weight::WeightSource;

/// Handle of an executable on the device that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutableId(pub u64);

/// What compiling gave.
#[derive(Clone, Debug)]
pub struct ExecutableInfo {
    /// Handle to submit with.
    pub id: ExecutableId,
    /// Bytes of packed weights made for this executable alone (shared ones not counted).
    pub weight_bytes: u64,
    /// Bytes of scratch memory a run needs.
    pub scratch_bytes: u64,
}

/// A buffer at an offset, bound to a value of a subgraph.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The memory.
    pub buffer: Buffer,
    /// First byte of row 0.
    pub offset: usize,
}

impl Binding {
    /// The whole buffer.
    pub fn whole(buffer: &Buffer) -> Binding {
        Binding { buffer: buffer.clone(), offset: 0 }
    }
}

/// Buffers for a subgraph's inputs, states and outputs, in its order.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// For [`Subgraph::inputs`].
    pub inputs: Vec<Binding>,
    /// For [`Subgraph::states`].
    pub states: Vec<Binding>,
    /// For [`Subgraph::outputs`].
    pub outputs: Vec<Binding>,
}

/// One run of an executable.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The caller's name for it, given back in [`TaskTime`].
    pub tag: u32,
    /// What to run.
    pub executable: ExecutableId,
    /// On which memory.
    pub bindings: Arc<Bindings>,
    /// Value of the symbol `rows`.
    pub rows: usize,
    /// The sequences behind the rows (attention looks at it).
    pub step: Arc<Step>,
}

/// Submissions that run in order on one queue and complete together.
#[derive(Debug, Default)]
pub struct Batch {
    /// The caller's name for it.
    pub id: u64,
    /// The runs.
    pub tasks: Vec<Submission>,
    /// Report each task's times.
    pub timed: bool,
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
}

/// Report of a finished batch.
#[derive(Debug)]
pub struct Completion {
    /// Which queue of the receiver: the number given to [`Device::queue`].
    pub queue: usize,
    /// The batch, emptied; its allocation can be used again.
    pub batch: Batch,
    /// Whether all tasks ran; after a failure the rest of the batch is skipped.
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

    /// Makes a subgraph runnable. May take long; the result is cheap to run.
    ///
    /// # Errors
    /// An op, type or size the device cannot do, or a weight that cannot be had.
    fn compile(
        &self,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<ExecutableInfo, DeviceError>;

    /// Frees an executable. Unknown ids are ignored.
    fn release(&self, id: ExecutableId);

    /// Opens a queue whose completions carry `number` and go to `done`.
    ///
    /// # Errors
    /// When the device has no queue left or its driver fails.
    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: Sender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError>;
}

/// An in-order queue of a device.
pub trait Queue: Send {
    /// Hands over a batch and returns at once.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] when the device no longer works.
    fn submit(&mut self, batch: Batch) -> Result<(), DeviceError>;

    /// Runs a batch on the calling thread, for a caller that has nothing else to do: the
    /// completion is returned, not sent, and nobody is woken up. Nothing may be in flight on the
    /// queue.
    ///
    /// # Errors
    /// The batch back from a queue that does not compute on the caller's thread: submit it.
    fn run_here(&mut self, batch: Batch) -> Result<Completion, Batch> {
        Err(batch)
    }
}
