//! A model's description and weights, before compiling.

use std::sync::Arc;

use troika_device::Device;
use troika_model::families::{self, DescribedModel};
use troika_model::spec::ModelSpec;
use troika_weights::{BindOptions, FileSource, ModelFiles, WeightStore};

use crate::error::Error;
use crate::source::Source;

/// A model's description with its bound weights, before compiling.
pub struct Described {
    /// The files.
    pub files: ModelFiles,
    /// The description.
    pub spec: ModelSpec,
    /// The weights.
    pub store: WeightStore,
}

/// A model with bound weights and the devices at hand. Nothing is compiled yet.
pub struct BoundModel {
    /// The description.
    pub spec: ModelSpec,
    /// The weights.
    pub store: WeightStore,
    /// The devices.
    pub devices: Vec<Arc<dyn Device>>,
}

/// Reads and checks a model without compiling it.
///
/// # Errors
/// Unusable files, config or weights.
pub fn describe(
    source: impl Into<Source>,
    options: impl Into<BindOptions>,
) -> Result<Described, Error> {
    let source = source.into();
    let files = source.files()?;
    let model = described_in(&files, &source)?;
    let store = WeightStore::bind(&model, &*files.files, options.into())?;
    Ok(Described { files, spec: model.spec, store })
}

impl Source {
    /// The description only: weights are not read.
    ///
    /// # Errors
    /// Unusable files or config.
    pub fn spec(&self) -> Result<ModelSpec, Error> {
        Ok(described_in(&self.files()?, self)?.spec)
    }
}

/// The description in a model's files.
fn described_in(files: &ModelFiles, source: &Source) -> Result<DescribedModel, Error> {
    let model = match &files.source {
        FileSource::HuggingFace { config, .. } => families::from_config(config),
        FileSource::Gguf { meta, .. } => families::from_gguf(meta, &*files.files),
    };
    model.map_err(|error| Error::Config { model: source.to_string(), error })
}
