//! What devices can do at most, as loops of their own reach it.

pub use troika_cpu::peaks::measure_bandwidth;
use troika_device::DeviceError;
use troika_graph::{ActivationFormat, DType};

use super::{DeviceOptions, find_isa};

/// The limits of what a model runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// What they are of, for people: `2 threads`, or a device.
    pub of: String,
    /// Reading memory, in 10^9 bytes per second.
    pub read: f64,
    /// Bytes of the last-level caches; `None` when the system does not say.
    pub cache: Option<u64>,
    /// Ways to multiply.
    pub multiply: Vec<Limit>,
}

/// The rate of a way to multiply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Its name in JSON.
    pub name: &'static str,
    /// What is multiplied by which instructions, for people.
    pub words: &'static str,
    /// What is counted: products of floats, or of integers.
    pub unit: &'static str,
    /// 10^9 operations per second, two per product.
    pub value: f64,
}

/// Measures the limits of a GPU if the options name nothing else, otherwise the limits of this
/// machine's threads.
///
/// # Errors
/// There is no such GPU, or it cannot be used.
pub fn measure_limits(options: &DeviceOptions) -> Result<Limits, DeviceError> {
    if let Some(limits) = of_gpu(options)? {
        return Ok(limits);
    }
    let given = options.threads.is_some() || !options.devices.is_empty();
    let threads = if given { options.threads() } else { troika_cpu::cores() };
    let peaks = troika_cpu::peaks::measure(threads);
    let multiply = peaks.multiply.iter().map(|peak| Limit {
        name: peak.multiply.name(),
        words: peak.multiply.words(),
        unit: peak.multiply.unit(),
        value: peak.value,
    });
    let plural = if peaks.threads == 1 { "thread" } else { "threads" };
    Ok(Limits {
        of: format!("{} {plural}", peaks.threads),
        read: peaks.read,
        cache: peaks.cache,
        multiply: multiply.collect(),
    })
}

/// The way to multiply weights of a type under the given options, if its limit is known.
///
/// # Errors
/// An instruction set that this machine lacks.
pub fn multiply_of(
    limits: &Limits,
    options: &DeviceOptions,
    weight: DType,
    activations: ActivationFormat,
) -> Result<Option<Limit>, DeviceError> {
    // A GPU is the only device.
    if matches!(&options.devices[..], [only] if only.gpu.is_some()) {
        return Ok(limits.multiply.first().copied());
    }
    let first = options.devices.first().and_then(|d| d.isa.as_deref());
    let isa = first.or(options.isa.as_deref()).map_or(Ok(troika_cpu::Isa::detect()), find_isa)?;
    let way = troika_cpu::kernels::multiply(isa, weight, activations);
    let of = |way: troika_cpu::Multiply| limits.multiply.iter().find(|l| l.name == way.name());
    Ok(way.and_then(of).copied())
}

#[cfg(feature = "gpu")]
fn of_gpu(options: &DeviceOptions) -> Result<Option<Limits>, DeviceError> {
    let [only] = &options.devices[..] else { return Ok(None) };
    let Some(spec) = &only.gpu else { return Ok(None) };
    let device = only.name.clone().unwrap_or_else(|| "gpu".into());
    let measured = troika_gpu::measure_limits(spec)
        .map_err(|e| DeviceError::System { device: device.clone(), why: e.to_string() })?;
    let multiply = measured.multiply.map(|value| Limit {
        name: "f32_fma_gpu",
        words: "f32",
        unit: "GFLOP/s",
        value,
    });
    Ok(Some(Limits {
        of: format!("device {device}"),
        read: measured.read,
        cache: None,
        multiply: multiply.into_iter().collect(),
    }))
}

#[cfg(not(feature = "gpu"))]
fn of_gpu(_: &DeviceOptions) -> Result<Option<Limits>, DeviceError> {
    Ok(None)
}
