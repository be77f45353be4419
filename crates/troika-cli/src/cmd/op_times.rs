//! Times of ops on their devices, as the devices' own profilers tell them.

use std::collections::{BTreeMap, BTreeSet};

use troika::model::lower::Lowered;
use troika::plan::Plan;
use troika::trace::{Arg, Span};

/// How many nodes of an op there were, and how long all of them took.
#[derive(Default)]
struct OpTime {
    nodes: u64,
    sum: u64,
}

/// What profilers say of the ops of runs: by op, device and unit.
pub struct OpTimes(BTreeMap<(String, String), BTreeMap<String, OpTime>>);

impl OpTimes {
    /// Those in the spans of a trace.
    pub fn of(spans: &[Span]) -> OpTimes {
        let mut all: BTreeMap<_, BTreeMap<String, OpTime>> = BTreeMap::new();
        for span in spans {
            let arg = |name: &str| span.args.iter().find(|(n, _)| *n == name).map(|(_, arg)| arg);
            // Parts of nodes are in the nodes' times.
            let (
                Some(Arg::Text(op)),
                Some(Arg::Text(device)),
                Some(Arg::Text(unit)),
                Some(Arg::Int(value)),
                Some(Arg::Int(1)),
            ) = (arg("op"), arg("device"), arg("unit"), arg("value"), arg("depth"))
            else {
                continue;
            };
            let units = all.entry((op.clone(), device.clone())).or_default();
            let time = units.entry(unit.clone()).or_default();
            (time.nodes, time.sum) = (time.nodes + 1, time.sum.saturating_add(*value));
        }
        OpTimes(all)
    }

    /// A table of the ops of a plan with their times, or why there are none.
    pub fn table(
        &self,
        plan: &Plan,
        lowered: &Lowered,
        is_profiled: bool,
        is_profiler: impl Fn(&str) -> bool,
    ) -> String {
        let mut text = String::from(
            "\ntimes of a trial run of each compiled graph\n\n\
             | op | on | nodes | sum | unit, or why there is none |\n\
             | --- | --- | ---: | ---: | --- |\n",
        );
        let has = |device: &str| self.0.keys().any(|(_, on)| on == device);
        let why = |device: &str| match (is_profiler(device), has(device)) {
            (true, _) if !is_profiled => "--npu-profiling detailed measures it",
            (true, true) => "its compiler has no node of it",
            (true, false) => "its profiler tells no nodes apart",
            (false, _) => "no profiler tells its ops apart",
        };
        let mut all = placed(plan, lowered);
        all.extend(self.0.keys().cloned());
        for key in all {
            let (op, device) = &key;
            for (unit, OpTime { nodes, sum }) in self.0.get(&key).into_iter().flatten() {
                text.push_str(&format!("| {op} | {device} | {nodes} | {sum} | {unit} |\n"));
            }
            if !self.0.contains_key(&key) {
                text.push_str(&format!("| {op} | {device} | - | - | {} |\n", why(device)));
            }
        }
        text
    }
}

/// The ops of a plan, each with the devices that it is on.
fn placed(plan: &Plan, lowered: &Lowered) -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for (_, rules) in plan.all_lists() {
        for s in &lowered.segments {
            let Some(rule) = rules.iter().find(|r| r.matches(s.kind, s.layer)) else { continue };
            for op in s.graph.nodes.iter().map(|node| node.op.name()) {
                let device = rule.device_of(&rule.device, s.kind, op);
                all.insert((op.to_string(), device.to_string()));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use troika::trace::{Arg, Span};

    use super::OpTimes;

    /// Nodes are added up by op, device and unit; what is no node of an op is left out.
    #[test]
    fn nodes_of_an_op_are_added_up() {
        let text = |text: &str| Arg::Text(text.into());
        let span = |op: Option<&str>, depth, value| {
            let args = [("device", text("npu")), ("unit", text("us")), ("depth", Arg::Int(depth))];
            let args = args.into_iter().chain([("value", Arg::Int(value))]);
            let args = args.chain(op.map(|op| ("op", text(op)))).collect();
            let (start, end) = (Duration::ZERO, Duration::ZERO);
            Span { name: "node".into(), lane: "npu node depth 1".into(), start, end, args }
        };
        let spans = [
            span(Some("linear"), 1, 30),
            span(Some("linear"), 1, 12),
            span(Some("linear"), 2, 7),
            span(Some("rope"), 1, 5),
            span(None, 0, 99),
        ];
        let all = OpTimes::of(&spans).0;
        let of = |op: &str| &all[&(op.to_string(), "npu".to_string())]["us"];
        assert_eq!((all.len(), of("linear").nodes, of("linear").sum), (2, 2, 42));
        assert_eq!((of("rope").nodes, of("rope").sum), (1, 5));
    }
}
