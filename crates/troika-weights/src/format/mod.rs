//! The formats of model files, mapped into memory: safetensors and GGUF.

pub(crate) mod file_map;
pub(crate) mod gguf;
pub(crate) mod gguf_files;
pub(crate) mod open;
pub(crate) mod safetensors;
pub(crate) mod shortened;

use std::sync::Arc;

use file_map::FileMap;
use troika_model::spec::Checkpoint;

/// A checkpoint with tensors in mapped files.
pub trait MappedCheckpoint: Checkpoint {
    /// The mapped files; empty for tensors in other memory.
    fn maps(&self) -> Vec<Arc<FileMap>> {
        Vec::new()
    }
}
