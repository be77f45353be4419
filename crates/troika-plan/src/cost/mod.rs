//! The costs of runs, hand-overs and copies that the solver uses. They come from a profile's fits
//! or from a model of a system on a chip.

mod work;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_device::Caps;
use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use crate::{DeviceFacts, SyncMode};

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

/// A device as the solver sees it: a name and limits. It compiles and runs nothing.
#[derive(Clone, Debug)]
pub struct SolveDevice {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub caps: Caps,
}

impl SolveDevice {
    /// The facts that strategies use.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            name: self.name.clone(),
            activations: self.caps.activation_formats.clone(),
            row_buckets: self.caps.row_buckets.clone(),
            max_binding_bytes: self.caps.max_binding_bytes,
        }
    }
}

/// What a plan should optimise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The time to the first token; for equal plans, tokens per second.
    #[default]
    Ttft,
    /// Tokens per second in decoding; for equal plans, the time to the first token.
    Tps,
    /// The energy of prompt and answer. It is modelled, not measured.
    Energy,
}

impl Goal {
    /// All goals.
    pub const ALL: [Goal; 3] = [Goal::Ttft, Goal::Tps, Goal::Energy];

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Ttft => "ttft",
            Goal::Tps => "tps",
            Goal::Energy => "energy",
        }
    }

    /// The goal with a given name.
    pub fn parse(name: &str) -> Option<Goal> {
        Goal::ALL.into_iter().find(|g| g.name() == name)
    }
}

/// The predicted costs of a plan, with their source. Part of the plan file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// The source of the figures.
    pub source: String,
    /// Tokens of the assumed prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub generate: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
    /// The time of a generated token.
    pub tpot_us: f64,
    /// Energy of prompt and answer; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// The time to compile all graphs, before anything runs.
    #[serde(default)]
    pub compile_us: f64,
    /// Bytes of weights on each device. Devices that share memory share weights of the same form.
    #[serde(default)]
    pub weight_bytes: BTreeMap<String, u64>,
    /// Bytes of all weights; each form is counted once per memory.
    #[serde(default)]
    pub total_bytes: u64,
    /// Predictions for prompts of other lengths.
    #[serde(default)]
    pub lengths: Vec<PredictedLength>,
}

/// The predicted time of a prompt of some length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedLength {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
}

impl Predicted {
    /// The quantity that a goal minimises. Unknown energy is replaced by the total time, since a
    /// slower plan keeps the machine awake longer.
    pub fn score(&self, goal: Goal) -> f64 {
        let all = self.ttft_us + self.tpot_us * self.generate as f64;
        match goal {
            // The other figure only decides between equal plans.
            Goal::Ttft => self.ttft_us + self.tpot_us * 1e-6,
            Goal::Tps => self.tpot_us + self.ttft_us * 1e-9,
            Goal::Energy => self.energy_j.unwrap_or(all),
        }
    }
}
