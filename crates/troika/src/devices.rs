//! The only place that names concrete devices.

use std::sync::Arc;

pub use troika_cpu::parse_cores;
pub use troika_cpu::peaks::{Peak, Peaks};
use troika_cpu::{CpuDevice, CpuOptions, Isa, Multiply};
use troika_device::{Device, DeviceError};
use troika_graph::{Acts, DType};

/// Which devices to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Threads of the CPU device; `None`: one per core of `cores`, or per physical performance
    /// core.
    pub threads: Option<usize>,
    /// Logical cores the CPU device's threads are pinned to, in turn; `None`: where the system
    /// puts them.
    pub cores: Option<Vec<usize>>,
    /// Instruction set of the CPU device, by name ([`instruction_sets`]); `None`: the best.
    pub isa: Option<String>,
}

impl DeviceOptions {
    /// Threads of the CPU device.
    pub fn threads(&self) -> usize {
        let pinned = self.cores.as_ref().map(Vec::len);
        self.threads.or(pinned).unwrap_or_else(troika_cpu::default_threads).max(1)
    }
}

/// Names of the instruction sets the CPU device has kernels for on this machine, weakest first.
pub fn instruction_sets() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// Numbers of the logical cores this process may use; empty where the system does not say.
pub fn usable_cores() -> Vec<usize> {
    troika_cpu::topology().iter().map(|c| c.id).collect()
}

/// Opens all devices of this machine.
///
/// # Errors
/// What a device reports.
pub fn open_devices(options: &DeviceOptions) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let threads = options.threads();
    let isa = options.isa.as_deref().map(find_isa).transpose()?;
    let cores = options.cores.clone();
    let cpu = CpuDevice::new(CpuOptions { name: "cpu".into(), threads, cores, isa })?;
    Ok(vec![Arc::new(cpu)])
}

fn find_isa(name: &str) -> Result<Isa, DeviceError> {
    let found = Isa::available().into_iter().find(|i| i.name() == name);
    found.ok_or_else(|| DeviceError::System {
        device: "cpu".into(),
        why: format!(
            "this machine has no kernels named {name}; it has {}",
            instruction_sets().join(", ")
        ),
    })
}

/// Read bandwidth of this machine's memory in GB/s, measured now with the given threads.
pub fn measure_bandwidth(threads: usize) -> f64 {
    troika_cpu::peaks::measure_bandwidth(threads)
}

/// Measures what this machine can do at most with the threads of the options.
pub fn measure_peaks(options: &DeviceOptions) -> Peaks {
    troika_cpu::peaks::measure(options.threads.unwrap_or_else(troika_cpu::cores))
}

/// What products with weights of a type multiply with under the given options, if it is known.
///
/// # Errors
/// An instruction set this machine does not have.
pub fn multiply_of(
    options: &DeviceOptions,
    weight: DType,
    acts: Acts,
) -> Result<Option<Multiply>, DeviceError> {
    let isa = options.isa.as_deref().map_or(Ok(Isa::detect()), find_isa)?;
    Ok(troika_cpu::kernels::multiply(isa, weight, acts))
}
