//! Errors of the engine.

use std::sync::Arc;

use troika_device::{AccessError, DeviceError};
use troika_graph::partition::PartitionError;
use troika_model::lower::LowerError;
use troika_plan::PlanError;

use crate::kv::{KvError, SeqId};

/// What can go wrong while running a model.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model could not be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The KV cache refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// An empty input.
    #[error("the prompt is empty; give at least one token")]
    Empty,
    /// Logits were requested from a device that models time only.
    #[error(
        "device {0} computes nothing (its numerics are off): there are no logits to read; set \
         numerics = \"on\" in the file that describes it"
    )]
    NoNumerics(String),
    /// A sequence was fed while it still has tokens to compute.
    #[error("sequence {0} is fed again before it is through; join the tokens or wait")]
    Twice(SeqId),
    /// The engine was closed.
    #[error("the engine is closed; open the model again")]
    Ended,
    /// The plan names no device for a segment.
    #[error("the plan names no device for segment {0}")]
    Unplaced(String),
    /// A segment whose number of stages differs from the plan's rule.
    #[error("segment {segment} has {has} stages, the plan's rule {says}")]
    Stages {
        /// The segment.
        segment: String,
        /// Stages of the segment.
        has: usize,
        /// Stages in the rule.
        says: usize,
    },
    /// A segment that cannot be split as the plan says.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A share that rounds to no rows or columns.
    #[error(
        "the plan's split leaves device {device} nothing to compute; its share of the columns must \
         be from {least:.3} to {most:.3}"
    )]
    NothingLeft {
        /// The device.
        device: String,
        /// The least share that leaves a device something.
        least: f64,
        /// The largest one that leaves another device something.
        most: f64,
    },
    /// A cache that two devices use in turns although each has memory of its own.
    #[error(
        "the plan has {0} use a cache in one place that another segment of the phase uses in \
         another; place or split both alike"
    )]
    TwoHomes(String),
    /// A cache page too large for a device to bind.
    #[error(
        "the plan's pages of {page_len} positions have {bytes} bytes in {state}, more than device \
         {device} binds at once; set page_len to {fit} or less"
    )]
    Page {
        /// The device.
        device: String,
        /// The cache.
        state: String,
        /// Positions of a page.
        page_len: usize,
        /// Bytes of a page.
        bytes: u64,
        /// The longest page that can be bound.
        fit: u64,
    },
    /// A standard length that the static shapes do not add up to.
    #[error(
        "the plan gives device {device} {length} rows at once, which its shapes of {rows:?} rows \
         do not make up"
    )]
    StandardLength {
        /// The device.
        device: String,
        /// The rows of a standard part.
        length: usize,
        /// The numbers of rows it is compiled for.
        rows: Vec<usize>,
    },
    /// Compiling was cancelled.
    #[error("compiling was cancelled when {done} of {all} steps were done")]
    CompileCancelled {
        /// Finished steps.
        done: usize,
        /// All steps: codes to make plus graphs whose weights to load.
        all: usize,
    },
    /// Compiling exceeded its time limit.
    #[error(
        "compiling takes longer than {limit:?}: the time was up at {segment} on device {device}, \
         with {done} of {all} steps done; allow more time or place it on another device"
    )]
    CompileTime {
        /// The device that was compiling.
        device: String,
        /// What it compiled.
        segment: String,
        /// The time limit.
        limit: std::time::Duration,
        /// Finished steps.
        done: usize,
        /// All steps: codes to make plus graphs whose weights to load.
        all: usize,
    },
    /// A scheduling fault.
    #[error(transparent)]
    Busy(#[from] AccessError),
    /// A task that does not fit a growing graph.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// All remaining tasks wait for each other.
    #[error("the scheduler has {0} tasks left and none is ready")]
    Stuck(usize),
}

/// A task or growth that does not fit the graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// Two tasks with one key.
    #[error("tasks {task} and {other} have the same key; give each a key of its own")]
    SameKey {
        /// The new task.
        task: Arc<str>,
        /// The existing task.
        other: Arc<str>,
    },
    /// A task that must run later was already handed to a queue.
    #[error(
        "task {task} came too late: {begun}, which comes behind it and uses the same memory, was \
         handed over; declare it as the growth of a task that is not done"
    )]
    TooLate {
        /// The new task.
        task: Arc<str>,
        /// The task handed to a queue.
        begun: Arc<str>,
    },
    /// A use of memory that the growth did not declare.
    #[error("task {task} uses memory that {by}, whose growth it is, did not declare")]
    Undeclared {
        /// The new task.
        task: Arc<str>,
        /// The task whose growth it is.
        by: Arc<str>,
    },
    /// A key reserved by another growth.
    #[error("the key of task {task} is among those that {by} has for its growth")]
    Reserved {
        /// The new task.
        task: Arc<str>,
        /// The task whose growth reserved the key.
        by: Arc<str>,
    },
    /// Keys that a growth cannot reserve.
    #[error(
        "the growth of task {task} needs keys behind the task's own that no other growth or task \
         has"
    )]
    Keys {
        /// The task.
        task: Arc<str>,
    },
    /// A device index out of range.
    #[error("task {task} is for device {device} of {devices}")]
    Device {
        /// The task.
        task: Arc<str>,
        /// Its device.
        device: usize,
        /// How many there are.
        devices: usize,
    },
}
