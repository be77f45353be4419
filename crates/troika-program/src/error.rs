//! Why a plan cannot be applied to a model on some devices.

use troika_graph::partition::PartitionError;
use troika_model::lower::LowerError;

use crate::kv::KvError;

/// Why a plan cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The model could not be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// No cache is large enough.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The plan names no device for a segment.
    #[error("the plan names no device for segment {0}")]
    Unplaced(String),
    /// A plan that the model or the devices do not fit: a sentence that names what it is about.
    #[error("{0}")]
    Misfit(String),
    /// What a device does not take of a segment that devices share: to route rows, a group of
    /// experts, or a standard length. A sentence that names the device.
    #[error("{0}")]
    NotTaken(String),
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
}
