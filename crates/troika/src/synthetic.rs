//! Known shapes with random weights.

use troika_model::spec::ModelSpec;
use troika_model::{families, presets};
use troika_weights::{Quant, SYNTHETIC_DTYPES, WeightStore};

use crate::error::Error;

/// A known shape with random weights; `shape_only` if nobody computes with them.
///
/// # Errors
/// A shape or type that is not known, or weights larger than the memory that is free.
pub(crate) fn synthetic(
    preset: &str,
    quant: Quant,
    shape_only: bool,
) -> Result<(ModelSpec, WeightStore), Error> {
    let (name, dtype) = preset.split_once(':').unwrap_or((preset, "BF16"));
    let config = presets::config(name)
        .ok_or_else(|| Error::NoPreset { name: name.into(), known: presets::names().join(", ") })?;
    let dtype = SYNTHETIC_DTYPES.into_iter().find(|d| d.name().eq_ignore_ascii_case(dtype));
    let dtype = dtype.ok_or_else(|| Error::NoPresetType {
        name: preset.into(),
        known: SYNTHETIC_DTYPES.map(|d| d.name()).join(", "),
    })?;
    let spec = families::from_config(&config)
        .map_err(|error| Error::Config { model: preset.into(), error })?
        .spec;
    let store = WeightStore::synthetic_lazy(&spec, dtype, 1, quant);
    if shape_only {
        return Ok((spec, store));
    }
    let mib = |bytes: u64| bytes >> 20;
    let bytes: u64 = store.classes().iter().map(|c| c.bytes).sum();
    if let Some(free) = free_memory().filter(|free| bytes > *free) {
        let (need, free) = (mib(bytes), mib(free));
        return Err(Error::ShapeTooLarge { name: preset.into(), need, free });
    }
    let store = WeightStore::synthetic(&spec, dtype, 1, quant);
    Ok((spec, store))
}

/// Bytes that can be had without the system having to end somebody, where it tells.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
