//! Spans on one clock, and the Chrome trace writer.
//!
//! A [`Tracer`] is either off, which costs a branch per call, or collects [`Span`]s.
//! [`Tracer::write_chrome`] writes them as JSON for Perfetto and `chrome://tracing`, and
//! [`TraceReport`] makes tables of such a file.

mod chrome;
mod expert_rows;
mod experts;
mod heat_map;
mod read;
mod report;
mod span;
mod table;

pub use expert_rows::ExpertRows;
pub use experts::ExpertLayer;
pub use heat_map::heat_map;
pub use read::{ChromeTrace, EXECUTION, Measured, TraceError, TraceEvent, read_chrome};
pub use report::{LaneUse, MeasuredUse, NodeUse, TraceReport};
pub use span::{Arg, Span};

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard};

/// Collects spans, or does nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Mutex<Recorded>>>);

#[derive(Debug, Default)]
struct Recorded {
    spans: Vec<Span>,
    notes: Vec<String>,
}

impl Tracer {
    /// A tracer that drops everything.
    pub fn off() -> Tracer {
        Tracer(None)
    }

    /// A tracer that collects.
    pub fn on() -> Tracer {
        Tracer(Some(Arc::default()))
    }

    /// Whether spans are collected; ask before building one.
    pub fn enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a span.
    pub fn record(&self, span: Span) {
        if let Some(recorded) = &self.0 {
            lock(recorded).spans.push(span);
        }
    }

    /// Adds a sentence for whoever reads the trace, such as what it lacks.
    pub fn note(&self, note: String) {
        if let Some(recorded) = &self.0 {
            lock(recorded).notes.push(note);
        }
    }

    /// The sentences so far.
    pub fn notes(&self) -> Vec<String> {
        self.0.as_ref().map(|recorded| lock(recorded).notes.clone()).unwrap_or_default()
    }

    /// Takes the spans so far, in the order they were added.
    pub fn take(&self) -> Vec<Span> {
        self.0.as_ref().map(|all| std::mem::take(&mut lock(all).spans)).unwrap_or_default()
    }

    /// The spans so far, by start time; of those that start together the longest first.
    pub fn spans(&self) -> Vec<Span> {
        let Some(recorded) = &self.0 else { return Vec::new() };
        let mut spans = lock(recorded).spans.clone();
        spans.sort_by_key(|s| (s.start, Reverse(s.end)));
        spans
    }

    /// Writes all spans as Chrome trace JSON (times in microseconds).
    ///
    /// # Errors
    /// An error of the writer.
    pub fn write_chrome(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        chrome::write(&self.spans(), &self.notes(), out)
    }
}

/// Locks. A panic elsewhere while the lock was held leaves the lists valid.
fn lock(recorded: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    recorded.lock().unwrap_or_else(|e| e.into_inner())
}
