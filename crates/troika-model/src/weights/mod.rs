//! Weights: files, how logical weights are cut out of them, and the store devices read from.

mod account;
mod bind;
mod cache;
mod checkpoint;
mod cut;
mod error;
mod file_map;
mod gguf;
mod gguf_files;
mod gguf_meta;
mod hash;
mod int4;
mod open;
mod parallel;
mod quality;
mod recipe;
mod safetensors;
mod scan;
mod scheme;
mod source;
mod store;
mod synthetic;

pub use account::{ClassBytes, MemoryReport};
pub use checkpoint::{Checkpoint, StoredTensor};
pub use error::WeightError;
pub use file_map::FileMap;
pub use gguf::{GgufHeader, GgufTensor, parse as parse_gguf};
pub use gguf_meta::{GgufMeta, GgufValue};
pub use int4::{Int4Config, Int4Layout};
pub use open::{FileSource, ModelFiles, open};
pub use quality::ClassError;
pub use recipe::{Cols, Recipe};
pub use safetensors::{TensorEntry, parse_header as parse_safetensors};
pub use scheme::{BindOptions, Quant};
pub use store::{FloatType, OnProgress, WeightInfo, WeightStore};
