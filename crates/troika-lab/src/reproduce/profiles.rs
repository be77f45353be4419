//! Claims of the CPU-NPU MoE project about profiles.

use std::time::Duration;

use troika::npu::{QNN_RECORDING, replay_qnn};
use troika::trace::{Arg, Span, Tracer, read_chrome};

use super::lab::Lab;
use super::outcome::Outcome;
use crate::{LabError, Result};

/// What the recording lacks of the units that events may have.
const BYTES: &str = "0,BACKEND,4096,BYTES,BACKEND,ROOT,Bytes of spill and fill\n";
/// Runs in the recording.
const RUNS: usize = 2;
/// As long as the longest run of the recording.
const RUN: Duration = Duration::from_millis(13);

/// An event of a profile: what, how much, of what.
type Event<'a> = (&'a str, u64, String);

/// Replays a recorded profile within real spans of the host, and looks each of its events up in the
/// trace.
pub fn units_are_kept(_: &mut Lab) -> Result<Outcome> {
    let (head, last_run) = QNN_RECORDING.split_at(QNN_RECORDING.rfind("0,EXECUTE").unwrap_or(0));
    let recording = format!("{head}{BYTES}{last_run}");
    let tracer = Tracer::on();
    let replayed = replay_qnn(&recording, RUNS, &mut || std::thread::sleep(RUN), &tracer);
    let told = |e| format!("the recorded profile cannot be replayed: {e}");
    replayed.map_err(|e| LabError::Impossible(told(e)))?;
    let spans = tracer.spans();
    let measured: Vec<Event<'_>> = spans.iter().filter_map(event_of).collect();
    let expected: Vec<Event<'_>> = recording.lines().skip(1).filter_map(event).collect();
    let count = |all: &[Event<'_>], event: &Event<'_>| all.iter().filter(|e| *e == event).count();
    let missing =
        expected.iter().filter(|event| count(&expected, event) != count(&measured, event));
    let missing = missing.count() + measured.len().abs_diff(expected.len());
    let units = |unit: &str| expected.iter().filter(|(_, _, u)| u == unit).count();
    let lanes = ["host", "npu host", "npu execute", "npu device", "npu node depth 1"];
    let lacking = lanes.iter().filter(|lane| spans.iter().all(|s| *s.lane != ***lane)).count();
    let mut json = Vec::new();
    let written = tracer.write_chrome(&mut json).is_ok();
    let read = std::str::from_utf8(&json).ok().and_then(|text| read_chrome(text).ok());
    let whole = written && read.is_some_and(|read| read.events.len() == spans.len());
    let disorder = backwards(&spans);
    let ours = format!(
        "{} events: {} in us, {} in cycles, {} counts, {} in bytes; {missing} missing or changed, \
         {lacking} of {} lanes missing, {disorder} out of order",
        expected.len(),
        units("us"),
        units("cycles"),
        units("count"),
        units("bytes"),
        lanes.len()
    );
    let note = "A file that the emulator of QNN wrote, with an event in bytes added, within real spans of \
        the host.";
    let pass = missing + lacking + disorder == 0 && whole && !expected.is_empty();
    Ok(Outcome::words("all, in their units", ours, pass).noted(note))
}

/// An event by a line of the file. Nodes' names have a number and the unit behind them.
fn event(line: &str) -> Option<Event<'_>> {
    let fields: Vec<&str> = line.splitn(7, ',').collect();
    let [_, _, value, unit, _, _, name] = fields[..] else { return None };
    let name = name.trim_end_matches(" (cycles)");
    let name = name.split_once(":OpId").map_or(name, |(name, _)| name);
    Some((name, value.parse().ok()?, unit.to_lowercase()))
}

fn event_of(span: &Span) -> Option<Event<'_>> {
    let arg = |name: &str| span.args.iter().find(|(n, _)| *n == name).map(|(_, value)| value);
    match (arg("value"), arg("unit")) {
        (Some(Arg::Int(value)), Some(Arg::Text(unit))) => Some((&span.name, *value, unit.clone())),
        _ => None,
    }
}

/// Spans that end before they begin, and runs on the device that lie outside of the host's.
fn backwards(spans: &[Span]) -> usize {
    let runs: Vec<&Span> = spans.iter().filter(|s| &*s.lane == "npu execute").collect();
    let whole = spans.iter().filter(|s| s.name == "QNN (execute) time");
    let outside =
        whole.zip(&runs).filter(|(of, run)| of.start < run.start || run.end < of.end).count();
    outside + spans.iter().filter(|s| s.end < s.start).count()
}
