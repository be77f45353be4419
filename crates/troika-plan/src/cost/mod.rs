//! What runs, hand-overs and copies cost: asked by the solver, answered from a profile's fits or by a
//! model of a system on a chip.

mod work;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_device::Caps;
use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use crate::{DeviceFacts, SyncMode};

pub use work::RunWork;

/// A run of a segment's graph, or of a piece of it, whose cost is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PricedRun<'a> {
    /// The device, by its index in the list that the solver was given.
    pub device: usize,
    /// The segment that the graph is of.
    pub kind: SegmentKind,
    /// The graph, with the symbol `rows` still in it.
    pub graph: &'a Subgraph,
    /// Rows that are wanted.
    pub rows: usize,
    /// Rows that are computed: on a device with static shapes those of the shape, padding included.
    pub room: usize,
    /// Positions of the sequence that are cached before the first row.
    pub cached: usize,
}

/// What things cost. Times are nanoseconds. The same question always has the same answer.
///
/// Devices are told by their index in [`crate::SolveRequest::devices`].
pub trait CostModel {
    /// Where the figures come from, for people: "profile of a machine", "socs/phone.toml".
    fn source(&self) -> String;

    /// A run on an otherwise idle machine, from when the device begins with it to its end.
    fn run_ns(&self, run: &PricedRun<'_>) -> f64;

    /// How many times slower each of some runs is while all of them are under way, each on another
    /// device: at least 1. Devices that share memory share its bandwidth.
    fn slowdowns(&self, runs: &[PricedRun<'_>]) -> Vec<f64> {
        vec![1.0; runs.len()]
    }

    /// From the end of a run on one device to the start of one on another that waits for it.
    fn hand_over_ns(&self, from: usize, to: usize, sync: SyncMode) -> f64;

    /// What it costs to give a device a list of tasks and hear of its end, where several devices
    /// share the work of a chunk or token; once for each of them.
    fn submit_ns(&self, _device: usize) -> f64 {
        0.0
    }

    /// A copy by a device between its own memory and another.
    fn copy_ns(&self, device: usize, bytes: u64) -> f64;

    /// Whether stages of a segment have prices of their own. If not, segments are not placed stage by
    /// stage.
    fn knows_stages(&self) -> bool {
        true
    }

    /// Making code of a graph for so many rows, before anything runs.
    fn compile_ns(&self, _device: usize, _graph: &Subgraph, _room: usize) -> f64 {
        0.0
    }

    /// Energy that a run takes besides what the machine takes when it is idle; `None` where it is
    /// not known.
    fn run_j(&self, _run: &PricedRun<'_>) -> Option<f64> {
        None
    }

    /// Power that the machine takes in any case.
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
    /// What strategies know of it.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            name: self.name.clone(),
            activations: self.caps.activation_formats.clone(),
            row_buckets: self.caps.row_buckets.clone(),
            max_binding_bytes: self.caps.max_binding_bytes,
        }
    }
}

/// What a plan is to be best at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The time to the first token; among equals, tokens per second.
    #[default]
    Ttft,
    /// Tokens per second once decoding; among equals, the time to the first token.
    Tps,
    /// The energy of prompt and answer. It is modelled, not measured.
    Energy,
}

impl Goal {
    /// All goals.
    pub const ALL: [Goal; 3] = [Goal::Ttft, Goal::Tps, Goal::Energy];

    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Ttft => "ttft",
            Goal::Tps => "tps",
            Goal::Energy => "energy",
        }
    }

    /// The goal of a name.
    pub fn parse(name: &str) -> Option<Goal> {
        Goal::ALL.into_iter().find(|g| g.name() == name)
    }
}

/// What a plan is predicted to cost, with where that comes from. Part of the plan file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Where the figures come from.
    pub source: String,
    /// Tokens of the prompt that is meant.
    pub prompt: usize,
    /// Tokens that are generated after it.
    pub generate: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
    /// A generated token.
    pub tpot_us: f64,
    /// Energy of all of it; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Making code of all graphs, before anything runs.
    #[serde(default)]
    pub compile_us: f64,
    /// Bytes of weights on each device. Where devices share memory, those of one form are there
    /// once.
    #[serde(default)]
    pub weight_bytes: BTreeMap<String, u64>,
    /// Bytes of all weights, each form in each memory counted once.
    #[serde(default)]
    pub total_bytes: u64,
    /// For prompts of other lengths: tokens, and the time to the first token.
    #[serde(default)]
    pub lengths: Vec<PredictedLength>,
}

/// The time of a prompt of some length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedLength {
    /// Tokens.
    pub tokens: usize,
    /// From the start of the prompt to its last logits.
    pub ttft_us: f64,
}

impl Predicted {
    /// What a goal makes as small as possible. Energy that is not known is the time of all of it:
    /// who takes longest keeps the machine awake longest.
    pub fn score(&self, goal: Goal) -> f64 {
        let all = self.ttft_us + self.tpot_us * self.generate as f64;
        match goal {
            // The other figure decides among equals only.
            Goal::Ttft => self.ttft_us + self.tpot_us * 1e-6,
            Goal::Tps => self.tpot_us + self.ttft_us * 1e-9,
            Goal::Energy => self.energy_j.unwrap_or(all),
        }
    }
}
