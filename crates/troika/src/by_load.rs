//! Notes for users on placement by load.

use std::sync::Arc;

use troika_device::Device;
use troika_plan::{Decide, Plan};

/// What a user who asked for placement by load should know.
pub(crate) fn about_load(
    plan: &Plan,
    decide: Decide,
    devices: &[Arc<dyn Device>],
) -> Option<String> {
    if decide == Decide::Length {
        return None;
    }
    if plan.by_load.is_empty() {
        return Some(
            "the plan holds no other ways to place chunks, so load is not looked at: they are \
             placed by their length alone"
                .into(),
        );
    }
    let used = devices.iter().filter(|d| plan.devices.iter().any(|name| name == d.name()));
    let mut numerics = used.map(|d| &d.caps().numerics);
    let first = numerics.next();
    numerics.any(|n| Some(n) != first).then(|| {
        "chunks are placed by load, on devices that round differently: the last digits of numbers, \
         and with them tokens, may differ from run to run"
            .into()
    })
}
