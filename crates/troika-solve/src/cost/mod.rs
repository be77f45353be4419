//! The costs of runs, hand-overs and copies that the solver uses. They come from a profile's fits
//! or from a model of a system on a chip.

mod work;

use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use troika_plan::SyncMode;

pub use work::RunWork;

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

    /// Power of the idle machine.
    fn idle_w(&self) -> Option<f64> {
        None
    }
}
