//! The only place that names concrete devices.

use std::sync::Arc;

use troika_cpu::{CpuDevice, CpuOptions};
use troika_device::{Device, DeviceError};

/// Which devices to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Threads of the CPU device; `None`: one per physical performance core.
    pub threads: Option<usize>,
}

/// Opens all devices of this machine.
///
/// # Errors
/// What a device reports.
pub fn open_devices(options: &DeviceOptions) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let threads = options.threads.unwrap_or_else(troika_cpu::default_threads).max(1);
    let cpu = CpuDevice::new(CpuOptions { name: "cpu".into(), threads, ..CpuOptions::default() })?;
    Ok(vec![Arc::new(cpu)])
}

/// Read bandwidth of this machine's memory in GB/s, measured now with the given threads.
pub fn measure_bandwidth(threads: usize) -> f64 {
    troika_cpu::measure_bandwidth(threads)
}
