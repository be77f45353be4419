//! Errors of model files.

/// Why a model's files cannot be used. Each message names the file or tensor and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// The path does not exist or cannot be read.
    #[error("{path}: {why}")]
    Io {
        /// Path.
        path: String,
        /// What the system says.
        why: String,
    },
    /// Experts that do not fit into memory cannot be read when they are needed.
    #[error(
        "the experts do not fit into memory, and cannot be read from {path} while running: {why}; \
         give --cache-dir a folder with room for them, or --expert-cache-mib enough for all"
    )]
    Experts {
        /// The file of packed weights.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A folder that lacks a part of a model.
    #[error("{path} is not a model folder: {why}")]
    NotAModel {
        /// Path.
        path: String,
        /// What is missing.
        why: String,
    },
    /// A damaged or inconsistent file.
    #[error("{file} is damaged: {why}; download or convert it again")]
    Damaged {
        /// File.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// An unsupported kind of file.
    #[error("{file}: {why}")]
    Unsupported {
        /// File.
        file: String,
        /// What is not supported, and what is.
        why: String,
    },
    /// A tensor that the model needs is missing.
    #[error("{file} has no tensor {tensor}; config and weights do not belong together")]
    Missing {
        /// File or folder.
        file: String,
        /// The expected names.
        tensor: String,
    },
    /// A tensor whose shape contradicts the config.
    #[error(
        "tensor {tensor} in {file} has shape {found}, the config asks for {need}; \
         config and weights do not belong together"
    )]
    Shape {
        /// File.
        file: String,
        /// Tensor.
        tensor: String,
        /// Its shape.
        found: String,
        /// The expected shape.
        need: String,
    },
    /// There is no memory for a copy of a tensor or a part of it.
    #[error("no memory for a copy of tensor {tensor} in {file}: {bytes} bytes were asked for")]
    Memory {
        /// File.
        file: String,
        /// Tensor.
        tensor: String,
        /// Size of the copy.
        bytes: usize,
    },
    /// A tensor type that weights cannot have.
    #[error("tensor {tensor} in {file} has type {dtype}, which is not supported as a weight type")]
    Type {
        /// File.
        file: String,
        /// Tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
}

/// A name from a file for messages: on a single line, without control characters, and shortened.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(120).flat_map(char::escape_debug).collect();
    if name.chars().nth(120).is_some() {
        shown.push_str("...");
    }
    shown
}
