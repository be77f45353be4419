//! Allocation: a failed request becomes an error that says what the memory was for.

use std::sync::Arc;

use troika_device::{Buffer, Device, DeviceError, SpaceId};
use troika_plan::own_space;

use crate::error::EngineError;

/// Allocates host memory; `bytes` is `None` if the number overflowed.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn allocate(bytes: Option<usize>, what: &str) -> Result<Buffer, EngineError> {
    let buffer = Buffer::zeroed(bytes.unwrap_or(usize::MAX));
    Ok(buffer.map_err(DeviceError::memory(what))?)
}

/// Allocates memory in a space, from the device that owns it.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn allocate_in(
    space: SpaceId,
    bytes: Option<usize>,
    what: &str,
    devices: &[Arc<dyn Device>],
) -> Result<Buffer, EngineError> {
    let owner = devices.iter().find(|d| own_space(d.caps()) == space);
    match owner.filter(|_| space != SpaceId::HOST) {
        Some(device) => {
            let what = format!("{what} on device {}", device.name());
            let buffer = device.allocate(bytes.unwrap_or(usize::MAX));
            Ok(buffer.map_err(DeviceError::memory(what))?)
        }
        None => allocate(bytes, what),
    }
}
