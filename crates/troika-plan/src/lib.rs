//! Plans: which device runs which segment, at which shape, with which activation formats.
//!
//! This is the one place that decides placement and precision. A plan is a JSON file: `troika plan`
//! writes it, people edit it, and whoever runs it checks it first ([`Plan::check`]). See the
//! README of this crate for a worked example.

mod avoid;
mod check;
mod cost;
mod error;
mod fit;
mod json;
mod load;
mod make;
mod profile;
mod refusal;
mod share;
mod solve;
mod strategy;

use serde::{Deserialize, Serialize};
use troika_graph::{ActivationFormat, DType};
use troika_model::lower::SegmentKind;

pub use avoid::describe_refusals;
pub use cost::{CostModel, Goal, Predicted, PredictedLength, PricedRun, RunWork, SolveDevice};
pub use error::PlanError;
pub use fit::{Fits, RunFit};
pub use load::{ChunkTime, ChunkTimes, Decide, DeviceLoad, DeviceTime, LoadRules, OtherRules};
pub use make::{PlanRequest, make, page_len};
pub use profile::{
    DeviceSample, PROFILE_VERSION, PairSample, Profile, ProfileError, ProfileSubject,
    ProfiledCosts, ProfiledDevice, ProfiledGraph, Regret, RunSample, Slowdown, Spread,
    profiled_graphs,
};
pub use refusal::Refusal;
pub use share::{TILE, compiled_rows, own_space, stage_borders};
pub use solve::{Alternative, PredictRequest, SolveRequest, Solved, check_memory, predict, solve};
pub use strategy::{DeviceFacts, Ratio, StandardLength, Strategy};

/// Version of the plan file this build reads and writes.
pub const PLAN_VERSION: u32 = 2;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// Which model it is for.
    pub model: ModelId,
    /// How it came about, for people: a [`Strategy`]'s name, or anything.
    pub strategy: String,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Positions per page of the KV cache (a power of two).
    pub page_len: usize,
    /// Element type of the KV cache: `F32`, `F16` or `BF16`.
    pub kv_dtype: DType,
    /// Names of the devices that the rules place segments on.
    pub devices: Vec<String>,
    /// How devices wait for each other; absent: predicted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sync: SyncMode,
    /// How prompts are computed.
    pub prefill: Prefill,
    /// How tokens are computed one after another.
    pub decode: Decode,
    /// Other ways to place chunks of prompts, for who decides by load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_load: Vec<LoadRules>,
    /// What it is predicted to cost, for people: nothing goes by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

/// The phases of a sequence, which may be placed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Many tokens of a sequence at once.
    Prefill,
    /// One token that continues a sequence.
    Decode,
}

impl Phase {
    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// How prompts are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// Rows of a prompt chunk: the bound of the symbol `rows`.
    pub chunk: usize,
    /// Chunks that may be under way at once, each with its own values between segments.
    pub chunks_in_flight: usize,
    /// The order in which ready segments run.
    pub policy: Policy,
    /// The device that must not stall: `out-of-order` goes by it. Absent: the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_device: Option<String>,
    /// Where each segment runs.
    pub rules: Vec<Rule>,
    /// Where the segments of shorter chunks run instead, by length: ascending, each shorter than
    /// `chunk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<LengthRules>,
}

/// The rules of chunks that are short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthRules {
    /// They are for chunks of at most so many rows, and more than the bucket before allows.
    pub up_to: usize,
    /// Where each segment runs.
    pub rules: Vec<Rule>,
}

/// How tokens are computed one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// Where each segment runs.
    pub rules: Vec<Rule>,
}

/// The order in which ready segments run on a device that is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Of the ready ones the earliest in program order (chunk after chunk, segment after segment).
    #[default]
    InOrder,
    /// What keeps the critical device busiest (llm.npu, section 3.4, equation 5), by costs learnt
    /// from former runs.
    OutOfOrder,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 2] = [Policy::InOrder, Policy::OutOfOrder];

    /// Stable name, as in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::InOrder => "in-order",
            Policy::OutOfOrder => "out-of-order",
        }
    }

    /// The policy of a name.
    pub fn parse(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// How a device waits for another one's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMode {
    /// Sleeps for most of the time that it took before, then looks again and again (HeteroInfer,
    /// section 4.3): it goes on soon, and keeps a core busy meanwhile.
    #[default]
    Predicted,
    /// Sleeps until woken.
    Blocking,
}

impl SyncMode {
    /// All modes.
    pub const ALL: [SyncMode; 2] = [SyncMode::Predicted, SyncMode::Blocking];

