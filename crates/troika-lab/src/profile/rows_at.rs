//! What all parts of measuring a profile share.

use troika_device::DeviceError;

/// The most measurements of each point, until it is known; spread over the whole time, so that a
/// temporary slowdown does not affect all of them.
pub(super) const VISITS: usize = 3;

/// The rows of a run, and the cached positions before them.
#[derive(Clone, Copy)]
pub(super) struct RowsAt {
    pub rows: usize,
    pub cached: usize,
}

/// An error for a device that fails.
pub(super) fn lost(device: &str, why: &str) -> DeviceError {
    DeviceError::System { device: device.into(), why: why.into() }
}
