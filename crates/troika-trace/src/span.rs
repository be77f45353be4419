//! Spans.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// A named interval on a lane (a device, the host).
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What happened.
    pub name: Cow<'static, str>,
    /// Where: one row of the timeline, or several if spans overlap.
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
