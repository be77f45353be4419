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
    /// A device that cannot share experts out.
    #[error(
        "device {0} cannot share experts out: that takes a CPU which runs functions of the host and \
         takes any number of rows; name one as the rule's device"
    )]
    Routes(String),
    /// A group of experts that is larger than a device's graphs may be.
    #[error(
        "group {group} of the plan's experts in {segment} has {bytes} bytes of weights on device \
         {device}, whose graphs hold {most}; put fewer experts into a group"
    )]
    Group {
        /// The segment.
        segment: String,
        /// The group's number, counted from 1.
        group: usize,
        /// Its weights.
        bytes: u64,
        /// The device.
        device: String,
        /// The most bytes of a graph.
        most: u64,
    },
    /// A cache of experts that has no room for one group.
    #[error(
        "a group of experts has {needs} bytes of weights on device {device}, and its cache of \
         experts holds {holds}; raise --expert-group-mib"
    )]
    ExpertCache {
        /// The device.
        device: String,
        /// Bytes of the largest group.
        needs: u64,
        /// The most bytes of the cache.
        holds: u64,
    },
    /// Values before and after attention of another type than f32.
    #[error(
        "rows of {0} cannot be left out by what attention added to them, which is handed on in 16 \
         bits; leave \"values\" out of the rules, or take another overflow"
    )]
    Saliency(String),
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
}
