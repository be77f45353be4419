//! The costs of runs, hand-overs and copies that the solver uses. They come from a profile's fits
//! or from a model of a system on a chip.

use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use troika_plan::SyncMode;
use troika_time::{LaneCosts, TaskCost, Usage};

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
    /// Rows computed: with static shapes those of the shape, padding included.
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

/// Nanoseconds, rounded up; a time that is none counts as endless.
fn whole_ns(ns: f64) -> u64 {
    if ns >= 0.0 { ns.ceil() as u64 } else { u64::MAX }
}

/// Prices for the solver, in nanoseconds. Equal questions must get equal answers.
///
/// Devices are given by their index in [`crate::SolveRequest::devices`].
pub trait CostModel {
    /// The source of the figures, for people: "profile of a machine", "socs/phone.toml".
    fn source(&self) -> String;

    /// The time of a run on an otherwise idle machine.
    fn run_ns(&self, run: &PricedRun<'_>) -> f64;

    /// The slowdown (at least 1) of each of some runs on different devices while all of them run.
    /// Devices with common memory share its bandwidth.
    fn slowdowns(&self, runs: &[PricedRun<'_>]) -> Vec<f64> {
        vec![1.0; runs.len()]
    }

    /// From the end of a run on one device to the start of a waiting run on another.
    fn hand_over_ns(&self, from: usize, to: usize, sync: SyncMode) -> f64;

    /// The cost of giving a device a list of tasks and learning of its end, once per device of a
    /// chunk or token. Counted only where several devices share the work.
    fn submit_ns(&self, _device: usize) -> f64 {
        0.0
    }

    /// A copy by a device between its own memory and another.
    fn copy_ns(&self, device: usize, bytes: u64) -> f64;

    /// Whether stages of a segment can be priced. If not, segments are not placed stage by stage.
    fn knows_stages(&self) -> bool {
        true
    }

    /// The time to compile a graph for a number of rows, before anything runs.
    fn compile_ns(&self, _device: usize, _graph: &Subgraph, _room: usize) -> f64 {
        0.0
    }

    /// Energy of a run beyond that of the idle machine; `None` if unknown.
    fn run_j(&self, _run: &PricedRun<'_>) -> Option<f64> {
        None
    }

    /// What a run needs of a machine whose memory is shared. The default moves no bytes.
    fn need(&self, run: &PricedRun<'_>) -> TaskCost {
        TaskCost { ns: whole_ns(self.run_ns(run)), ..TaskCost::default() }
    }

    /// What a copy by a device needs.
    fn copy_need(&self, device: usize, bytes: u64) -> TaskCost {
        TaskCost { ns: whole_ns(self.copy_ns(device, bytes)), ..TaskCost::default() }
    }

    /// What a function of the host on a device needs that moves so many bytes.
    fn host_need(&self, device: usize, bytes: u64) -> TaskCost {
        self.copy_need(device, bytes)
    }

    /// The share of its speed that each of some tasks gets while all run; `None` stands for a copy.
    fn shares(&self, running: &[(Option<PricedRun<'_>>, TaskCost)]) -> Vec<f64> {
        let runs: Vec<PricedRun<'_>> = running.iter().filter_map(|(run, _)| *run).collect();
        let alone = runs.len() < 2;
        let mut factors = if alone { vec![1.0] } else { self.slowdowns(&runs) }.into_iter();
        // Copies slow nothing down, and nothing slows them down.
        let of_run = |run: &Option<_>| run.as_ref().and_then(|_| factors.next()).unwrap_or(1.0);
        running.iter().map(|(run, _)| run).map(of_run).map(|f| 1.0 / f.max(1.0)).collect()
    }

    /// What it costs to use a device's queue, in a plan of several devices or of this one alone.
    fn queue(&self, device: usize, devices: &[usize], sync: SyncMode) -> QueueCosts {
        let others = devices.iter().filter(|d| **d != device);
        let told = others.map(|to| self.hand_over_ns(device, *to, sync)).fold(0.0, f64::max);
        // A single device computes on the caller's thread.
        let submit = if devices.len() > 1 { self.submit_ns(device) } else { 0.0 };
        QueueCosts {
            lane: LaneCosts { submit_ns: whole_ns(submit), waits_each_run: false },
            told_ns: whole_ns(told),
            told_bytes_per_ns: None,
            tells_all: false,
            submits_waits: false,
        }
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
