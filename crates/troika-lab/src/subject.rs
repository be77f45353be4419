//! The subject of a measurement or plan: a model from files, or random weights of a known shape.

use std::fmt;
use std::path::Path;

use serde_json::Value;
use troika::{BoundModel, Error, Model, OpenOptions, Source, free_memory};
use troika_device::{read_text, size, size_needed};
use troika_graph::DType;
use troika_model::spec::ModelSpec;
use troika_model::{families, presets};
use troika_weights::{Quant, WeightMix, WeightStore};

use crate::error::{LabError, Result};

/// The subject of a measurement or plan.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A model from files, or the built-in one.
    Files(Source),
    /// A known shape with random weights, in the notation of [`Shape::find`]; bf16 if it names no
    /// type.
    Synthetic(String),
}

impl Subject {
    /// The description only: weights are neither read nor made.
    ///
    /// # Errors
    /// Unusable files or config, or an unknown shape or type.
    pub fn spec(&self) -> Result<ModelSpec> {
        match self {
            Subject::Files(source) => Ok(source.spec()?),
            Subject::Synthetic(preset) => Ok(Shape::find(preset, DType::BF16)?.spec),
        }
    }

    /// The options with devices that are chosen for this subject, where they leave that open.
    ///
    /// # Errors
    /// Unusable files, or an unknown shape.
    pub fn chosen(&self, options: &OpenOptions) -> Result<OpenOptions> {
        match self {
            Subject::Files(source) => Ok(source.chosen(options)?),
            Subject::Synthetic(preset) => {
                let shape = Shape::find(preset, DType::BF16)?;
                Ok(options.chosen(preset, &shape.spec, &shape.lazy_weights(options.quant))?)
            }
        }
    }

    /// Binds weights and opens the devices. Random weights are generated `with_values` only, and
    /// only where a device reads them.
    ///
    /// # Errors
    /// A device that cannot be opened, unusable files, an unknown shape, or random weights larger
    /// than the free memory.
    pub fn bind(&self, options: &OpenOptions, with_values: bool) -> Result<BoundModel> {
        let options = &self.chosen(options)?;
        let preset = match self {
            Subject::Files(source) => return Ok(BoundModel::open(source, options)?),
            Subject::Synthetic(preset) => preset,
        };
        let devices = options.open_devices()?;
        let shape = Shape::find(preset, DType::BF16)?;
        let mut store = shape.lazy_weights(options.quant);
        if with_values && devices.iter().any(|d| d.caps().computes()) {
            let bytes = store.bytes();
            if let Some(free) = free_memory().filter(|free| bytes > *free) {
                let (need, free) = (size_needed(bytes), size(free));
                return Err(LabError::Impossible(format!(
                    "the weights of {preset} take {need} and {free} of memory are free; take a smaller \
                     shape or type, as in :Q4_0"
                )));
            }
            store = WeightStore::synthetic(&shape.spec, shape.mix, 1, options.quant);
        }
        options.calibration().iter().try_for_each(|c| c.apply(&shape.spec, &mut store))?;
        Ok(BoundModel { spec: shape.spec, store, devices })
    }

    /// Opens the model.
    ///
    /// # Errors
    /// Those of [`Subject::bind`] and [`Model::open`].
    pub fn open(&self, options: &OpenOptions) -> Result<Model> {
        Ok(match self {
            Subject::Files(source) => Model::open(source, options)?,
            Subject::Synthetic(preset) => {
                let options = &self.chosen(options)?;
                Model::open_bound(preset, self.bind(options, true)?, options)?
            }
        })
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

/// A model's shape, with the type of its weights.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// The model's description.
    pub spec: ModelSpec,
    /// The types of its weights.
    pub mix: WeightMix,
}

impl Shape {
    /// A preset's name, or the path of a folder with a `config.json` or of a config that ends in
    /// `.json`; each with `:TYPE` for weights of another type, or mix of types, than `usual`.
    ///
    /// # Errors
    /// An unknown preset or type, a file that cannot be read as a config.
    pub fn find(text: &str, usual: DType) -> Result<Shape> {
        let suffix = text.rsplit_once(':').filter(|_| !Path::new(text).exists());
        let (name, mix) = match suffix {
            Some((name, dtype)) if !dtype.contains('/') && !dtype.ends_with(".json") => {
                let no_type = || {
                    let known: Vec<_> = WeightMix::all().map(WeightMix::name).collect();
                    let why = "asks for a type random weights do not have; they have";
                    LabError::Asked(format!("{text:?} {why} {}", known.join(", ")))
                };
                (name, WeightMix::find(dtype).ok_or_else(no_type)?)
            }
            _ => (text, usual.into()),
        };
        let path = Path::new(name);
        let config = match presets::config(name) {
            Some(config) => config,
            None if path.is_dir() => read_config(&path.join("config.json"))?,
            None if name.ends_with(".json") => read_config(path)?,
            None => {
                let known = presets::names().join(", ");
                let why = format!("{name:?} is no known shape; known: {known}");
                return Err(LabError::Asked(why));
            }
        };
        let model = families::from_config(&config)
            .map_err(|error| Error::Config { model: name.into(), error })?;
        Ok(Shape { name: name.into(), spec: model.spec, mix })
    }

    /// Random weights that are generated on demand.
    pub fn lazy_weights(&self, quant: Quant) -> WeightStore {
        WeightStore::synthetic_lazy(&self.spec, self.mix, 1, quant)
    }
}

fn read_config(file: &Path) -> Result<Value> {
    let refuse = |why: &dyn fmt::Display| {
        LabError::Impossible(format!("{} cannot be read as a config: {why}", file.display()))
    };
    let text = read_text(file).map_err(|e| refuse(&e))?;
    serde_json::from_str(&text).map_err(|e| refuse(&e))
}
