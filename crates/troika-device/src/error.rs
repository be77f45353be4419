//! Errors of devices.

use crate::buffer::BufferBusy;

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
    /// Scheduling conflict.
    #[error(transparent)]
    Busy(#[from] BufferBusy),
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
