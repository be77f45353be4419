//! The formats of model files, mapped into memory: safetensors and GGUF.

pub(crate) mod file_map;
pub(crate) mod gguf;
pub(crate) mod gguf_files;
pub(crate) mod mapped;
pub(crate) mod open;
pub(crate) mod safetensors;
pub(crate) mod shortened;
