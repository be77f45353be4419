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
    /// A folder without what a model needs.
    #[error("{path} is not a model folder: {why}")]
    NotAModel {
        /// Path.
        path: String,
        /// What is missing.
        why: String,
    },
    /// A damaged or lying file.
    #[error("{file} is damaged: {why}; download or convert it again")]
    Damaged {
        /// File.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A file of a kind this build does not read.
    #[error("{file}: {why}")]
    Unsupported {
        /// File.
        file: String,
        /// What is not supported, and what is.
        why: String,
    },
    /// A tensor the model needs is not in the files.
    #[error("{file} has no tensor {tensor}; config and weights do not belong together")]
    Missing {
        /// File or folder.
        file: String,
        /// The names looked for.
        tensor: String,
    },
    /// A tensor of another shape than the config says.
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
        /// Shape needed.
        need: String,
    },
    /// A copy of a tensor, or of a part of it, does not fit into memory.
    #[error("no memory for a copy of tensor {tensor} in {file}: {bytes} bytes were asked for")]
    Memory {
        /// File.
        file: String,
        /// Tensor.
        tensor: String,
        /// Size of the copy.
        bytes: usize,
    },
    /// A tensor type that cannot be a weight.
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

/// A name out of a file as messages show it: on one line, without control characters, not longer
/// than a line.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(120).flat_map(char::escape_debug).collect();
    if name.chars().nth(120).is_some() {
        shown.push_str("...");
    }
    shown
}
