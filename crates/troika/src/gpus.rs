//! GPUs, where this build has them (feature `gpu`).

use std::sync::Arc;

use troika_device::{Device, DeviceError};

use crate::devices::DeviceOptions;

#[cfg(feature = "gpu")]
pub use troika_gpu::GpuSpec;

/// The adapters of this machine, in the order of their numbers, each with its facts as (name,
/// value). None without a driver, or in a build without GPU devices.
#[cfg(feature = "gpu")]
pub fn gpu_adapters() -> Vec<Vec<(String, String)>> {
    troika_gpu::adapters().iter().map(troika_gpu::Adapter::facts).collect()
}

/// Opens a GPU.
///
/// # Errors
/// The step on the way to it that failed.
#[cfg(feature = "gpu")]
pub(crate) fn open(
    name: String,
    spec: &GpuSpec,
    options: &DeviceOptions,
) -> Result<Arc<dyn Device>, DeviceError> {
    let memory = options.memory.iter().find(|(of, _)| *of == name).map(|(_, bytes)| *bytes);
    let (spec, binding_limit) = (spec.clone(), None);
    let own = troika_gpu::GpuOptions { name: name.clone(), spec, memory, binding_limit };
    let opened = troika_gpu::GpuDevice::open(own);
    let gpu = opened.map_err(|e| DeviceError::System { device: name, why: e.to_string() })?;
    Ok(Arc::new(gpu))
}

/// Which adapter; in this build there is none.
#[cfg(not(feature = "gpu"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSpec {}

#[cfg(not(feature = "gpu"))]
impl GpuSpec {
    /// Refuses every text.
    ///
    /// # Errors
    /// That this build has no GPU devices.
    pub fn parse(_: &str) -> Result<GpuSpec, String> {
        Err("this build has no GPU devices; build it with the feature gpu".into())
    }
}

#[cfg(not(feature = "gpu"))]
/// None: this build has no GPU devices.
pub fn gpu_adapters() -> Vec<Vec<(String, String)>> {
    Vec::new()
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn open(
    _: String,
    spec: &GpuSpec,
    _: &DeviceOptions,
) -> Result<Arc<dyn Device>, DeviceError> {
    match *spec {}
}
