//! The plan as data: rules for the segments of both phases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_graph::{ActivationFormat, DType, ProductForm};
use troika_model::lower::{LowerOptions, SegmentKind};
use troika_model::spec::WeightRole;

use crate::error::PlanError;
use crate::experts::{ExpertCachePlan, ExpertGroupPlan, ExpertSplit};
use crate::identity::{ModelId, PLAN_VERSION};
use crate::json::{fault, is_default};
use crate::predicted::Predicted;
use crate::ratio::Share;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The model it is for.
    pub model: ModelId,
    /// How the plan was made, for people: a [`crate::Strategy`]'s name, or any text.
    pub strategy: String,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Positions per page of the KV cache (a power of two).
    pub page_len: usize,
    /// Element type of the KV cache: `F32`, `F16` or `BF16`.
    pub kv_dtype: DType,
    /// Names of the devices that the rules place segments on.
    pub devices: Vec<String>,
    /// The digest of the calibration that formats of the rules need ([`Calibration::digest`]);
    /// absent: of any calibration, or none is needed.
    ///
    /// [`Calibration::digest`]: crate::Calibration::digest
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// How devices wait for each other; absent: predicted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sync: SyncMode,
    /// Names of the rewrites of NPUs' graphs (docs/npu.md); absent: the device's default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub npu_rewrites: Vec<String>,
    /// Devices on which groups of experts come and go; on others all groups stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_caches: Vec<ExpertCachePlan>,
    /// How prompts are computed.
    pub prefill: Prefill,
    /// How decoding is placed.
    pub decode: Decode,
    /// The predicted costs, for people: nothing depends on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

troika_model::named! {
    /// The phases of a sequence. They may be placed differently.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Phase {
        /// Many tokens of a sequence at once.
        #[default]
        Prefill = "prefill",
        /// One token that continues a sequence.
        Decode = "decode",
    }
}

/// How prompts are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// The most rows of a prompt chunk: the bound of the symbol `rows`.
    pub chunk: usize,
    /// The most chunks in flight; each has its own values between segments.
    pub chunks_in_flight: usize,
    /// The order in which ready segments run.
    pub policy: Policy,
    /// The device that must not stall, used by `out-of-order`. Absent: the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critical_device: Option<String>,
    /// Where each segment runs.
    pub rules: Vec<Rule>,
    /// Other rules for shorter chunks, by ascending length. Each length is below `chunk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<LengthRules>,
}

/// The rules for chunks of a length bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthRules {
    /// The longest chunk of the bucket; it begins above the previous bucket's length.
    pub up_to: usize,
    /// Where each segment runs.
    pub rules: Vec<Rule>,
}

/// The rules of a plan, still without activation formats and value types.
pub struct PlannedRules {
    /// Those of full chunks.
    pub prefill: Vec<Rule>,
    /// Those of shorter chunks.
    pub lengths: Vec<LengthRules>,
    /// Those of decode.
    pub decode: Vec<Rule>,
}

/// The placement of decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// Where each segment runs.
    pub rules: Vec<Rule>,
}

troika_model::named! {
    /// The order in which ready segments run on a free device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Policy {
        /// Program order, one chunk after another: what llm.npu compares itself with. Such a plan
        /// has one chunk in flight.
        ChunkAtATime = "chunk-at-a-time",
        /// The earliest ready one in program order (chunk by chunk, segment by segment).
        #[default]
        InOrder = "in-order",
        /// The one that keeps the critical device busiest by what it makes ready (llm.npu, section
        /// 3.4, equation 5), by costs learnt from earlier runs.
        OutOfOrder = "out-of-order",
        /// The one with the longest way from its start to the end of all chunks in flight, by costs
        /// learnt from earlier runs.
        CriticalPath = "critical-path",
    }
}

impl Policy {
    /// Whether it goes by the costs of tasks, and so decides as late as it can.
    pub fn weighs(self) -> bool {
        matches!(self, Policy::OutOfOrder | Policy::CriticalPath)
    }
}

