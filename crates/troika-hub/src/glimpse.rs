//! What is known of a model before its weights are fetched, and what is said of it.

use std::path::Path;

/// What is there of a model before its weights are.
#[derive(Clone, Copy, Debug)]
pub struct Glimpse<'a> {
    /// The model as the user named it.
    pub model: &'a str,
    /// The folder with the small files of a model in safetensors, or a file with the first bytes of a
    /// GGUF file.
    pub place: &'a Path,
    /// Bytes of the whole GGUF file; `None`: a model in safetensors.
    pub gguf: Option<u64>,
    /// Bytes of all files of the model, if the Hub tells.
    pub bytes: Option<u64>,
}

/// What is said of a model that was looked at: a line for the user, or nothing where the first bytes
/// are too few to tell; or a part of a sentence that says why it is of no use.
pub type Verdict = Result<Option<String>, String>;

/// A model that a repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The name for it: `owner/name` or `owner/name:Q4_K_M`.
    pub name: String,
    /// The quantization that a GGUF file's name tells.
    pub quantization: Option<String>,
    /// Bytes of its files, if the Hub tells.
    pub bytes: Option<u64>,
}
