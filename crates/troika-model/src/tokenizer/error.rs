//! Errors of tokenizers.

/// What makes or uses a tokenizer.
pub(super) type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Why a tokenizer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A damaged file.
    #[error("{file}: {why}")]
    File {
        /// File.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// Inconsistent GGUF metadata.
    #[error("the GGUF file's {key} {why}")]
    Metadata {
        /// Key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// An unsupported kind of tokenizer.
    #[error(
        "tokenizer model {0:?} is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece)"
    )]
    Unsupported(String),
    /// A text that could need too much memory.
    #[error("a text of {0} bytes may grow too long in the tokenizer; encode it in shorter pieces")]
    TooLong(usize),
    /// A text that cannot be encoded, or ids that cannot be decoded.
    #[error("tokenizer: {0}")]
    Encode(String),
}
