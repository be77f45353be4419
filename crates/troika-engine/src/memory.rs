//! Allocation: a failed request becomes an error that says what the memory was for.

use std::sync::Arc;

use troika_device::{Buffer, Device, DeviceError, SpaceId};
use troika_plan::own_space;

use crate::error::EngineError;

/// Allocates host memory; `bytes` is `None` if the number overflowed.
pub(crate) fn allocate(bytes: Option<usize>, what: &str) -> Result<Buffer, EngineError> {
    let buffer = Buffer::zeroed(bytes.unwrap_or(usize::MAX));
    Ok(buffer.map_err(DeviceError::memory(what))?)
}

/// The device that owns a space; nobody owns the host's.
pub(crate) fn owner(space: SpaceId, devices: &[Arc<dyn Device>]) -> Option<&Arc<dyn Device>> {
    devices.iter().find(|d| own_space(d.caps()) == space).filter(|_| space != SpaceId::HOST)
}

/// Allocates memory in a space, from the device that owns it.
pub(crate) fn allocate_in(
    space: SpaceId,
    bytes: Option<usize>,
    what: &str,
    devices: &[Arc<dyn Device>],
) -> Result<Buffer, EngineError> {
    match owner(space, devices) {
        Some(device) => {
            let what = format!("{what} on device {}", device.name());
            let buffer = device.allocate(bytes.unwrap_or(usize::MAX));
            Ok(buffer.map_err(DeviceError::memory(what))?)
        }
        None => allocate(bytes, what),
    }
}
