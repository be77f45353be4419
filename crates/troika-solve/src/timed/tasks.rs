//! Tasks with their prices, and lists of them.

use std::rc::Rc;

use troika_model::lower::SegmentKind;
use troika_program::schedule::{ListId, OrderWait};
use troika_time::TaskCost;

/// A task of a list.
pub(super) struct TimedTask {
    pub need: TaskCost,
    /// Bytes that it writes for others.
    pub written: u64,
    /// Whether it computes a row that continues a sequence.
    pub decodes: bool,
    /// Whether another device waits for it.
    pub awaited: bool,
    /// Of runs: the device, the code and the number of rows.
    pub key: Option<[usize; 3]>,
    /// What it dispatches, if it is a step of shared experts.
    pub dispatch: Option<Dispatched>,
}

impl TimedTask {
    /// A task other than a run.
    pub fn beside(need: TaskCost, awaited: bool) -> TimedTask {
        TimedTask { need, written: 0, decodes: false, awaited, key: None, dispatch: None }
    }
}

/// What the price of a run depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunKey {
    /// Index in the program's list of graphs.
    pub graph: usize,
    pub kind: SegmentKind,
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
    pub set: Option<usize>,
    /// Rows of the chunk.
    pub rows: usize,
    /// The chunk's place among those that share buffers, and whether it is the last one.
    pub place: (usize, bool),
}

/// A list that is done.
pub(super) struct Report {
    pub device: usize,
    /// The job, and the list in it.
    pub id: (usize, ListId),
    pub took: Vec<(u32, u64)>,
}

/// A list of tasks.
pub(super) struct List {
    pub id: (usize, ListId),
    pub numbers: Vec<u32>,
    pub tasks: Rc<Vec<TimedTask>>,
    pub waits: Vec<OrderWait>,
    /// Numbers of tasks whose end is signalled.
    pub signals: Vec<u64>,
    /// What each task took.
    pub took: Vec<(u32, u64)>,
}

impl List {
    pub fn task(&self, at: usize) -> &TimedTask {
        &self.tasks[self.numbers[at] as usize]
    }
}
