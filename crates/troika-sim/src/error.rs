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
    /// The file is not TOML.
    #[error("{file}, line {line}: {why}")]
    Syntax {
        /// The file.
        file: String,
        /// The line number, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A field is missing, unknown or invalid.
    #[error("{file}{place}: {field} {why}")]
    Field {
        /// The file.
        file: String,
        /// The section of the file, such as `, processor npu`.
        place: String,
        /// The field.
        field: String,
        /// What is wrong, and which values are allowed.
        why: String,
    },
    /// A name that is neither a built-in SoC nor a file.
    #[error("there is no SoC {name:?}; name a file that ends in .toml, or one of {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of the built-in SoCs.
        known: String,
    },
    /// The requested processor does not exist, or the request is ambiguous.
    #[error("{file} describes the processors {known}; {why}")]
    Processor {
        /// The file.
        file: String,
        /// Names of its processors.
        known: String,
        /// What to do.
        why: String,
    },
}
