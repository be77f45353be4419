//! What plans know of a device.

use troika_device::Caps;

use crate::strategy::DeviceFacts;

/// A device as plans see it: a name and limits. It compiles and runs nothing.
#[derive(Clone, Debug)]
pub struct PlanDevice {
    /// Its name.
    pub name: String,
    /// What it can do.
    pub caps: Caps,
}

impl PlanDevice {
    /// The facts that strategies use.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts::new(&self.name, &self.caps)
    }
}
