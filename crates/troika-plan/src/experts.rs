//! Experts shared out over devices: groups of them, what becomes of rows beyond their capacity, and
//! when groups run.

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;
use troika_model::spec::{Ffn, ModelSpec};

use crate::check::{MAX_LENGTH, place};
use crate::error::PlanError;
use crate::plan::{Phase, Plan, Rule, Split};

/// How devices share the experts of a layer. The rule's device chooses rows for the groups, and
/// computes all else: experts of no group, the shared expert, and the sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSplit {
    /// The groups. An expert is in one of them at most.
    pub groups: Vec<ExpertGroupPlan>,
    /// What becomes of rows beyond an expert's capacity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overflow: Overflow,
    /// When groups run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dispatch: Dispatch,
}

/// Experts that one static graph computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroupPlan {
    /// The device.
    pub device: String,
    /// The experts, by their number in the layer.
    pub experts: Vec<usize>,
    /// Rows that the graph has for each of them.
    pub capacity: usize,
}

/// What becomes of rows beyond an expert's capacity, where a group runs once for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The rule's device computes them: nothing is lost.
    #[default]
    Cpu,
    /// There are none: each expert has room for all rows of a chunk.
    Pad,
    /// The expert leaves out the rows to which attention added least (NPUMoE).
    Prune,
}

/// When groups run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// Once for each chunk.
    #[default]
    PerChunk,
    /// As soon as the rows of one of its experts are full, over all chunks in flight, which go
    /// through the model layer by layer; at the end of a layer with what is left.
    LayerMajor,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Overflow {
    /// All policies.
    pub const ALL: [Overflow; 3] = [Overflow::Cpu, Overflow::Pad, Overflow::Prune];

    /// The name in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            Overflow::Cpu => "cpu",
            Overflow::Pad => "pad",
            Overflow::Prune => "prune",
        }
    }

    /// The policy with a given name.
    pub fn parse(name: &str) -> Option<Overflow> {
        Overflow::ALL.into_iter().find(|o| o.name() == name)
    }
}

impl Dispatch {
    /// All ways.
    pub const ALL: [Dispatch; 2] = [Dispatch::PerChunk, Dispatch::LayerMajor];

    /// The name in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            Dispatch::PerChunk => "per-chunk",
            Dispatch::LayerMajor => "layer-major",
        }
    }

    /// The way with a given name.
    pub fn parse(name: &str) -> Option<Dispatch> {
        Dispatch::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl Rule {
    /// How experts are shared out, if they are.
    pub fn experts(&self) -> Option<&ExpertSplit> {
        match &self.split {
            Some(Split::Experts(experts)) => Some(experts),
            _ => None,
        }
    }
}

impl Plan {
    /// Checks the rules that share experts out.
    pub(crate) fn check_experts(&self, spec: &ModelSpec) -> Result<(), PlanError> {
        for ((phase, up_to), rules) in self.all_lists() {
            for (i, rule) in rules.iter().enumerate() {
                let Some(split) = rule.experts() else { continue };
                let checked = check_rule(rule, phase, spec).and_then(|()| check(split, up_to));
                if let Err(why) = checked {
                    let phase = place(phase, up_to, self);
                    return Err(PlanError::Rule { phase, number: i + 1, why });
                }
            }
        }
        Ok(())
    }

    /// Checks that devices which share experts out run functions of the host.
    ///
    /// # Errors
    /// A rule that has another device do so.
    pub fn check_hosts(&self, runs_functions: &dyn Fn(&str) -> bool) -> Result<(), PlanError> {
        for ((phase, up_to), rules) in self.all_lists() {
            let refused = |r: &Rule| r.experts().is_some() && !runs_functions(&r.device);
            if let Some(i) = rules.iter().position(refused) {
                let why = format!(
                    "has device {} share experts out, which runs no functions of the host; name a \
                     CPU, and this device for groups",
                    rules[i].device
                );
                return Err(PlanError::Rule {
                    phase: place(phase, up_to, self),
                    number: i + 1,
                    why,
                });
            }
        }
        Ok(())
    }
}

/// Checks that a rule is about experts only, and about such that the model has.
fn check_rule(rule: &Rule, phase: Phase, spec: &ModelSpec) -> Result<(), String> {
    if rule.segments.as_deref() != Some(&[SegmentKind::Experts]) {
        return Err(
            "shares experts out, but is about other segments, too; name \"experts\" alone".into()
        );
    }
    if phase == Phase::Decode {
        return Err("shares experts out for a single token; place them on one device".into());
    }
    let groups = rule.experts().map_or(&[][..], |split| &split.groups);
    let last = groups.iter().flat_map(|g| &g.experts).max();
    for (layer, l) in spec.layers.iter().enumerate() {
        let Ffn::Moe(moe) = &l.ffn else { continue };
        let inside = last.is_none_or(|last| *last < moe.experts);
        if let Some(last) =
            last.filter(|_| rule.matches(SegmentKind::Experts, Some(layer)) && !inside)
        {
            return Err(format!(
                "names expert {last}, and layer {layer} has experts 0 to {}",
                moe.experts.saturating_sub(1)
            ));
        }
    }
    Ok(())
}

/// Checks groups for chunks of up to so many rows.
fn check(split: &ExpertSplit, rows: usize) -> Result<(), String> {
    if split.groups.is_empty() {
        return Err("has no groups of experts; leave the split out".into());
    }
    let mut known: Vec<usize> = Vec::new();
    for (i, group) in split.groups.iter().enumerate() {
        let number = i + 1;
        if group.experts.is_empty() {
            return Err(format!("has no experts in group {number}"));
        }
        if !(1..=MAX_LENGTH).contains(&group.capacity) {
            return Err(format!(
                "has a capacity of {} in group {number}; give it 1 to {MAX_LENGTH}",
                group.capacity
            ));
        }
        if split.overflow == Overflow::Pad && group.capacity < rows {
            return Err(format!(
                "pads, and group {number} has a capacity of {} for chunks of {rows} rows, which \
                 may all choose one expert; give it {rows}, or another overflow",
                group.capacity
            ));
        }
        for &expert in &group.experts {
            if known.contains(&expert) {
                return Err(format!("has expert {expert} in two places"));
            }
            known.push(expert);
        }
    }
    match split {
        ExpertSplit { overflow: Overflow::Cpu, .. }
        | ExpertSplit { dispatch: Dispatch::PerChunk, .. } => Ok(()),
        _ => Err(format!(
            "has overflow {:?} with dispatch {:?}, where full rows run at once and none overflow; \
             leave the overflow out",
            split.overflow.name(),
            split.dispatch.name()
        )),
    }
}
