//! Ops that devices refuse.

use troika_device::{Device, DeviceKind};
use troika_model::lower::SegmentKind;

/// The op of groups of experts.
pub const EXPERT_GROUP: &str = "expert_group";

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

/// Adds refusals of attention for NPUs where another device takes it: their graphs have fixed
/// shapes, so that they compute over more positions than a sequence has.
pub fn leave_attention<'a>(
    devices: impl Iterator<Item = &'a dyn Device> + Clone,
    refusals: &mut Vec<Refusal>,
) {
    let refused =
        |d: &dyn Device, op: &str| refusals.iter().any(|r| r.device == d.name() && r.op == op);
    let mut left = Vec::new();
    for op in ["kv_append", "attention"] {
        let is_npu = |d: &&dyn Device| d.kind() == DeviceKind::Npu;
        if !devices.clone().any(|d| !is_npu(&d) && !refused(d, op)) {
            return;
        }
        for npu in devices.clone().filter(is_npu).filter(|d| !refused(*d, op)) {
            left.push(Refusal {
                device: npu.name().into(),
                segment: SegmentKind::Attention,
                op: op.into(),
                why: "its graphs have fixed lengths; --npu-attention has it compute attention, too"
                    .into(),
            });
        }
    }
    refusals.append(&mut left);
}
