//! The subject of a measurement or plan: a model from files, or random weights of a known shape.

use std::fmt;

use troika_graph::DType;
use troika_model::families::{self, DescribedModel};
use troika_model::presets;
use troika_model::spec::ModelSpec;
use troika_weights::{BindOptions, Quant, SYNTHETIC_DTYPES, WeightStore};

use crate::describe::{describe, described_in};
use crate::error::Error;
use crate::source::Source;

/// The subject of a measurement or plan.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A model from files, or the built-in one.
    Files(Source),
    /// A known shape with random weights, in the notation of [`crate::Model::synthetic`].
    Synthetic(String),
}

impl Subject {
    /// The description only: weights are neither read nor made.
    ///
    /// # Errors
    /// Unusable files or config, or an unknown shape or type.
    pub fn spec(&self) -> Result<ModelSpec, Error> {
        match self {
            Subject::Files(source) => Ok(described_in(&source.files()?, source)?.spec),
            Subject::Synthetic(preset) => Ok(known_shape(preset)?.0.spec),
        }
    }

    /// The description and the weights. With `shape_only`, random weights are not generated.
    pub fn described(
        &self,
        bind: BindOptions,
        shape_only: bool,
    ) -> Result<(ModelSpec, WeightStore), Error> {
        match self {
            Subject::Files(source) => describe(source.clone(), bind).map(|d| (d.spec, d.store)),
            Subject::Synthetic(preset) => synthetic(preset, bind.quant, shape_only),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Synthetic(shape) => f.write_str(shape),
            Subject::Files(source) => source.fmt(f),
        }
    }
}

/// The shape and the type of `NAME` or `NAME:TYPE`.
fn known_shape(preset: &str) -> Result<(DescribedModel, DType), Error> {
    let (name, dtype) = preset.split_once(':').unwrap_or((preset, "BF16"));
    let config = presets::config(name)
        .ok_or_else(|| Error::NoPreset { name: name.into(), known: presets::names().join(", ") })?;
    let dtype = SYNTHETIC_DTYPES.into_iter().find(|d| d.name().eq_ignore_ascii_case(dtype));
    let dtype = dtype.ok_or_else(|| Error::NoPresetType {
        name: preset.into(),
        known: SYNTHETIC_DTYPES.map(|d| d.name()).join(", "),
    })?;
    let model = families::from_config(&config)
        .map_err(|error| Error::Config { model: preset.into(), error })?;
    Ok((model, dtype))
}

/// A known shape with random weights. With `shape_only`, they are not generated.
///
/// # Errors
/// An unknown shape or type, or weights larger than the free memory.
pub(crate) fn synthetic(
    preset: &str,
    quant: Quant,
    shape_only: bool,
) -> Result<(ModelSpec, WeightStore), Error> {
    let (model, dtype) = known_shape(preset)?;
    let store = WeightStore::synthetic_lazy(&model.spec, dtype, 1, quant);
    if shape_only {
        return Ok((model.spec, store));
    }
    let mib = |bytes: u64| bytes >> 20;
    let bytes: u64 = store.classes().iter().map(|c| c.bytes).sum();
    if let Some(free) = free_memory().filter(|free| bytes > *free) {
        let (need, free) = (mib(bytes), mib(free));
        return Err(Error::ShapeTooLarge { name: preset.into(), need, free });
    }
    let store = WeightStore::synthetic(&model.spec, dtype, 1, quant);
    Ok((model.spec, store))
}

/// Available memory in bytes, if the system tells.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