    /// Stable name, as in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            SyncMode::Predicted => "predicted",
            SyncMode::Blocking => "blocking",
        }
    }

    /// The mode of a name.
    pub fn parse(name: &str) -> Option<SyncMode> {
        SyncMode::ALL.into_iter().find(|m| m.name() == name)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Segments, and the device they run on. Exactly one rule of a phase matches each segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Kinds of segments; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<SegmentKind>>,
    /// Layers; absent: all, and the segments before and behind the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
    /// Name of the device that computes them, or with `split` what is not shared out.
    pub device: String,
    /// How they are shared out among several devices; absent: they are not. Attention is split by
    /// columns only, which are those of its heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Ops that a device of this rule does not take, and who computes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedOps>,
    /// Type in which the segments hand their results to other segments; logits are always f32, and
    /// absent is f32, too. A 16-bit type halves what is copied between memory spaces.
    #[serde(default = "single_precision", skip_serializing_if = "is_single_precision")]
    pub values: DType,
    /// The numbers of rows, ascending, that its segments are compiled for on devices that take
    /// static shapes only; absent: those that each device names. More rows than the largest run
    /// one part after another, others are padded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_buckets: Option<Vec<usize>>,
    /// Formats, besides f32, that products may take their activations in: each product uses the
    /// one that its weights' type has a path for.
    #[serde(default)]
    pub activations: Vec<ActivationFormat>,
}

fn single_precision() -> DType {
    DType::F32
}

fn is_single_precision(dtype: &DType) -> bool {
    *dtype == DType::F32
}

/// How segments are shared out among devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Split {
    /// By columns of the results (weight-centric). The rule's device is the part with the largest
    /// share: it computes what cannot be split.
    Columns {
        /// The devices with their shares.
        parts: Vec<Share>,
    },
    /// By rows (activation-centric): standard lengths on the rule's device, what is left on
    /// another.
    Rows {
        /// The standard lengths.
        lengths: Vec<usize>,
        /// The device that computes the rest.
        rest: String,
    },
    /// By both: standard lengths of rows on the rule's device, the rest by columns.
    Hybrid {
        /// The standard lengths.
        lengths: Vec<usize>,
        /// The devices that share the rest, the rule's among them.
        parts: Vec<Share>,
    },
    /// By stages, each of which is shared out in its own way: the segment is cut wherever products
    /// begin and end. A feed-forward is norm, gate and up, their activation, down, and the sum.
    Stages {
        /// One for each stage.
        stages: Vec<Stage>,
    },
}

/// A stage of a segment: products of the same inputs, or the ops between products.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name of the device that computes it, or with `split` what is not shared out.
    pub device: String,
    /// How it is shared out among several devices; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

impl Split {
    /// The parts of a split by columns.
    pub fn parts(&self) -> &[Share] {
        match self {
            Split::Columns { parts } | Split::Hybrid { parts, .. } => parts,
            Split::Rows { .. } | Split::Stages { .. } => &[],
        }
    }

    /// The standard lengths of a split by rows.
    pub fn lengths(&self) -> &[usize] {
        match self {
            Split::Columns { .. } | Split::Stages { .. } => &[],
            Split::Rows { lengths, .. } | Split::Hybrid { lengths, .. } => lengths,
        }
    }
}

impl Split {
    /// The devices that it names.
    pub fn devices(&self) -> Vec<&str> {
        match self {
            Split::Rows { rest, .. } => vec![rest],
            Split::Columns { parts } | Split::Hybrid { parts, .. } => {
                parts.iter().map(|p| p.device.as_str()).collect()
            }
            Split::Stages { stages } => {
                let of_splits = stages.iter().filter_map(|s| s.split.as_ref());
                let own = stages.iter().map(|s| s.device.as_str());
                own.chain(of_splits.flat_map(Split::devices)).collect()
            }
        }
    }
}

/// A device's share of the columns, in any unit: with shares of 3 and 1 the first device computes
/// three quarters, rounded to tiles and heads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// Its share.
    pub share: u32,
}

/// Ops that a device does not take: the segments are cut around them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedOps {
    /// The device.
    pub device: String,
    /// The segments in which it does not take them.
    pub segments: Vec<SegmentKind>,
    /// Names of the ops.
    pub ops: Vec<String>,
    /// The device that computes them instead.
    pub by: String,
}

/// Every `step`-th layer from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// First layer.
    pub first: usize,
    /// Last layer.
    pub last: usize,
    /// Distance from one layer to the next.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub step: usize,
}

fn one() -> usize {
    1
}

fn is_one(step: &usize) -> bool {
    *step == 1
}

impl Layers {
    /// Whether a layer is among them.
    pub fn contains(&self, layer: usize) -> bool {
        let inside = self.first <= layer && layer <= self.last;
        inside && (layer - self.first).is_multiple_of(self.step.max(1))
    }
}

/// What a plan must agree with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelId {
    /// Family.
    pub family: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
}

impl Rule {
    /// Whether the rule is about a segment.
    pub fn matches(&self, kind: SegmentKind, layer: Option<usize>) -> bool {
        self.segments.as_ref().is_none_or(|kinds| kinds.contains(&kind))
            && self.layers.is_none_or(|layers| layer.is_some_and(|l| layers.contains(l)))
    }

