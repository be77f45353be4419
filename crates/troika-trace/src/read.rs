//! Reads Chrome traces: all of a [`crate::Tracer`]'s, and the complete events of others.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::expert_rows::ExpertRows;

/// Why a text is not a trace.
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
    /// What a profiler measured; the times are then where the event was placed.
    pub measured: Option<Measured>,
    /// The rows of a layer's experts, if it says.
    pub experts: Option<ExpertRows>,
}

/// The stage of a compiled graph's runs.
pub const EXECUTION: &str = "execution";

/// What a device's profiler says of an event.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Measured {
    /// The device.
    pub device: String,
    /// The compiled graph.
    pub graph: String,
    /// When in the graph's life: [`EXECUTION`], or what comes before.
    pub stage: String,
    /// 0: of the device as a whole; more: of a part of the graph.
    pub depth: u32,
    /// How much.
    pub value: f64,
    /// Of what: us, cycles, bytes or count.
    pub unit: String,
    /// The graph's op that it is part of.
    #[serde(default)]
    pub op: Option<String>,
}

/// A trace as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ChromeTrace {
    /// The events that last, by their start; of those that start together the longest first.
    pub events: Vec<TraceEvent>,
    /// Sentences of whoever wrote it.
    pub notes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Object {
        #[serde(rename = "traceEvents")]
        events: Vec<Raw>,
        /// What belongs to no event: others write anything there.
        #[serde(rename = "otherData", default)]
        other: Value,
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

/// The events of a trace that last, and its notes.
///
/// # Errors
/// A text of another form, or without events.
pub fn read_chrome(text: &str) -> Result<ChromeTrace, TraceError> {
    let (raw, other) = match serde_json::from_str(text)? {
        File::Object { events, other } => (events, other),
        File::List(events) => (events, Value::Null),
    };
    let track = |e: &Raw| format!("{} {}", e.pid, e.tid);
    let named = raw.iter().filter(|e| e.ph == "M" && e.name == "thread_name");
    let names: BTreeMap<String, String> =
        named.filter_map(|e| Some((track(e), e.args.get("name")?.as_str()?.to_string()))).collect();
    let lasting = raw.into_iter().filter(|e| e.ph == "X" && e.ts.is_finite() && e.dur >= 0.0);
    let mut events: Vec<TraceEvent> = lasting
        .map(|e| {
            let track = track(&e);
            let lane = names.get(&track).cloned().unwrap_or(track);
            let experts = ExpertRows::of(&e.args);
            let measured = Measured::deserialize(e.args).ok().filter(|m| m.value.is_finite());
            let (name, start_us, end_us) = (e.name, e.ts, e.ts + e.dur);
            TraceEvent { name, lane, start_us, end_us, measured, experts }
        })
        .collect();
    if events.is_empty() {
        return Err(TraceError::Empty);
    }
    events.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(b.end_us.total_cmp(&a.end_us)));
    let notes = other.get("notes").and_then(Value::as_array).into_iter().flatten();
    let notes = notes.filter_map(|note| note.as_str()).map(String::from).collect();
    Ok(ChromeTrace { events, notes })
}
