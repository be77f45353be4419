//! Errors in SoC files.

/// Why a file does not describe a valid SoC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocError {
    /// The file cannot be read.
    #[error("{file} cannot be read: {why}")]
    Read {
        /// The file.
        file: String,
        /// The system's message.
        why: String,
    },
    /// The file is not TOML, or a field is missing, unknown or invalid: a sentence that names the
    /// file, and the line or the field.
    #[error("{0}")]
    Invalid(String),
    /// What is asked for is neither a built-in SoC nor a file, or no processor, or several: a
    /// sentence with what is known.
    #[error("{0}")]
    Unknown(String),
}
