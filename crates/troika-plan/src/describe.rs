//! A plan's rules in words, for people.

use troika_graph::DType;

use crate::check::place;
use crate::experts::ExpertGroupPlan;
use crate::plan::{Phase, Plan, Rule, Split, Stage};
use crate::ratio::Share;

/// A rule of a plan in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// The phase, and the most rows that the rule is for.
    pub phase: String,
    /// The segments of a layer.
    pub segments: String,
    /// The layers.
    pub layers: String,
    /// Which device computes them, or what share of them.
    pub device: String,
    /// What products take their inputs as besides f32; may be empty.
    pub activations: String,
}

impl Plan {
    /// The plan for people: its settings, and a table with a line for each rule.
    pub fn explain(&self) -> String {
        let (model, prefill) = (&self.model, &self.prefill);
        let mut text = format!(
            "{model}; strategy {}\ncontext {}, KV cache {} in pages of {}\n\
             prefill in chunks of {}, {} in flight, {}; {} waits\n\n\
             | phase | segments | layers | device | activations besides f32 |\n\
             | --- | --- | --- | --- | --- |\n",
            self.strategy,
            self.context,
            self.kv_dtype,
            self.page_len,
            prefill.chunk,
            prefill.chunks_in_flight,
            prefill.policy.name(),
            self.sync.name(),
        );
        for RuleText { phase, segments, layers, device, activations } in self.texts() {
            let line = format!("| {phase} | {segments} | {layers} | {device} | {activations} |\n");
            text.push_str(&line);
        }
        text
    }

    /// The rules in words, in the order in which they count.
    pub fn texts(&self) -> Vec<RuleText> {
        let mut texts = Vec::new();
        for phase in [Phase::Prefill, Phase::Decode] {
            for (up_to, rules) in self.rule_lists(phase) {
                let name = place(phase, up_to, self);
                texts.extend(rules.iter().map(|rule| rule_text(name.clone(), rule)));
            }
        }
        texts
    }
}

/// The shares of the columns, for people.
fn describe_columns(parts: &[Share]) -> String {
    let all: u32 = parts.iter().map(|p| p.share).sum();
    let percent = |share: u32| f64::from(share) * 100.0 / f64::from(all.max(1));
    let parts = parts.iter().map(|p| format!("{} {:.1} %", p.device, percent(p.share)));
    parts.collect::<Vec<_>>().join(", ")
}

impl Split {
    /// Which device computes what share, for people; `device` is the rule's.
    pub fn describe(&self, device: &str) -> String {
        let columns = format!("columns: {}", describe_columns(self.parts()));
        let lengths: Vec<String> = self.lengths().iter().map(usize::to_string).collect();
        let standard = format!("rows in parts of {}: {device}", lengths.join(", "));
        match self {
            Split::Stages { stages } => {
                let one = |s: &Stage| match &s.split {
                    Some(split) => split.describe(&s.device),
                    None => s.device.clone(),
                };
                stages.iter().map(one).collect::<Vec<_>>().join("; then ")
            }
            Split::Columns { .. } => columns,
            Split::Rows { rest, .. } => format!("{standard}, the rest: {rest}"),
            Split::Residual { by } => {
                format!("products: {device}, their outliers and the rest: {by}")
            }
            Split::Experts(experts) => {
                let group = |g: &ExpertGroupPlan| {
                    let rows = format!("{} x {}", g.experts.len(), g.capacity);
                    match &g.parts[..] {
                        [] => format!("{} {rows}", g.device),
                        parts => format!("{rows} by columns ({})", describe_columns(parts)),
                    }
                };
                let group = experts.groups.iter().map(group);
                let (dispatch, overflow) = (experts.dispatch.name(), experts.overflow.name());
                let groups = group.collect::<Vec<_>>().join(", ");
                format!(
                    "experts {dispatch} in groups: {groups}; overflow {overflow}, the rest: {device}"
                )
            }
            Split::Hybrid { .. } => format!("{standard}, the rest by {columns}"),
        }
    }
}

fn rule_text(phase: String, rule: &Rule) -> RuleText {
    let segments = rule.segments.as_ref().map_or("all".to_string(), |kinds| {
        kinds.iter().map(|k| k.name()).collect::<Vec<_>>().join(", ")
    });
    let layers = rule.layers.map_or("all".to_string(), |l| match (l.first == l.last, l.step) {
        (true, _) => l.first.to_string(),
        (false, 1) => format!("{} to {}", l.first, l.last),
        (false, step) => format!("{} to {}, every {step}", l.first, l.last),
    });
    let mut device = rule.device.clone();
    if let Some(split) = &rule.split {
        device = split.describe(&device);
    }
    for r in &rule.refused {
        let kinds: Vec<&str> = r.segments.iter().map(|k| k.name()).collect();
        let (ops, kinds) = (r.ops.join(", "), kinds.join(", "));
        device.push_str(&format!("; {ops} of {kinds} by {} instead of {}", r.by, r.device));
    }
    if let Some(rows) = &rule.row_buckets {
        let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
        device.push_str(&format!("; static shapes of {} rows", rows.join(", ")));
    }
    if !rule.exchange.is_empty() {
        let roles: Vec<String> = rule.exchange.iter().map(|role| format!("{role:?}")).collect();
        device.push_str(&format!("; operands exchanged of {}", roles.join(", ")));
    }
    for (role, rows) in &rule.group_rows {
        device.push_str(&format!("; rows of {role:?} in groups of {rows}"));
    }
    if rule.values != DType::F32 {
        device.push_str(&format!("; values in {}", rule.values.name().to_lowercase()));
    }
    let formats: Vec<String> = rule.activations.iter().map(ToString::to_string).collect();
    RuleText { phase, segments, layers, device, activations: formats.join(", ") }
}