    /// The devices that its segments are placed on, the rule's own first; those that stand in for
    /// them come last.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let split = self.split.iter().flat_map(Split::devices);
        let others = self.refused.iter().map(|r| r.by.as_str());
        std::iter::once(self.device.as_str()).chain(split).chain(others)
    }

    /// Whether another rule says the same of the segments that both match.
    pub fn places_as(&self, other: &Rule) -> bool {
        (&self.device, &self.split, &self.refused, &self.row_buckets, &self.activations)
            == (&other.device, &other.split, &other.refused, &other.row_buckets, &other.activations)
    }

    /// Who computes an op of a segment that is placed on a device.
    pub fn device_of<'a>(&'a self, device: &'a str, kind: SegmentKind, op: &str) -> &'a str {
        let refused = |r: &&RefusedOps| {
            r.device == device && r.segments.contains(&kind) && r.ops.iter().any(|o| o == op)
        };
        self.refused.iter().find(refused).map_or(device, |r| r.by.as_str())
    }
}

impl Plan {
    /// The rules of a phase; of prefill, those of full chunks.
    pub fn rules(&self, phase: Phase) -> &[Rule] {
        match phase {
            Phase::Prefill => &self.prefill.rules,
            Phase::Decode => &self.decode.rules,
        }
    }

    /// The rule for a segment in a forward batch of so many rows.
    pub fn rule_for(
        &self,
        (phase, rows): (Phase, usize),
        kind: SegmentKind,
        layer: Option<usize>,
    ) -> Option<&Rule> {
        let mut lists = self.rule_lists(phase);
        let list = lists.find(|(up_to, _)| rows <= *up_to).map(|(_, rules)| rules);
        list.unwrap_or(self.rules(phase)).iter().find(|r| r.matches(kind, layer))
    }

    /// All lists of rules of a phase, each with the most rows of a chunk that it is for: of prefill
    /// those of its length buckets, then those of full chunks.
    pub fn rule_lists(&self, phase: Phase) -> impl Iterator<Item = (usize, &[Rule])> {
        let lengths: &[LengthRules] = match phase {
            Phase::Prefill => &self.prefill.lengths,
            Phase::Decode => &[],
        };
        let short = lengths.iter().map(|l| (l.up_to, l.rules.as_slice()));
        short.chain([(self.prefill.chunk, self.rules(phase))])
    }

    /// All lists of rules of both phases, those of other ways to place chunks among them, each with
    /// its phase and the most rows that it is for.
    pub fn all_lists(&self) -> impl Iterator<Item = ((Phase, usize), &[Rule])> {
        let of = |p| self.rule_lists(p).map(move |(up_to, rules)| ((p, up_to), rules));
        let others = self.other_lists().map(|(up_to, rules)| ((Phase::Prefill, up_to), rules));
        let decode = self.rules(Phase::Decode);
        of(Phase::Prefill).chain(others).chain([((Phase::Decode, 1), decode)])
    }

    /// Every rule of the plan.
    pub fn all_rules(&self) -> impl Iterator<Item = &Rule> {
        self.all_lists().flat_map(|(_, rules)| rules)
    }

    /// Every rule of the plan, to be changed.
    pub fn all_rules_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        let short = self.prefill.lengths.iter_mut().flat_map(|l| &mut l.rules);
        let others = self.by_load.iter_mut().flat_map(|l| &mut l.others);
        let others = others.flat_map(|o| &mut o.rules);
        short.chain(&mut self.prefill.rules).chain(&mut self.decode.rules).chain(others)
    }

    /// The rule for a segment. A plan that was checked has exactly one.
    pub fn rule(&self, phase: Phase, kind: SegmentKind, layer: Option<usize>) -> Option<&Rule> {
        self.rules(phase).iter().find(|r| r.matches(kind, layer))
    }

    /// The formats, besides f32, that any product may take its activations in.
    pub fn activations(&self) -> Vec<ActivationFormat> {
        let mut all: Vec<ActivationFormat> = Vec::new();
        for rule in self.all_rules() {
            let new = rule.activations.iter().filter(|a| !all.contains(a)).copied();
            let new: Vec<ActivationFormat> = new.collect();
            all.extend(new);
        }
        all
    }

    /// The device that must not stall, by its place among the plan's devices.
    pub fn critical_device(&self) -> usize {
        let named = self.prefill.critical_device.as_ref();
        named.and_then(|name| self.devices.iter().position(|d| d == name)).unwrap_or(0)
    }

    /// Reads a plan file's text. It is not checked yet.
    ///
    /// # Errors
    /// Text that is no plan: what is wrong and where.
    pub fn from_json(text: &str) -> Result<Plan, PlanError> {
        // Another version has other fields: its number says more than the first of them.
        let version = serde_json::from_str::<serde_json::Value>(text);
        let version = version.ok().and_then(|v| v.get("version")?.as_u64());
        if let Some(found) = version.filter(|&v| v != u64::from(PLAN_VERSION)) {
            return Err(PlanError::Version { found });
        }
        serde_json::from_str(text).map_err(|e| PlanError::Parse(json::fault(&e)))
    }

    /// The plan file's text.
    pub fn to_json(&self) -> String {
        // INVARIANT: maps have string keys, and no value fails to serialize.
        serde_json::to_string_pretty(self).expect("INVARIANT: a plan is plain data") + "\n"
    }
}
