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
        /// Op name, or [`DeviceError::ALL_OPS`].
        op: String,
        /// Subgraph name.
        graph: String,
        /// Reason.
        why: String,
    },
    /// A malformed subgraph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The system has too little memory.
    #[error("no memory for {what}: {bytes} bytes were asked for; use a smaller context or batch")]
    Memory {
        /// What it was for.
        what: String,
        /// Bytes requested.
        bytes: usize,
    },
    /// A weight that cannot be read.
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
    /// A rectangle that is not inside its buffer.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A scheduling conflict.
    #[error(transparent)]
    Busy(#[from] AccessError),
    /// A task was skipped because one that it waits for failed.
    #[error("a task was left out because one that it waits for failed")]
    Skipped,
    /// Tasks were skipped because the run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The queue's thread has ended.
    #[error("device {0} stopped working; start the program again")]
    Gone(String),
    /// The device is lost to this process: its driver was reset, or it was unplugged.
    #[error("device {device}: the driver lost it: {why}")]
    Lost {
        /// Device name.
        device: String,
        /// What the driver said.
        why: String,
    },
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
    /// What [`DeviceError::Unsupported`] names where a compiler refuses a graph whose ops it all
    /// takes alone.
    pub const ALL_OPS: &'static str = "all";

    /// For a weight that cannot be used.
    pub fn weight(name: impl Into<String>, why: impl Into<String>) -> DeviceError {
        DeviceError::Weight { name: name.into(), why: why.into() }
    }

    /// For a queue that is given a list more than it takes.
    pub fn too_many_lists(device: &str, depth: usize) -> DeviceError {
        let why = format!("{depth} lists are in flight on its queue, which is all it takes");
        DeviceError::System { device: device.into(), why }
    }

    /// For a system that has no thread left.
    pub fn no_thread(device: &str, error: &std::io::Error) -> DeviceError {
        let why = format!("cannot start a thread: {error}");
        DeviceError::System { device: device.into(), why }
    }

    /// For a queue that is given a function of the host and runs none.
    pub fn no_host_program(device: &str, task: &str) -> DeviceError {
        let why = format!("a function of the host cannot run on device {device}");
        DeviceError::Submission { task: task.into(), why }
    }

    /// Adds the purpose of the memory to an allocation error.
    pub fn memory(what: impl Into<String>) -> impl FnOnce(OutOfMemory) -> DeviceError {
        move |e| DeviceError::Memory { what: what.into(), bytes: e.bytes }
    }
}
