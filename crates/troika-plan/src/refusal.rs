//! What devices say no to.

use troika_model::lower::SegmentKind;

/// An op that a device does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the device.
    pub device: String,
    /// The segment it is of.
    pub segment: SegmentKind,
    /// Name of the op.
    pub op: String,
    /// Why.
    pub why: String,
}
