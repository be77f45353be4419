//! Errors of tokenizers.

/// What makes or uses a tokenizer.
pub(super) type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Why a tokenizer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A damaged file, inconsistent GGUF metadata, or an unsupported kind of tokenizer.
    #[error("{0}")]
    File(String),
    /// A text that could need too much memory.
    #[error("a text of {0} bytes may grow too long in the tokenizer; encode it in shorter pieces")]
    TooLong(usize),
    /// A text that cannot be encoded, or ids that cannot be decoded.
    #[error("tokenizer: {0}")]
    Encode(String),
}