troika_model::named! {
    /// How a device waits for another one's results.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum SyncMode {
        /// Sleeps for most of the expected time, then polls (HeteroInfer, section 4.3). It continues
        /// sooner, but keeps a core busy while it polls.
        #[default]
        Predicted = "predicted",
        /// Sleeps until woken.
        Blocking = "blocking",
    }
}

/// Where some segments run. Exactly one rule of a phase matches each segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Kinds of segments; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<SegmentKind>>,
    /// Layers; absent: all, including the segments before and behind the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
    /// The device that computes them, or with `split` the parts that cannot be split.
    pub device: String,
    /// How several devices share them; absent: only one computes. Attention can be split only by
    /// columns, in whole heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Ops that a device of this rule refuses, and which device computes them instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedOps>,
    /// The type in which the segments pass results to other segments; absent: f32. Logits are
    /// always f32. A 16-bit type halves the copies between memory spaces.
    #[serde(default = "single_precision", skip_serializing_if = "is_single_precision")]
    pub values: DType,
    /// For devices with static shapes: the numbers of rows to compile for, ascending; absent: each
    /// device's own. Longer inputs run in several parts, shorter ones are padded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_buckets: Option<Vec<usize>>,
    /// The weights whose products have their operands exchanged: `(weight * x^T)^T` instead of
    /// `x * weight^T`, on devices that may gain from it ([`troika_device::Caps::forms`]). Others
    /// compute the same as they would anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchange: Vec<WeightRole>,
    /// The weights whose products see their rows as groups of so many, on such devices
    /// ([`ProductForm::Groups`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub group_rows: BTreeMap<WeightRole, usize>,
    /// The formats, besides f32, that products may use for activations. Each product uses the one
    /// that suits its weights' type.
    #[serde(default)]
    pub activations: Vec<ActivationFormat>,
}

fn single_precision() -> DType {
    DType::F32
}

fn is_single_precision(dtype: &DType) -> bool {
    *dtype == DType::F32
}

/// How devices share a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Split {
    /// By columns of the results (weight-centric). The part with the largest share belongs to the
    /// rule's device, which also computes what cannot be split.
    Columns {
        /// The devices with their shares.
        parts: Vec<Share>,
    },
    /// By rows (activation-centric): standard lengths on the rule's device, the rest on another.
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
        /// The devices that share the rest, including the rule's.
        parts: Vec<Share>,
    },
    /// By value: products in a format of a calibration on the rule's device, and what clipping to
    /// its limits takes from them on another one, which also computes all other ops (llm.npu,
    /// section 3.3).
    Residual {
        /// The device that computes with the outliers.
        by: String,
    },
    /// By stages, each shared in its own way. The segment is cut where products begin and end: a
    /// feed-forward has the stages norm, gate and up, activation, down, and sum.
    Stages {
        /// One for each stage.
        stages: Vec<Stage>,
    },
    /// By experts: groups of them on other devices, all else on the rule's.
    Experts(ExpertSplit),
}

/// A stage of a segment: products of the same inputs, or the ops between products.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// The device that computes it, or with `split` the parts that cannot be split.
    pub device: String,
    /// How several devices share it; absent: only one computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
}

impl Split {
    /// The parts of a split by columns.
    pub fn parts(&self) -> &[Share] {
        match self {
            Split::Columns { parts } | Split::Hybrid { parts, .. } => parts,
            _ => &[],
        }
    }

    /// The standard lengths of a split by rows.
    pub fn lengths(&self) -> &[usize] {
        match self {
            Split::Rows { lengths, .. } | Split::Hybrid { lengths, .. } => lengths,
            _ => &[],
        }
    }

    /// The names of its devices.
    pub fn devices(&self) -> Vec<&str> {
        match self {
            Split::Rows { rest: other, .. } | Split::Residual { by: other } => vec![other],
            Split::Columns { parts } | Split::Hybrid { parts, .. } => {
                parts.iter().map(|p| p.device.as_str()).collect()
            }
            Split::Stages { stages } => {
                let of_splits = stages.iter().filter_map(|s| s.split.as_ref());
                let own = stages.iter().map(|s| s.device.as_str());
                own.chain(of_splits.flat_map(Split::devices)).collect()
            }
            Split::Experts(split) => split.groups.iter().flat_map(|g| g.devices()).collect(),
        }
    }
}

