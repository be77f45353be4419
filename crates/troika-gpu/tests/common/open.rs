//! The software adapter as a device.

use troika_gpu::{GpuDevice, GpuError, GpuOptions, GpuSpec};

use crate::needed;

/// The software adapter, with memory of its own.
pub fn options() -> GpuOptions {
    let spec = GpuSpec::Named(needed::adapter());
    GpuOptions { name: "gpu".into(), spec, own_memory: true, ..GpuOptions::default() }
}

/// Opens an adapter; `None`, with a line, where it is not installed.
pub fn device(options: GpuOptions) -> Option<GpuDevice> {
    match GpuDevice::open(options) {
        Ok(device) => Some(device),
        Err(e @ GpuError::NotFound(_)) => {
            needed::not_run(&e.to_string());
            None
        }
        Err(e) => panic!("{e}"),
    }
}
