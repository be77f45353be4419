//! What is measured or planned for: a model of files, or random weights of a known shape.

use std::fmt;
use std::sync::Arc;

use troika_device::Device;
use troika_graph::DType;
use troika_model::families::{self, DescribedModel};
use troika_model::presets;
use troika_model::spec::ModelSpec;
use troika_weights::{BindOptions, Quant, SYNTHETIC_DTYPES, WeightStore};

use crate::describe::{describe, described_in};
use crate::devices::computes_nothing;
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

    /// The description and the weights.
    pub(crate) fn described(
        &self,
        bind: BindOptions,
        devices: &[Arc<dyn Device>],
    ) -> Result<(ModelSpec, WeightStore), Error> {
        match self {
            Subject::Files(source) => describe(source.clone(), bind).map(|d| (d.spec, d.store)),
            Subject::Synthetic(preset) => synthetic(preset, bind.quant, devices),
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

/// A known shape with random weights.
pub(crate) fn synthetic(
    preset: &str,
    quant: Quant,
    devices: &[Arc<dyn Device>],
) -> Result<(ModelSpec, WeightStore), Error> {
    let (model, dtype) = known_shape(preset)?;
    // What nobody computes with need not be there.
    let make = if devices.iter().all(computes_nothing) {
        WeightStore::synthetic_lazy
    } else {
        WeightStore::synthetic
    };
    let store = make(&model.spec, dtype, 1, quant);
    Ok((model.spec, store))
}