/// Ops that a device refuses. Segments are cut around them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedOps {
    /// The device.
    pub device: String,
    /// The segments in which it refuses them.
    pub segments: Vec<SegmentKind>,
    /// The names of the ops.
    pub ops: Vec<String>,
    /// The device that computes them instead.
    pub by: String,
}

/// Every `step`-th layer from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

impl Rule {
    /// A rule for all segments on one device.
    pub fn on(device: &str) -> Rule {
        Rule {
            segments: None,
            layers: None,
            device: device.into(),
            split: None,
            refused: Vec::new(),
            values: DType::F32,
            row_buckets: None,
            exchange: Vec::new(),
            group_rows: BTreeMap::new(),
            activations: Vec::new(),
        }
    }

    /// Whether the rule applies to a segment.
    pub fn matches(&self, kind: SegmentKind, layer: Option<usize>) -> bool {
        self.segments.as_ref().is_none_or(|kinds| kinds.contains(&kind))
            && self.layers.is_none_or(|layers| layer.is_some_and(|l| layers.contains(l)))
    }

    /// How experts are shared out, if they are.
    pub fn experts(&self) -> Option<&ExpertSplit> {
        match &self.split {
            Some(Split::Experts(experts)) => Some(experts),
            _ => None,
        }
    }

    /// Changes its groups of experts. Without any left, experts are not shared out.
    pub fn change_groups(&mut self, change: impl FnOnce(&mut Vec<ExpertGroupPlan>)) {
        let Some(Split::Experts(split)) = &mut self.split else { return };
        change(&mut split.groups);
        if split.groups.is_empty() {
            self.split = None;
        }
    }

    /// The devices of its segments: the rule's own first, those that take over refused ops last.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let split = self.split.iter().flat_map(Split::devices);
        let others = self.refused.iter().map(|r| r.by.as_str());
        std::iter::once(self.device.as_str()).chain(split).chain(others)
    }

    /// Whether another rule places the segments that both match in the same way.
    pub fn places_as(&self, other: &Rule) -> bool {
        (&self.device, &self.split, &self.refused) == (&other.device, &other.split, &other.refused)
            && (&self.row_buckets, &self.exchange, &self.group_rows, &self.activations)
                == (&other.row_buckets, &other.exchange, &other.group_rows, &other.activations)
    }

    /// What it says of a segment that it matches, but for the type of values.
    pub fn placing(&self) -> Rule {
        Rule { segments: None, layers: None, values: DType::F32, ..self.clone() }
    }

    /// Whether any product has a form of its own.
    pub fn has_forms(&self) -> bool {
        !self.exchange.is_empty() || !self.group_rows.is_empty()
    }

    /// The form of the products of a weight; `None`: as they are.
    pub fn form(&self, of: WeightRole) -> Option<ProductForm> {
        let exchanged = self.exchange.contains(&of).then_some(ProductForm::Exchanged);
        exchanged.or_else(|| self.group_rows.get(&of).copied().map(ProductForm::Groups))
    }

    /// Gives products these forms, and no others.
    pub fn set_forms(&mut self, forms: impl IntoIterator<Item = (WeightRole, ProductForm)>) {
        self.exchange.clear();
        self.group_rows.clear();
        for (role, form) in forms {
            match form {
                ProductForm::Exchanged => self.exchange.push(role),
                ProductForm::Groups(rows) => _ = self.group_rows.insert(role, rows),
            }
        }
    }

    /// The device that computes an op of a segment placed on `device`.
    pub fn device_of<'a>(&'a self, device: &'a str, kind: SegmentKind, op: &str) -> &'a str {
        let mut at = device;
        // Who takes it over may have refused it, too.
        for _ in &self.refused {
            let refused = |r: &&RefusedOps| {
                r.device == at && r.segments.contains(&kind) && r.ops.iter().any(|o| o == op)
            };
            let Some(r) = self.refused.iter().find(refused) else { break };
            at = &r.by;
        }
        at
    }
}

