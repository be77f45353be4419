//! Devices, command lists and queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use troika_graph::Subgraph;

use crate::caps::{Caps, DeviceKind};
use crate::clock::Clock;
use crate::error::DeviceError;
use crate::executable::{Executable, Weights};
use crate::forward_batch::ForwardBatch;
use crate::host::HostTask;
use crate::memory::{Buffer, OutOfMemory, View};
use crate::timeline::{Signal, Timelines, Wait, Waiting};
use crate::weight::WeightSource;

/// Tells the devices of a process apart: each knows its own code and weights by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId(u64);

impl DeviceId {
    /// One that no other device has.
    pub fn unique() -> DeviceId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DeviceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The memory of a subgraph's inputs, states and outputs, in its order.
///
/// The rows of a dense view follow each other without gaps: such a view is just a range of bytes
/// that begins with the value's first row. In a view with gaps, each row is as wide as the value's.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// For [`Subgraph::inputs`].
    pub inputs: Vec<View>,
    /// For [`Subgraph::states`].
    pub states: Vec<View>,
    /// For [`Subgraph::outputs`].
    pub outputs: Vec<View>,
}

/// An entry of a command list.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The caller's name for it, returned in [`TaskTime`].
    pub tag: u32,
    /// The work.
    pub work: Work,
}

/// The kinds of work of a queue.
#[derive(Clone, Debug)]
pub enum Work {
    /// Runs an executable.
    Run(Run),
    /// Copies rows between memory spaces, or within one to make them dense. It is for a queue whose
    /// device reaches both.
    Copy(CopyRows),
    /// Runs a small function. It is for a queue whose device runs host functions
    /// ([`Caps::host_tasks`]).
    Host(Arc<HostTask>),
}

/// A copy of rows to a view with the same number of rows and bytes per row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRows<V = View> {
    /// The source.
    pub from: V,
    /// The destination.
    pub to: V,
    /// Picks this many of the largest numbers of each row of f32, at most [`Caps::top_k`]. A row
    /// of the destination has these numbers, the largest first and equal ones by column, and then
    /// their columns as u32. NaN counts as minus infinity.
    pub top_k: Option<usize>,
}

impl<V> CopyRows<V> {
    /// Of whole rows.
    pub fn whole(from: V, to: V) -> CopyRows<V> {
        CopyRows { from, to, top_k: None }
    }
}

/// One run of an executable.
#[derive(Clone, Debug)]
pub struct Run {
    /// The weights, with the code that reads them.
    pub weights: Arc<Weights>,
    /// The memory. With static shapes, views of inputs and outputs have room for all rows of the
    /// compiled shape. Rows behind `rows` are padding: their contents are undefined, and so are
    /// results computed from them.
    pub bindings: Arc<Bindings>,
    /// Value of the symbol `rows`: the number of valid rows.
    pub rows: usize,
    /// The sequences of the rows, for attention.
    pub forward: Arc<ForwardBatch>,
}

/// Tasks that run in order on one queue and complete together.
#[derive(Debug, Default)]
pub struct CommandList {
    /// The caller's name for it.
    pub id: u64,
    /// The tasks.
    pub tasks: Vec<Submission>,
    /// Whether to report each task's times.
    pub timed: bool,
    /// Memory for the times; the caller returns it with the next list.
    pub times: Vec<TaskTime>,
    /// The waits of tasks before they begin, in task order. Empty for queues that cannot wait by
    /// themselves ([`Caps::queue_waits`]).
    pub waits: Vec<Wait>,
    /// The values that the queue's timeline reaches after tasks, in task order.
    pub signals: Vec<Signal>,
    /// How to wait.
    pub waiting: Waiting,
    /// The timelines of all queues that run parts of the same graph.
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
    /// The modelled time; `None` for real devices.
    pub modelled: Option<Duration>,
}

/// The report of a finished command list.
#[derive(Debug)]
pub struct Completion {
    /// The queue's number for the receiver, as given to [`Device::queue`].
    pub queue: usize,
    /// The emptied list, so that its memory can be reused.
    pub list: CommandList,
    /// Whether all tasks ran; a failure skips the rest of the list.
    pub outcome: Result<(), DeviceError>,
    /// Times, if requested.
    pub times: Vec<TaskTime>,
}

/// A device: compiles graphs, loads weights, and opens queues that run them.
pub trait Device: Send + Sync {
    /// Its name, unique in the process (`cpu`, `cpu1`, `npu`).
    fn name(&self) -> &str;

    /// Its class.
    fn kind(&self) -> DeviceKind;

    /// Its capabilities and limits.
    fn caps(&self) -> &Caps;

