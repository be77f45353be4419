//! What plans know of a device.

use std::sync::Arc;

use troika_device::{Caps, Device};

/// A device as plans see it: a name and limits. It compiles and runs nothing.
#[derive(Clone, Debug)]
pub struct PlanDevice {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub caps: Caps,
}

impl PlanDevice {
    /// What plans know of an open device.
    pub fn of(device: &Arc<dyn Device>) -> PlanDevice {
        PlanDevice { name: device.name().into(), caps: device.caps().clone() }
    }
}
