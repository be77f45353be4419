//! The numbers of rows to compile for, where each takes memory for weights of its own.

use troika_model::lower::{ModelPart, SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::device::PlanDevice;
use crate::plan::{Phase, Plan, Rule};

/// Short prompts, and the end of long ones, are padded to this part of a chunk.
const SHORT: usize = 4;

/// Rules like these, with the head apart where it needs other numbers of rows: a prompt's last row.
pub(crate) fn head_apart(rules: Vec<Rule>, spec: &ModelSpec, devices: &[PlanDevice]) -> Vec<Rule> {
    let of_model = segments(spec);
    let mut all = Vec::new();
    for rule in rules {
        let matches = |kind: &SegmentKind| {
            of_model.iter().any(|(k, layer)| k == kind && rule.matches(*k, *layer))
        };
        let (head, others): (Vec<SegmentKind>, Vec<SegmentKind>) = SegmentKind::ALL
            .into_iter()
            .filter(matches)
            .partition(|kind| kind.traits().part == ModelPart::Head);
        let chooses = rule.row_buckets.is_none() && copies(&rule, devices).is_some();
        if !chooses || head.is_empty() || others.is_empty() {
            all.push(rule);
            continue;
        }
        all.extend([others, head].map(|kinds| Rule { segments: Some(kinds), ..rule.clone() }));
    }
    all
}

/// The first device of a rule that holds weights for each number of rows. Groups of experts have
/// rows of their own.
fn copies<'a>(rule: &Rule, devices: &'a [PlanDevice]) -> Option<&'a PlanDevice> {
    if rule.experts().is_some() {
        return None;
    }
    devices
        .iter()
        .find(|d| d.caps.code_weights.is_some() && rule.devices().any(|name| name == d.name))
}

impl Plan {
    /// Gives rules that name no numbers of rows those that are worth their memory.
    pub(crate) fn choose_rows(&mut self, devices: &[PlanDevice]) {
        let plan = self.clone();
        for rule in self.all_rules_mut().filter(|rule| rule.row_buckets.is_none()) {
            rule.row_buckets = plan.worth(rule, devices);
        }
    }

    /// The plan with shorter chunks, and the numbers of rows that are chosen for them.
    #[must_use]
    pub fn with_chunk(mut self, chunk: usize, devices: &[PlanDevice]) -> Plan {
        let before = self.clone();
        self.prefill.chunk = chunk;
        let after = self.clone();
        for rule in self.all_rules_mut() {
            if rule.row_buckets == before.worth(rule, devices) {
                rule.row_buckets = after.worth(rule, devices);
            }
        }
        self
    }

    /// The numbers of rows of a rule that are worth their memory: a chunk; a part of it for short
    /// prompts and the end of long ones, and for what several sequences decode; one row where the
    /// device decodes or computes logits; and the lengths of parts. `None` where they take none.
    fn worth(&self, rule: &Rule, devices: &[PlanDevice]) -> Option<Vec<usize>> {
        let device = copies(rule, devices)?;
        let runs = |phase| {
            let mut lists = self.rule_lists(phase).flat_map(|(_, rules)| rules);
            lists.any(|r| r.devices().any(|name| name == device.name))
        };
        let head = rule.segments.as_deref() == Some(&[SegmentKind::Head]);
        let chunk = self.prefill.chunk;
        let one = (head || runs(Phase::Decode)).then_some(1);
        let whole = (!head && runs(Phase::Prefill)).then_some(chunk);
        let parts = rule.split.iter().flat_map(|split| split.lengths()).copied();
        let wanted = one.into_iter().chain([chunk.div_ceil(SHORT)]).chain(whole).chain(parts);
        let enough = |rows: usize| {
            let found = device.caps.row_buckets.iter().copied().find(|n| *n >= rows);
            found.or(device.caps.row_buckets.last().copied())
        };
        let mut all: Vec<usize> = wanted.filter_map(enough).collect();
        all.sort_unstable();
        all.dedup();
        Some(all).filter(|all| !all.is_empty())
    }
}
