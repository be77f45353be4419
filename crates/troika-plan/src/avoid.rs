//! Changes plans around ops that devices refuse.

use std::collections::BTreeSet;

use crate::error::PlanError;
use crate::plan::{Plan, RefusedOps, Rule};
use crate::refusal::{EXPERT_GROUP, Refusal};

impl Plan {
    /// The refusals of ops that the plan places on the refusing device.
    pub fn refused<'a>(&self, refusals: &'a [Refusal]) -> Vec<&'a Refusal> {
        let meets = |r: &&Refusal| self.all_rules().any(|rule| rule.meets(r));
        refusals.iter().filter(meets).collect()
    }

    /// The refusals that the plan goes around, each with the device that computes the op instead.
    pub fn refused_by_rules<'a>(&self, refusals: &'a [Refusal]) -> Vec<(&'a Refusal, &str)> {
        let by = |r: &Refusal| {
            let mut all = self.all_rules().flat_map(|rule| &rule.refused);
            all.find(|o| {
                o.device == r.device && o.segments.contains(&r.segment) && o.ops.contains(&r.op)
            })
        };
        refusals.iter().filter_map(|r| Some((r, by(r)?.by.as_str()))).collect()
    }

    /// Moves refused ops of the plan to the first available device that takes them. Returns the
    /// refusals that concerned the plan.
    ///
    /// # Errors
    /// An op that no device takes.
    pub fn avoid<'a>(
        &mut self,
        refusals: &'a [Refusal],
        at_hand: &[&str],
    ) -> Result<Vec<&'a Refusal>, PlanError> {
        let met = self.refused(refusals);
        for refusal in met.iter().filter(|r| r.op == EXPERT_GROUP) {
            self.all_rules_mut().filter(|r| r.meets(refusal)).for_each(|r| r.keep_groups(refusal));
        }
        let plan = self.clone();
        self.devices.retain(|d| plan.all_rules().any(|r| r.devices().any(|used| used == d)));
        for refusal in met.iter().filter(|r| r.op != EXPERT_GROUP) {
            let takes = |d: &&&str| {
                let same = |r: &Refusal| (r.segment, &r.op) == (refusal.segment, &refusal.op);
                !refusals.iter().any(|r| r.device == ***d && same(r))
            };
            let Some(by) = at_hand.iter().find(takes) else {
                return Err(PlanError::Refused(Box::new((*refusal).clone())));
            };
            for rule in self.all_rules_mut().filter(|rule| rule.meets(refusal)) {
                rule.pass_on(refusal, by);
            }
            if !self.devices.iter().any(|d| d == by) {
                self.devices.push((*by).to_string());
            }
        }
        Ok(met)
    }
}

impl Rule {
    /// Whether the rule places a refused op on the device that refuses it.
    fn meets(&self, r: &Refusal) -> bool {
        let kinds = self.segments.as_ref();
        let about = kinds.is_none_or(|kinds| kinds.contains(&r.segment))
            && (self.layers.is_none() || r.segment.is_in_layers());
        // Groups of experts are graphs apart.
        if r.op == EXPERT_GROUP {
            let groups = self.experts().map_or(&[][..], |split| &split.groups);
            return about && groups.iter().any(|group| group.devices().any(|d| d == r.device));
        }
        let computes = match self.experts() {
            Some(_) => self.device == r.device,
            None => self.devices().any(|d| d == r.device),
        };
        about && computes && self.device_of(&r.device, r.segment, &r.op) == r.device
    }

    /// Has its own device compute the experts of groups that a device refuses.
    fn keep_groups(&mut self, refusal: &Refusal) {
        let own = self.device.clone();
        self.change_groups(|groups| {
            groups.retain(|group| group.devices().all(|d| d != refusal.device));
        });
        self.pass_on(refusal, &own);
    }

    /// Assigns an op to another device, together with others of the same segments.
    fn pass_on(&mut self, refusal: &Refusal, by: &str) {
        let op = refusal.op.clone();
        let mine = |r: &&mut RefusedOps| {
            (r.device.as_str(), r.by.as_str(), r.segments.as_slice())
                == (refusal.device.as_str(), by, &[refusal.segment])
        };
        match self.refused.iter_mut().find(mine) {
            Some(r) => r.ops.push(op),
            None => self.refused.push(RefusedOps {
                device: refusal.device.clone(),
                segments: vec![refusal.segment],
                ops: vec![op],
                by: by.to_string(),
            }),
        }
    }
}

/// One sentence for each device: the ops it refuses, why, and which device computes them.
pub fn describe_refusals(plan: &Plan, refusals: &[&Refusal]) -> Vec<String> {
    let devices: BTreeSet<&str> = refusals.iter().map(|r| r.device.as_str()).collect();
    let describe = |device: &str| {
        let of_device = refusals.iter().filter(|r| r.device == device);
        let ops: BTreeSet<&str> = of_device.clone().map(|r| r.op.as_str()).collect();
        let why = of_device.clone().next().map_or("", |r| r.why.as_str());
        let by = plan.all_rules().flat_map(|rule| &rule.refused).filter(|r| r.device == device);
        let by: BTreeSet<&str> = by.map(|r| r.by.as_str()).collect();
        let [ops, by] = [ops, by].map(|names| Vec::from_iter(names).join(", "));
        format!("device {device} does not take {ops} ({why}): the plan has {by} compute them")
    };
    devices.into_iter().map(describe).collect()
}
