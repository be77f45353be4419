//! Spans on one clock, and the Chrome trace writer.
//!
//! A [`Tracer`] is either off, which costs a branch per call, or collects [`Span`]s.
//! [`Tracer::write_chrome`] writes them as JSON for Perfetto and `chrome://tracing`.

mod chrome;

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A named interval on a lane (a device, the host).
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What happened.
    pub name: Cow<'static, str>,
    /// Where: one row of the timeline.
    pub lane: Arc<str>,
    /// Start by the engine's clock.
    pub start: Duration,
    /// End by the engine's clock.
    pub end: Duration,
    /// Details.
    pub args: Vec<(&'static str, Arg)>,
}

/// The value of a span's detail.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A number.
    Int(u64),
    /// Text.
    Text(String),
}

/// Collects spans, or does nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    paused: AtomicBool,
    spans: Mutex<Vec<Span>>,
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
        self.0.as_ref().is_some_and(|s| !s.paused.load(Ordering::Relaxed))
    }

    /// Pauses or resumes collecting. A tracer that is off stays off.
    pub fn pause(&self, paused: bool) {
        if let Some(shared) = &self.0 {
            shared.paused.store(paused, Ordering::Relaxed);
        }
    }

    /// Adds a span.
    pub fn record(&self, span: Span) {
        if let Some(shared) = &self.0 {
            lock(&shared.spans).push(span);
        }
    }

    /// Takes the spans so far, in the order they were added.
    pub fn take(&self) -> Vec<Span> {
        self.0.as_ref().map(|s| std::mem::take(&mut *lock(&s.spans))).unwrap_or_default()
    }

    /// The spans so far, by start time.
    pub fn spans(&self) -> Vec<Span> {
        let Some(shared) = &self.0 else { return Vec::new() };
        let mut spans = lock(&shared.spans).clone();
        spans.sort_by_key(|s| s.start);
        spans
    }

    /// Writes all spans as Chrome trace JSON (times in microseconds).
    ///
    /// # Errors
    /// An error of the writer.
    pub fn write_chrome(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        chrome::write(&self.spans(), out)
    }
}

/// Locks. A panic elsewhere while the lock was held leaves the list valid.
fn lock(spans: &Mutex<Vec<Span>>) -> MutexGuard<'_, Vec<Span>> {
    spans.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_tracer_can_go_on() {
        let span = || Span {
            name: "a".into(),
            lane: "b".into(),
            start: Duration::ZERO,
            end: Duration::from_secs(1),
            args: Vec::new(),
        };
        let (on, off) = (Tracer::on(), Tracer::off());
        on.pause(true);
        off.pause(false);
        assert!(!on.enabled() && !off.enabled());
        on.pause(false);
        assert!(on.enabled());
        on.record(span());
        off.record(span());
        assert_eq!(on.take(), [span()]);
        assert!(on.spans().is_empty() && off.take().is_empty());
    }
}
