//! Errors of tokenizers.

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
    /// GGUF metadata that contradicts itself.
    #[error("the GGUF file's {key} {why}")]
    Metadata {
        /// Key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A kind of tokenizer this build does not have.
    #[error(
        "tokenizer model {0:?} is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece)"
    )]
    Unsupported(String),
    /// A text that could take more memory than there is.
    #[error("a text of {0} bytes may grow too long in the tokenizer; encode it in shorter pieces")]
    TooLong(usize),
    /// Text that could not be encoded or ids that could not be decoded.
    #[error("tokenizer: {0}")]
    Encode(String),
}
