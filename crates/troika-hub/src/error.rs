//! Why a model could not be found, fetched or removed.

use std::fmt::Display;

/// Why a model cannot be found, fetched or removed: a sentence that names it.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither an existing path nor a name on the Hub.
    #[error("{0}")]
    Missing(String),
    /// No folder for the cache.
    #[error("there is no home folder for the model cache; set HF_HUB_CACHE to a folder")]
    NoCache,
    /// No connection, or one that broke.
    #[error(
        "{model}: cannot fetch from {hub}; check the connection and run again, or give a folder or \
         a .gguf file on this machine"
    )]
    Network {
        /// The name as the user wrote it.
        model: String,
        /// The server, with the network's message behind it.
        hub: String,
    },
    /// Everything else, which the sentence says.
    #[error("{0}")]
    Other(String),
}

impl HubError {
    /// An error of a model, as the user named it.
    pub(crate) fn of(model: &str, why: impl Display) -> HubError {
        HubError::Other(format!("{model}: {why}"))
    }
}
