//! The file that ONNX Runtime's own profiler writes for a session: a Chrome trace by its own clock.

use std::io::Read;

use serde::Deserialize;

use super::event::{Event, Events, Recorded, Stage, Unit};
use crate::profiling::ProfilingLevel;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    cat: String,
    name: String,
    ts: i64,
    dur: i64,
    args: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    op_name: String,
}

impl Entry {
    fn event(&self, whole: &Entry, name: &str, depth: usize) -> Event {
        let mut event = Event::of_node(name, micros(self.dur), Unit::Us);
        event.depth = depth;
        event.at_us = Some(micros(self.ts - whole.ts));
        event
    }
}

fn micros(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}

/// Reads a file, and keeps at most some events: with nodes at level detailed.
pub(super) fn read(
    from: impl Read,
    level: ProfilingLevel,
    most: usize,
) -> Result<Recorded, serde_json::Error> {
    let entries: Vec<Entry> = serde_json::from_reader(from)?;
    let mut recorded = Recorded::default();
    // A run's entry comes behind the entries of its nodes.
    let mut nodes: Vec<&Entry> = Vec::new();
    for entry in &entries {
        let stage = match (entry.cat.as_str(), entry.name.as_str()) {
            ("Node", name) if name.ends_with(KERNEL) => {
                nodes.push(entry);
                continue;
            }
            ("Session", "session_initialization") => Stage::Load,
            ("Session", "model_run") => Stage::Execute,
            _ => continue,
        };
        let mut all = vec![entry.event(entry, &entry.name, 0)];
        let within = nodes.drain(..).filter(|_| level != ProfilingLevel::Basic);
        all.extend(within.map(|node| {
            let mut event = node.event(entry, node.name.trim_end_matches(KERNEL), 1);
            // What an optimizer made has a name of its own.
            let op = Some(node.args.op_name.to_lowercase()).filter(|op| !op.is_empty());
            event.op = event.op.or(op);
            event
        }));
        recorded.add(Events { stage, whole: 0, all }, most);
    }
    recorded.odd += nodes.len();
    Ok(recorded)
}

/// What a node's name has behind it where its own work is meant.
const KERNEL: &str = "_kernel_time";

#[cfg(test)]
mod tests {
    use super::super::event::{Recorded, Stage};
    use crate::profiling::ProfilingLevel;

    /// As ONNX Runtime 1.24.1 wrote it, less the details.
    const RECORDED: &str = r#"[
        {"cat": "Session", "dur": 345, "ts": 2, "ph": "X", "name": "model_loading_array", "args": {}},
        {"cat": "Session", "dur": 6790, "ts": 388, "ph": "X", "name": "session_initialization", "args": {}},
        {"cat": "Node", "dur": 68, "ts": 7358, "ph": "X", "name": "linear/up/MatMul.1_kernel_time", "args": {"op_name": "MatMul"}},
        {"cat": "Node", "dur": 13, "ts": 7431, "ph": "X", "name": "silu_kernel_time", "args": {"op_name": "QuickGelu"}},
        {"cat": "Session", "dur": 107, "ts": 7355, "ph": "X", "name": "SequentialExecutor::Execute", "args": {}},
        {"cat": "Session", "dur": 122, "ts": 7343, "ph": "X", "name": "model_run", "args": {}},
        {"cat": "Session", "dur": 24, "ts": 7809, "ph": "X", "name": "model_run", "args": {}}]"#;

    fn read(text: &str, level: ProfilingLevel) -> Recorded {
        super::read(text.as_bytes(), level, usize::MAX).unwrap()
    }

    #[test]
    fn nodes_belong_to_the_run_behind_them() {
        let all = read(RECORDED, ProfilingLevel::Detailed);
        assert_eq!((all.opening.len(), all.runs.len(), all.odd), (1, 2, 0));
        assert_eq!((all.opening[0].stage, all.opening[0].all[0].value), (Stage::Load, 6790));
        let [run, up, silu] = &all.runs[0].all[..] else { panic!("{all:?}") };
        assert_eq!((run.value, run.at_us, run.depth), (122, Some(0), 0));
        assert_eq!((up.value, up.at_us, up.depth), (68, Some(15), 1));
        assert_eq!((up.name.as_str(), up.op.as_deref()), ("linear/up/MatMul.1", Some("linear")));
        assert_eq!((silu.name.as_str(), silu.op.as_deref()), ("silu", Some("quickgelu")));
        assert_eq!(all.runs[1].all.len(), 1);
        let basic = read(RECORDED, ProfilingLevel::Basic);
        assert!(basic.runs.iter().all(|run| run.all.len() == 1));
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "{}", &RECORDED[..200]] {
            assert!(super::read(text.as_bytes(), ProfilingLevel::Basic, 9).is_err(), "{text}");
        }
    }
}
