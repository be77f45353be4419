//! Errors of plans.

use std::fmt::Display;

use crate::identity::{ModelId, PLAN_VERSION};
use crate::refusal::Refusal;

/// Why a plan cannot be made or used.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// A plan that contradicts itself, the model or what else it is used with, or a calibration that
    /// cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// Not a valid plan.
    #[error("it is not a plan: {0}")]
    Parse(String),
    /// An unknown device.
    #[error("the plan uses device {name}, which is not among those at hand ({known})")]
    Device {
        /// The missing device.
        name: String,
        /// The available devices.
        known: String,
    },
    /// A rule that contradicts the model, the plan or another rule.
    #[error("rule {number} of {phase} {why}")]
    Rule {
        /// The phase it belongs to.
        phase: String,
        /// The rule's number, counted from 1.
        number: usize,
        /// What is wrong.
        why: String,
    },
    /// More weights on a device than it can hold.
    #[error(
        "the plan places {needs} bytes of weights on device {device}, which holds {holds}; place \
         some segments or layers elsewhere"
    )]
    Memory {
        /// The device.
        device: String,
        /// Bytes that it would hold.
        needs: u64,
        /// Bytes that it can hold.
        holds: u64,
    },
    /// A cost model without the prices needed.
    #[error("no plan can be chosen: {0}")]
    Unpriced(String),
    /// An op that no available device computes.
    #[error(
        "no device takes {} of segment {}; {}: {}; name another device beside it, such as cpu",
        .0.op, .0.segment.name(), .0.device, .0.why
    )]
    Refused(Box<Refusal>),
    /// A plan that places an op on a device that refuses it.
    #[error(
        "the plan has device {} compute op {} of segment {}, which it does not take ({}); place it \
         elsewhere or allow a fallback", .0.device, .0.op, .0.segment.name(), .0.why
    )]
    NotTaken(Box<Refusal>),
    /// A strategy that does not suit the available devices.
    #[error("strategy {strategy} needs {need}, there are {count}")]
    Strategy {
        /// Its name.
        strategy: &'static str,
        /// What it needs.
        need: &'static str,
        /// Number of available devices.
        count: usize,
    },
    /// Experts that a device does not take as asked for.
    #[error("experts on device {0}")]
    ExpertGroup(String),
    /// A value outside its range.
    #[error("{what} is {got}; it must be between {low} and {high}")]
    Range {
        /// The name of the value.
        what: &'static str,
        /// Its value.
        got: usize,
        /// Smallest allowed value.
        low: usize,
        /// Largest allowed value.
        high: usize,
    },
    /// Lengths that a plan is to be best for, which do not fit the context together.
    #[error(
        "a prompt of {prompt} tokens leaves {} of the context of {context} tokens, and {generate} \
         are to be generated; take a shorter prompt, fewer generated tokens or a larger context",
        context - prompt
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that are generated.
        generate: usize,
        /// The context, which holds the prompt.
        context: usize,
    },
}

impl PlanError {
    /// The error of a segment of a phase that no rule places.
    pub fn missing(phase: impl Display, segment: impl Display) -> PlanError {
        PlanError::Invalid(format!("no rule of {phase} places {segment}"))
    }

    pub(crate) fn version(found: impl Display) -> PlanError {
        PlanError::Invalid(format!(
            "the plan has version {found}, this build reads {PLAN_VERSION}; make it again"
        ))
    }
}

impl std::fmt::Display for ModelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ModelId { family, layers, hidden, vocab } = self;
        write!(f, "{family} of {layers} layers, width {hidden}, {vocab} tokens")
    }
}
