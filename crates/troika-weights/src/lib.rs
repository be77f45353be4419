//! Weights: formats of model files, finding and cutting weights, the store for devices, the disk
//! cache of packed forms, and reports.

#![allow(unsafe_code, reason = "files are mapped into memory, and read into memory by the kernel")]

mod arena;
mod bind;
mod cache;
mod error;
mod experts;
mod file;
mod format;
mod parallel;
mod report;
mod store;

pub use bind::mix::WeightMix;
pub use bind::scheme::{BindOptions, FloatType, Quant};
pub use bind::unusable;
pub use cache::{CacheFile, CacheFolder, CacheKind, PackedEntry, PackedIndex, parse_packed};
pub use error::WeightError;
pub use experts::{OnWait, read_rate};
pub use file::{can_write, write_file};
pub use format::file_map::FileMap;
pub use format::gguf::{GgufHeader, GgufTensor, parse as parse_gguf};
pub use format::mapped::MappedCheckpoint;
pub use format::open::{FileSource, ModelFiles, files_of_model, open, open_inside, open_start};
pub use format::safetensors::{TensorEntry, parse_header as parse_safetensors};
pub use format::shortened::exit_when_shortened;
pub use report::account::{ClassBytes, MemoryReport};
pub use report::cost::TokenCost;
pub use report::quality::ClassError;
pub use store::{OnProgress, WeightInfo, WeightStore};
