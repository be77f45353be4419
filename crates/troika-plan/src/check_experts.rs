//! Checks of rules that share experts out.

use troika_model::lower::SegmentKind;
use troika_model::spec::ModelSpec;

use crate::check::{MAX_LENGTH, check_parts};
use crate::error::PlanError;
use crate::experts::{Dispatch, ExpertGroupPlan, ExpertSplit, Overflow};
use crate::plan::{Phase, Plan, Rule, Split};

impl Plan {
    /// Checks the rules that share experts out.
    pub(crate) fn check_experts(&self, spec: &ModelSpec) -> Result<(), PlanError> {
        for cache in &self.expert_caches {
            if !self.devices.contains(&cache.device) {
                return Err(PlanError::Invalid(format!(
                    "expert_caches names device {}, on which no rule places anything; leave it out",
                    cache.device
                )));
            }
        }
        self.check_each(|rule, phase, up_to| {
            let Some(split) = rule.experts() else { return Ok(()) };
            self.check_rule(rule, split, phase, spec).and_then(|()| check(split, up_to))
        })
    }

    /// Checks that a rule is about experts only, and about such that the model has.
    fn check_rule(
        &self,
        rule: &Rule,
        split: &ExpertSplit,
        phase: Phase,
        spec: &ModelSpec,
    ) -> Result<(), String> {
        if rule.segments.as_deref() != Some(&[SegmentKind::Experts]) {
            return Err(
                "shares experts out, but is about other segments, too; name \"experts\" alone"
                    .into(),
            );
        }
        let cached = |g: &ExpertGroupPlan| self.expert_caches.iter().any(|c| c.device == g.device);
        if phase == Phase::Decode && !split.groups.iter().all(cached) {
            return Err(
                "shares experts out for a single token, on a device without a cache of experts; \
                        place them on one device, or name it in expert_caches"
                    .into(),
            );
        }
        let expected = split.expected.len();
        let last = split.groups.iter().flat_map(|g| &g.experts).max();
        for (layer, l) in spec.layers.iter().enumerate() {
            let applies = rule.matches(SegmentKind::Experts, Some(layer));
            let Some(moe) = l.moe().filter(|_| applies) else { continue };
            if expected > 0 && expected != moe.experts {
                return Err(format!(
                    "says how often {expected} experts are expected to be chosen, and layer {layer} has \
                     {}",
                    moe.experts
                ));
            }
            if let Some(last) = last.filter(|last| **last >= moe.experts) {
                return Err(format!(
                    "names expert {last}, and layer {layer} has experts 0 to {}",
                    moe.experts.saturating_sub(1)
                ));
            }
        }
        Ok(())
    }

    /// Checks that devices which share experts out run functions of the host.
    ///
    /// # Errors
    /// A rule that has another device do so.
    pub fn check_hosts(&self, runs_functions: &dyn Fn(&str) -> bool) -> Result<(), PlanError> {
        self.check_each(|Rule { device, split, .. }, _, _| match split {
            Some(Split::Experts(_)) if !runs_functions(device) => Err(format!(
                "has device {device} share experts out, which runs no functions of the host; name \
                 a CPU, and this device for groups"
            )),
            _ => Ok(()),
        })
    }
}

/// Checks groups for chunks of up to `rows` rows.
fn check(split: &ExpertSplit, rows: usize) -> Result<(), String> {
    if split.groups.is_empty() {
        return Err("has no groups of experts; leave the split out".into());
    }
    for (number, group) in (1..).zip(&split.groups) {
        if group.experts.is_empty() {
            return Err(format!("has no experts in group {number}"));
        }
        if !(1..=MAX_LENGTH).contains(&group.capacity) {
            return Err(format!(
                "has a capacity of {} in group {number}; give it 1 to {MAX_LENGTH}",
                group.capacity
            ));
        }
        let again = |(i, expert): (usize, &usize)| group.experts[..i].contains(expert);
        if let Some((_, expert)) = group.experts.iter().enumerate().find(|e| again(*e)) {
            return Err(format!(
                "has expert {expert} twice in group {number}; give it a second group"
            ));
        }
        if !group.parts.is_empty() {
            if group.experts.len() > 1 {
                return Err(format!(
                    "divides group {number} of {} experts by columns; give each of them a group",
                    group.experts.len()
                ));
            }
            let checked = check_parts(&group.parts, Some(&group.device));
            checked.map_err(|why| format!("in group {number} {why}"))?;
        }
    }
    if split.overflow == Overflow::Pad {
        check_room(split, rows)?;
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

/// Checks that all rows of a chunk may choose any one of the experts in groups.
fn check_room(split: &ExpertSplit, rows: usize) -> Result<(), String> {
    for expert in split.groups.iter().flat_map(|g| &g.experts) {
        let of_expert = split.groups.iter().filter(|g| g.experts.contains(expert));
        let room = of_expert.map(|g| g.capacity).fold(0, usize::saturating_add);
        if room < rows {
            return Err(format!(
                "pads, and its groups have a capacity of {room} for expert {expert} in chunks of \
                 {rows} rows, which may all choose it; give it {rows} in all, or choose another \
                 overflow"
            ));
        }
    }
    Ok(())
}
