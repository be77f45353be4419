//! Errors of model files.

use troika_device::OutOfMemory;
use troika_model::spec::Checkpoint;

/// Why a model's files cannot be used. Each message names the file or tensor and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// An unsupported kind of file.
    #[error("{file}: {why}")]
    Unsupported {
        /// File.
        file: String,
        /// What is not supported, and what is.
        why: String,
    },
    /// What else is wrong: files that cannot be read, are damaged, or lack what the model needs.
    #[error("{0}")]
    Other(String),
}

const APART: &str = "config and weights do not belong together";

/// A tensor that the model needs is missing.
pub(crate) fn missing(file: String, tensor: &str) -> WeightError {
    WeightError::Other(format!("{file} has no tensor {tensor}; {APART}"))
}

/// A tensor whose shape contradicts the config.
pub(crate) fn misfit(
    files: &dyn Checkpoint,
    tensor: &str,
    found: String,
    need: String,
) -> WeightError {
    let file = files.origin(tensor);
    let why = format!("has shape {found}, the config asks for {need}; {APART}");
    WeightError::Other(format!("tensor {tensor} in {file} {why}"))
}

/// There is no memory for a copy of a tensor or a part of it.
pub(crate) fn no_memory(files: &dyn Checkpoint, tensor: &str, e: OutOfMemory) -> WeightError {
    let (file, bytes) = (files.origin(tensor), e.bytes);
    let why = format!("no memory for a copy of tensor {tensor} in {file}");
    WeightError::Other(format!("{why}: {bytes} bytes were asked for"))
}

/// A tensor type that weights cannot have.
pub(crate) fn wrong_type(files: &dyn Checkpoint, tensor: &str, dtype: &str) -> WeightError {
    let file = files.origin(tensor);
    let why = format!("has type {dtype}, which is not supported as a weight type");
    WeightError::Other(format!("tensor {tensor} in {file} {why}"))
}

/// A name from a file for messages: on a single line, without control characters, and shortened.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(120).flat_map(char::escape_debug).collect();
    if name.chars().nth(120).is_some() {
        shown.push_str("...");
    }
    shown
}