    /// The virtual clock of a modelled device; `None` for a real one. If all devices of a run share
    /// one virtual clock, the run uses it. Beside real devices, a modelled device computes at once
    /// and reports the modelled times ([`TaskTime::modelled`]).
    fn clock(&self) -> Option<Arc<dyn Clock>> {
        None
    }

    /// For each op of a subgraph, why the device would refuse it, or `None`. Only compiling gives
    /// certainty.
    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        vec![None; graph.nodes.len()]
    }

    /// Allocates memory in the device's first space ([`Caps::spaces`]).
    ///
    /// # Errors
    /// There is not enough memory.
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        Buffer::zeroed(bytes)
    }

    /// Compiles code for all subgraphs of these shapes ([`Subgraph::same_code`]). May be slow; runs
    /// are cheap. It ends soon after the request says to stop, with [`DeviceError::Cancelled`] for
    /// what is not made: a device whose compiler may hang runs it where it can be left behind.
    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults;

    /// Loads a subgraph's weights in the form that code of its shape reads. A device that bakes
    /// weights into code ([`Caps::bakes_weights`]) takes only the graph that it was compiled from.
    ///
    /// # Errors
    /// A weight is missing or does not fit, or the code is of another device or shape.
    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError>;

    /// Opens a queue that loads this device's weights while it computes: it runs functions of the
    /// host, [`crate::LOADER_DEPTH`] lists of them, and is else as [`Device::queue`] says. `None`: a
    /// thread will do ([`crate::loader`]).
    ///
    /// # Errors
    /// As those of [`Device::queue`].
    fn loader(
        &self,
        _number: usize,
        _clock: &Arc<dyn Clock>,
        _done: &SyncSender<Completion>,
    ) -> Result<Option<Box<dyn Queue>>, DeviceError> {
        Ok(None)
    }

    /// Opens a queue. Its completions carry `number` and go to `done`, which must have room for one
    /// per list in flight, so that sending needs no memory.
    ///
    /// # Errors
    /// The device has no queue left, or its driver fails.
    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError>;
}

/// For each graph of a request its code, or why the device refuses it.
pub type CompileResults = Vec<Result<Arc<Executable>, DeviceError>>;

/// Graphs that a device compiles in one call.
#[derive(Clone, Copy)]
pub struct CompileRequest<'a> {
    /// One of each shape; all graphs of a package if the device bakes weights into code
    /// ([`Caps::bakes_weights`]).
    pub graphs: &'a [&'a Subgraph],
    /// The weights of the graphs, for devices that bake them.
    pub weights: &'a dyn WeightSource,
    /// Told how many graphs are made or refused, as often as the device likes. Returns whether to
    /// continue.
    pub report_progress: &'a (dyn Fn(usize) -> bool + Sync),
}

impl CompileRequest<'_> {
    /// Compiles one graph after another, for devices whose compiler takes one at a time and does
    /// not hang.
    pub fn each(
        &self,
        one: impl Fn(&Subgraph) -> Result<Arc<Executable>, DeviceError>,
    ) -> CompileResults {
        let mut on = (self.report_progress)(0);
        let compiled = self.graphs.iter().enumerate().map(|(i, graph)| {
            let code = if on { one(graph) } else { Err(DeviceError::Cancelled) };
            on = on && (self.report_progress)(i + 1);
            code
        });
        compiled.collect()
    }
}

impl Executable {
    /// Compiles one graph, for callers that neither watch nor stop it.
    ///
    /// # Errors
    /// Why the device refuses the graph.
    pub fn compiled(
        device: &dyn Device,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Executable>, DeviceError> {
        let request = CompileRequest { graphs: &[graph], weights, report_progress: &|_| true };
        device.compile(&request).pop().unwrap_or(Err(DeviceError::Cancelled))
    }
}

impl Weights {
    /// Compiles a graph and loads its weights, for callers that do not share the code.
    ///
    /// # Errors
    /// Those of [`Executable::compiled`] and [`Device::load`].
    pub fn compiled(
        device: &dyn Device,
        graph: &Subgraph,
        source: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        device.load(&Executable::compiled(device, graph, source)?, graph, source)
    }
}

/// An in-order queue of a device.
pub trait Queue: Send {
    /// Submits a command list and returns at once.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] if the device no longer works.
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError>;

    /// Whether the queue still works. One whose thread died reports nothing more; its earlier
    /// reports are in the channel.
    fn is_alive(&self) -> bool {
        true
    }

    /// Runs a list on the calling thread, for callers that would only wait. The completion is
    /// returned instead of sent. Nothing may be in flight on the queue.
    ///
    /// # Errors
    /// The list, if the queue does not compute on the caller's thread: submit it instead.
    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        Err(list)
    }
}
