//! A model's description and weights, before compiling.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::Device;
use troika_model::families::{self, DescribedModel};
use troika_model::spec::ModelSpec;
use troika_weights::{BindOptions, FileSource, ModelFiles, WeightStore, open_start, unusable};

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

/// A model and the types of its weights, of the most bytes first, by the first bytes of its GGUF file of
/// `len` bytes; `None` if they end inside of its header.
///
/// # Errors
/// No GGUF file, a model that is not supported, or types that weights cannot have.
pub fn outline(name: &str, start: &[u8], len: u64) -> Result<Option<(ModelSpec, String)>, Error> {
    let Some(start) = open_start(name, start, len)? else { return Ok(None) };
    let (model, files) = (described_in(&start, &name.into())?, &*start.files);
    if let Some(error) = unusable(&model, files) {
        return Err(error.into());
    }
    let mut bytes: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in files.names().into_iter().filter_map(|name| files.tensor(name)) {
        let (rows, cols) = tensor.matrix();
        *bytes.entry(tensor.dtype.name()).or_default() +=
            rows.saturating_mul(tensor.dtype.row_size(cols));
    }
    let mut types: Vec<&str> = bytes.keys().copied().collect();
    types.sort_by_key(|name| std::cmp::Reverse(bytes[name]));
    Ok(Some((model.spec, types.join(", "))))
}

/// The description in a model's files.
fn described_in(files: &ModelFiles, source: &Source) -> Result<DescribedModel, Error> {
    let model = match &files.source {
        FileSource::HuggingFace { config, .. } => families::from_config(config),
        FileSource::Gguf { meta, .. } => families::from_gguf(meta, &*files.files),
    };
    let with_numbers = model.and_then(|mut model| {
        families::numbers_in_files(&mut model.spec, &*model.names, &*files.files)?;
        Ok(model)
    });
    with_numbers.map_err(|error| Error::Config { model: source.to_string(), error })
}
