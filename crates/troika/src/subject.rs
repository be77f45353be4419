//! What is measured or planned for: a model of files, or random weights of a known shape.

use std::fmt;

use troika_graph::DType;
use troika_model::families::{self, DescribedModel};
use troika_model::presets;
use troika_model::spec::ModelSpec;
use troika_weights::{BindOptions, Quant, SYNTHETIC_DTYPES, WeightStore};

use crate::describe::{describe, described_in};
use crate::error::Error;
use crate::source::Source;

/// What is measured or planned for: a model of files, or the shape of a known one.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A model of files, or the built-in one.
    Files(Source),
    /// A known shape with random weights, as [`crate::Model::synthetic`] takes it.
    Synthetic(String),
}

impl Subject {
    /// The description alone: no weights are looked for or made.
    ///
    /// # Errors
    /// Files or config that do not serve, an unknown shape or type.
    pub fn spec(&self) -> Result<ModelSpec, Error> {
        match self {
            Subject::Files(source) => Ok(described_in(&source.files()?, source)?.spec),
            Subject::Synthetic(preset) => Ok(known_shape(preset)?.0.spec),
        }
    }

    /// The description and the weights; `shape_only` if nobody computes with those of a shape.
    pub(crate) fn described(
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

/// A known shape with random weights; `shape_only` if nobody computes with them.
///
/// # Errors
/// A shape or type that is not known, or weights larger than the memory that is free.
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

/// Bytes that can be had without the system having to end somebody, where it tells.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
