//! Tasks with their prices, and lists of them.

use std::sync::Arc;

use troika_program::schedule::{DeviceOrder, Graph, JobList, Schedule};
use troika_program::{PackedSet, SlotLoad};
use troika_time::TaskCost;

/// Tasks that run together.
pub(super) struct TimedGraph {
    pub tasks: Vec<TimedTask>,
    pub schedule: Arc<Schedule>,
}

impl Graph for TimedGraph {
    /// The number of the code.
    type Key = usize;

    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn cost_key(&self, task: u32) -> Option<(usize, usize)> {
        self.tasks[task as usize].key
    }
}

/// A task of a list.
pub(super) struct TimedTask {
    pub need: TaskCost,
    /// Bytes that it writes for others.
    pub written: u64,
    /// Whether it computes a row that continues a sequence.
    pub decodes: bool,
    /// Whether another device waits for it.
    pub awaited: bool,
    /// Of runs: the code and the number of rows.
    pub key: Option<(usize, usize)>,
    /// What becomes known by it.
    pub grows: Option<Grows>,
}

/// What becomes known by a task.
pub(super) enum Grows {
    /// The runs of routed experts.
    Dispatched(Dispatched),
    /// The runs of a group that has come into a slot of a cache.
    Loaded { load: SlotLoad, experts: usize },
}

impl TimedTask {
    /// A task other than a run.
    pub fn beside(need: TaskCost, awaited: bool) -> TimedTask {
        TimedTask { need, written: 0, decodes: false, awaited, key: None, grows: None }
    }
}

/// What the price of a run depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunKey {
    /// Index in the program's list of graphs.
    pub graph: usize,
    pub rows: usize,
    pub room: usize,
    pub cached: usize,
}

/// What a task dispatches.
#[derive(Clone, Copy)]
pub(super) struct Dispatched {
    /// Index in the program's list of shared experts.
    pub experts: usize,
    /// The set of packed buffers.
    pub set: PackedSet,
    /// Rows of the chunk.
    pub rows: usize,
    /// The chunk's place among those that share buffers, and whether it is the last one.
    pub place: (usize, bool),
}

/// A list of tasks.
pub(super) struct List {
    pub id: JobList,
    pub numbers: Vec<u32>,
    pub graph: Arc<TimedGraph>,
    /// Its waits and signals, if the order is fixed.
    pub order: DeviceOrder,
    /// What they are counted from.
    pub base: u64,
    /// What each task took.
    pub took: Vec<(u32, u64)>,
}

impl List {
    pub fn task(&self, at: usize) -> &TimedTask {
        &self.graph.tasks[self.numbers[at] as usize]
    }
}
