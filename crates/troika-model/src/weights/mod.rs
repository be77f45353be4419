//! Weights: files, how logical weights are cut out of them, and the store devices read from.

mod account;
mod bind;
mod checkpoint;
mod cost;
mod cut;
mod error;
mod gguf;
mod gguf_files;
mod gguf_meta;
mod open;
mod parallel;
mod recipe;
mod safetensors;
mod scan;
mod store;
mod synthetic;

pub use account::{ClassBytes, MemoryReport};
pub use checkpoint::{Checkpoint, StoredTensor};
pub use cost::TokenCost;
pub use error::WeightError;
pub use gguf::{GgufHeader, GgufTensor, parse as parse_gguf};
pub use gguf_meta::{GgufMeta, GgufValue};
pub use open::{FileSource, ModelFiles, open};
pub use recipe::{Cols, Recipe};
pub use safetensors::{TensorEntry, parse_header as parse_safetensors};
pub use store::{FloatType, WeightInfo, WeightStore};
pub use synthetic::SYNTHETIC_DTYPES;