impl Plan {
    /// The rules of a phase; for prefill, the rules of full chunks.
    pub fn rules(&self, phase: Phase) -> &[Rule] {
        match phase {
            Phase::Prefill => &self.prefill.rules,
            Phase::Decode => &self.decode.rules,
        }
    }

    /// The rule for a segment in a forward batch of `rows` rows.
    pub fn rule_for(
        &self,
        phase: Phase,
        rows: usize,
        kind: SegmentKind,
        layer: Option<usize>,
    ) -> Option<&Rule> {
        let mut lists = self.rule_lists(phase);
        let list = lists.find(|(up_to, _)| rows <= *up_to).map(|(_, rules)| rules);
        list.unwrap_or(self.rules(phase)).iter().find(|r| r.matches(kind, layer))
    }

    /// All lists of rules of a phase, each with its longest chunk. For prefill: the rules of the
    /// length buckets, then the rules of full chunks.
    pub fn rule_lists(&self, phase: Phase) -> impl Iterator<Item = (usize, &[Rule])> {
        let lengths: &[LengthRules] = match phase {
            Phase::Prefill => &self.prefill.lengths,
            Phase::Decode => &[],
        };
        let short = lengths.iter().map(|l| (l.up_to, l.rules.as_slice()));
        short.chain([(self.prefill.chunk, self.rules(phase))])
    }

    /// All lists of rules of both phases, each with its phase and longest chunk.
    pub fn all_lists(&self) -> impl Iterator<Item = ((Phase, usize), &[Rule])> {
        let of = |p| self.rule_lists(p).map(move |(up_to, rules)| ((p, up_to), rules));
        let decode = self.rules(Phase::Decode);
        of(Phase::Prefill).chain([((Phase::Decode, 1), decode)])
    }

    /// Every rule of the plan.
    pub fn all_rules(&self) -> impl Iterator<Item = &Rule> {
        self.all_lists().flat_map(|(_, rules)| rules)
    }

    /// Every rule of the plan, mutably.
    pub fn all_rules_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        let short = self.prefill.lengths.iter_mut().flat_map(|l| &mut l.rules);
        short.chain(&mut self.prefill.rules).chain(&mut self.decode.rules)
    }

    /// The rule for a segment. A checked plan has exactly one.
    pub fn rule(&self, phase: Phase, kind: SegmentKind, layer: Option<usize>) -> Option<&Rule> {
        self.rules(phase).iter().find(|r| r.matches(kind, layer))
    }

    /// What the model is lowered for.
    pub fn lower_options(&self) -> LowerOptions {
        let (max_rows, max_kv) = (self.prefill.chunk, self.context);
        LowerOptions { max_rows, max_kv, kv_dtype: self.kv_dtype }
    }

    /// The formats, besides f32, that any product may use for activations.
    pub fn activations(&self) -> Vec<ActivationFormat> {
        let mut all: Vec<ActivationFormat> = Vec::new();
        for format in self.all_rules().flat_map(|rule| &rule.activations) {
            if !all.contains(format) {
                all.push(*format);
            }
        }
        all
    }

    /// Index of the device that must not stall.
    pub fn critical_device(&self) -> usize {
        let named = self.prefill.critical_device.as_ref();
        named.and_then(|name| self.devices.iter().position(|d| d == name)).unwrap_or(0)
    }

    /// Parses a plan file without checking it against a model.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn from_json(text: &str) -> Result<Plan, PlanError> {
        // A plan of another version fails by its version, not by its first unknown field.
        let version = serde_json::from_str::<serde_json::Value>(text);
        let version = version.ok().and_then(|v| v.get("version")?.as_u64());
        if let Some(found) = version.filter(|&v| v != u64::from(PLAN_VERSION)) {
            return Err(PlanError::version(found));
        }
        serde_json::from_str(text).map_err(|e| PlanError::Parse(fault(&e)))
    }

    /// The text of a plan file.
    #[expect(
        clippy::expect_used,
        reason = "maps have string keys, and no value fails to serialize"
    )]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan is plain data") + "\n"
    }
}
