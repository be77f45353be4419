//! What a device can do at most, as loops of its own reach it.

use std::time::{Duration, Instant};

use troika_device::DeviceError;

use crate::GpuSpec;
use crate::adapter::choose;
use crate::bound::{MultiplyCount, Ready};
use crate::error::GpuError;
use crate::gpu::{Gpu, Use};
use crate::kernels::{Dispatch, probe_multiply, probe_read};

/// A device's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLimits {
    /// Reading its memory, in 10^9 bytes per second.
    pub read: f64,
    /// Multiplying and adding f32 numbers, in 10^9 operations per second, two per product. `None`
    /// where products of many rows use matrix units, whose limit is not measured.
    pub multiply: Option<f64>,
}

/// Bytes that are read, which caches do not hold; fewer where the limit of a binding is lower.
const BYTES: u64 = 1 << 30;
/// The same where the host's cores stand in for a GPU.
const SOFTWARE_BYTES: u64 = 64 << 20;
/// The time that a measurement takes at least, and their number: the best counts.
const TIME: Duration = Duration::from_millis(20);
const RUNS: usize = 5;
/// The most dispatches of a measurement.
const MOST: u32 = 1 << 12;

/// Measures an adapter's limits. Takes about a second.
///
/// # Errors
/// There is no such adapter, it cannot be used, or it has no memory left.
pub fn measure_limits(spec: &GpuSpec) -> Result<GpuLimits, GpuError> {
    let gpu = Gpu::open("gpu", &choose(spec)?, None, false)?;
    let failed = |e: DeviceError| GpuError::unusable(spec, e);
    Ok(GpuLimits { read: read(&gpu).map_err(failed)?, multiply: multiply(&gpu).map_err(failed)? })
}

fn read(gpu: &Gpu) -> Result<f64, DeviceError> {
    let most = gpu.limits.max_storage_buffer_binding_size.min(gpu.limits.max_buffer_size);
    let bytes = if gpu.is_software { SOFTWARE_BYTES } else { BYTES }.min(most) / 16 * 16;
    let memory = gpu.memory(bytes, Use::Storage);
    let memory = memory.map_err(DeviceError::memory(format!("probes on device {}", gpu.name)))?;
    let made = probe_read((bytes / 16) as u32);
    let seconds = seconds(gpu, &made, &[&memory.buffer, &gpu.unread])?;
    Ok(bytes as f64 / seconds / 1e9)
}

fn multiply(gpu: &Gpu) -> Result<Option<f64>, DeviceError> {
    if gpu.matrix_units {
        return Ok(None);
    }
    let (groups, passes) = if gpu.is_software { (16, 16) } else { (2048, 64) };
    let (made, products) = probe_multiply(groups, passes).map_err(|e| gpu.error(e.to_string()))?;
    let seconds = seconds(gpu, &made, &[&gpu.unread])?;
    Ok(Some(2.0 * products as f64 / seconds / 1e9))
}

/// How long a dispatch takes, one of many.
fn seconds(gpu: &Gpu, of: &Dispatch, bound: &[&wgpu::Buffer]) -> Result<f64, DeviceError> {
    let parts: Vec<_> = bound.iter().map(|b| (*b, 0..b.size())).collect();
    let ready = Ready::new(gpu, of.clone(), &parts, MultiplyCount::default())?;
    let run = |count: u32| {
        let start = Instant::now();
        gpu.wait(Some(ready.submit(gpu, count)))?;
        Ok::<Duration, DeviceError>(start.elapsed())
    };
    let mut count = 1;
    while run(count)? < TIME && count < MOST {
        count *= 2;
    }
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(run(count)?.as_secs_f64() / f64::from(count));
    }
    Ok(best)
}
