//! Ops that devices refuse.

use troika_model::lower::SegmentKind;

/// An op that a device refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the device.
    pub device: String,
    /// The kind of segment.
    pub segment: SegmentKind,
    /// Name of the op.
    pub op: String,
    /// Why.
    pub why: String,
}
