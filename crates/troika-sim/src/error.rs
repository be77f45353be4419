//! What can be wrong with a SoC file.

/// Why a file describes no SoC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocError {
    /// The file cannot be read.
    #[error("{file} cannot be read: {why}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        why: String,
    },
    /// The file is not TOML.
    #[error("{file}, line {line}: {why}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1 on.
        line: usize,
        /// What is wrong there.
        why: String,
    },
    /// A field is missing, unknown or senseless.
    #[error("{file}{place}: {field} {why}")]
    Field {
        /// The file.
        file: String,
        /// The part of it, such as `, processor npu`.
        place: String,
        /// The field.
        field: String,
        /// What is wrong with it, and what it may be.
        why: String,
    },
    /// A name that is neither a SoC that comes along nor a file's.
    #[error("there is no SoC {name:?}; name a file that ends in .toml, or one of {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names of those that come along.
        known: String,
    },
    /// The processor that was asked for is not there, or it was not said which one is meant.
    #[error("{file} describes the processors {known}; {why}")]
    Processor {
        /// The file.
        file: String,
        /// Names of its processors.
        known: String,
        /// What is to be done.
        why: String,
    },
}
