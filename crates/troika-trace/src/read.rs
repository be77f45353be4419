//! Reads Chrome traces: those of [`crate::Tracer`], and complete events of others.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Why a text is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is not JSON of that form.
    #[error("it is no Chrome trace ({0})")]
    Form(#[from] serde_json::Error),
    /// It has no complete events.
    #[error("it has no events that last (ph X)")]
    Empty,
}

/// An event of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// What happened.
    pub name: String,
    /// The row of the timeline.
    pub lane: String,
    /// Start and end in microseconds.
    pub start_us: f64,
    /// End.
    pub end_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Object {
        #[serde(rename = "traceEvents")]
        events: Vec<Raw>,
    },
    List(Vec<Raw>),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    name: String,
    #[serde(default)]
    ph: String,
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Value,
}

/// The events of a trace that last, by their start; of those that start together the longest first.
///
/// # Errors
/// A text of another form, or without events.
pub fn read_chrome(text: &str) -> Result<Vec<TraceEvent>, TraceError> {
    let raw = match serde_json::from_str(text)? {
        File::Object { events } | File::List(events) => events,
    };
    let track = |e: &Raw| format!("{} {}", e.pid, e.tid);
    let named = raw.iter().filter(|e| e.ph == "M" && e.name == "thread_name");
    let names: BTreeMap<String, &str> =
        named.filter_map(|e| Some((track(e), e.args.get("name")?.as_str()?))).collect();
    let lasting = raw.iter().filter(|e| e.ph == "X" && e.ts.is_finite() && e.dur >= 0.0);
    let mut events: Vec<TraceEvent> = lasting
        .map(|e| {
            let track = track(e);
            let lane = names.get(&track).map_or(track.clone(), |name| (*name).to_string());
            TraceEvent { name: e.name.clone(), lane, start_us: e.ts, end_us: e.ts + e.dur }
        })
        .collect();
    if events.is_empty() {
        return Err(TraceError::Empty);
    }
    events.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(b.end_us.total_cmp(&a.end_us)));
    Ok(events)
}
