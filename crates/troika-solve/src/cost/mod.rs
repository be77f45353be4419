//! The costs of runs, hand-overs and copies that the solver uses. They come from a profile's fits
//! or from a model of a system on a chip.

use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use troika_plan::SyncMode;
use troika_time::{LaneCosts, TaskCost, Usage};

/// Several devices are used only if they reduce the best single device's time below this share.
pub(crate) const WORTH_SHARING: f64 = 0.97;

/// A run of a segment's graph, or of a piece of it, to be priced.
#[derive(Clone, Copy, Debug)]
pub struct PricedRun<'a> {
    /// Index of the device in the solver's list.
    pub device: usize,
    /// The kind of segment.
    pub kind: SegmentKind,
    /// The graph, with the symbol `rows` unbound.
    pub graph: &'a Subgraph,
    /// Rows needed.
    pub rows: usize,
    /// Rows computed: with static shapes all rows of the shape, padding included.
    pub room: usize,
    /// Positions of the sequence cached before the first row.
    pub cached: usize,
}

/// What it costs to use a device's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueCosts {
    /// Submitting.
    pub lane: LaneCosts,
    /// Nanoseconds until others know of a task's end.
    pub told_ns: u64,
    /// Bytes per nanosecond of what the task wrote, if it is copied before.
    pub told_bytes_per_ns: Option<f64>,
    /// Whether that is so for any task that ends a list, or only where another device waits.
    pub tells_all: bool,
    /// Whether a task of a prompt that waits for another device is submitted when the wait is over.
    pub submits_waits: bool,
}

/// A cost of `ns` nanoseconds, rounded up. NaN and negative times count as endless.
pub fn lasting(ns: f64) -> TaskCost {
    let ns = if ns >= 0.0 { ns.ceil() as u64 } else { u64::MAX };
    TaskCost { ns, ..TaskCost::default() }
}

/// Nanoseconds of a cost; infinite if it is endless.
fn ns_of(cost: TaskCost) -> f64 {
    if cost.ns == u64::MAX { f64::INFINITY } else { cost.ns as f64 }
}

/// What moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// A copy by a device between its own memory and another.
    Copy,
    /// A function of the host on a device.
    Host,
    /// What loads weights into a device's memory, once for a graph.
    Load,
}

/// Prices for the solver. Equal questions must get equal answers.
///
/// Devices are given by their index in [`crate::SolveRequest::devices`].
pub trait CostModel {
    /// The source of the figures, for people: "profile of a machine", "socs/phone.toml".
    fn source(&self) -> String;

    /// What a run needs on an otherwise idle machine.
    fn run(&self, run: &PricedRun<'_>) -> TaskCost;

    /// What it needs to move bytes on a device.
    fn moving(&self, mover: Mover, device: usize, bytes: u64) -> TaskCost;

    /// The share of its speed that each of some tasks gets while all of them run; `None` stands for
    /// a copy.
    fn shares(&self, running: &[(Option<PricedRun<'_>>, TaskCost)]) -> Vec<f64> {
        vec![1.0; running.len()]
    }

    /// What it costs to use a device's queue, in a plan of several devices or of this one alone.
    fn queue(&self, device: usize, devices: &[usize], sync: SyncMode) -> QueueCosts;

    /// Whether stages of a segment can be priced. If not, segments are not placed stage by stage.
    fn knows_stages(&self) -> bool {
        true
    }

    /// The share of the best single device's time that several devices must stay below.
    fn worth_sharing(&self) -> f64 {
        WORTH_SHARING
    }

    /// The time to compile a graph for a number of rows, before anything runs.
    fn compile_ns(&self, _device: usize, _graph: &Subgraph, _room: usize) -> f64 {
        0.0
    }

    /// Energy of a run beyond what the idle machine uses; `None` if unknown.
    fn run_j(&self, _run: &PricedRun<'_>) -> Option<f64> {
        None
    }

    /// Joules of the devices' work from the start of a machine; `None` if unknown.
    fn machine_j(&self, _usage: &Usage) -> Option<f64> {
        None
    }

    /// Power of the idle machine.
    fn idle_w(&self) -> Option<f64> {
        None
    }
}

impl dyn CostModel + '_ {
    /// Nanoseconds of a run on an otherwise idle machine.
    pub fn run_ns(&self, run: &PricedRun<'_>) -> f64 {
        ns_of(self.run(run))
    }

    /// Nanoseconds of a copy by a device.
    pub fn copy_ns(&self, device: usize, bytes: u64) -> f64 {
        ns_of(self.moving(Mover::Copy, device, bytes))
    }

    /// Nanoseconds from the end of a run on one device to the start of a waiting run on another.
    pub fn hand_over_ns(&self, from: usize, to: usize, sync: SyncMode) -> f64 {
        let both = [from, to];
        let queue = self.queue(from, &both, sync);
        let submitted = if queue.submits_waits { self.submit_ns(to, from, sync) } else { 0.0 };
        queue.told_ns as f64 + submitted
    }

    /// Nanoseconds to give a device a list of tasks, beside another device.
    pub fn submit_ns(&self, device: usize, other: usize, sync: SyncMode) -> f64 {
        self.queue(device, &[device, other], sync).lane.submit_ns as f64
    }

    /// The slowdown (at least 1) of each of some runs on different devices while all of them run.
    pub fn slowdowns(&self, runs: &[PricedRun<'_>]) -> Vec<f64> {
        let all: Vec<_> = runs.iter().map(|run| (Some(*run), self.run(run))).collect();
        self.shares(&all).into_iter().map(|share| 1.0 / share).collect()
    }
}
