//! Errors of devices.

use troika_graph::GraphError;

use crate::memory::{AccessError, OutOfMemory, ViewError};

/// What can go wrong on a device.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeviceError {
    /// The device cannot run an op of the subgraph.
    #[error("device {device} cannot run op {op} of {graph}: {why}")]
    Unsupported {
        /// Device name.
        device: String,
        /// Op name.
        op: String,
        /// Subgraph name.
        graph: String,
        /// Reason.
        why: String,
    },
    /// A subgraph that is not well formed.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The system has too little memory.
    #[error("no memory for {what}: {bytes} bytes were asked for; use a smaller context or batch")]
    Memory {
        /// What it was for.
        what: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// A weight could not be had.
    #[error("weight {name}: {why}")]
    Weight {
        /// Logical name.
        name: String,
        /// Reason.
        why: String,
    },
    /// A submission does not fit its executable.
    #[error("task {task}: {why}")]
    Submission {
        /// Subgraph name.
        task: String,
        /// Reason.
        why: String,
    },
    /// A rectangle that is none of its buffer.
    #[error(transparent)]
    View(#[from] ViewError),
    /// Scheduling conflict.
    #[error(transparent)]
    Busy(#[from] AccessError),
    /// A task was left out, because one that it waits for failed.
    #[error("a task was left out because one that it waits for failed")]
    Skipped,
    /// Tasks were left out, because someone asked for it.
    #[error("the run was cancelled")]
    Cancelled,
    /// The queue's thread ended.
    #[error("device {0} stopped working; start the program again")]
    Gone(String),
    /// The operating system refused something.
    #[error("device {device}: {why}")]
    System {
        /// Device name.
        device: String,
        /// Reason.
        why: String,
    },
}

impl DeviceError {
    /// Says what memory was for.
    pub fn memory(what: impl Into<String>) -> impl FnOnce(OutOfMemory) -> DeviceError {
        move |e| DeviceError::Memory { what: what.into(), bytes: e.bytes }
    }
}
