//! Why a model could not be had.

use std::io;
use std::path::PathBuf;

/// What goes wrong between a model's name and its files.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a path that exists nor a name on the Hub.
    #[error("{0}: no such file or folder (a model on the Hugging Face Hub is written owner/name)")]
    Missing(String),
    /// A name on the Hub with a part that makes no sense.
    #[error("{model}: {why}; a model is written owner/name, owner/name:TAG or owner/name@REVISION")]
    BadName {
        /// As the user wrote it.
        model: String,
        /// Which part.
        why: String,
    },
    /// No place to keep files.
    #[error("there is no home folder for the model cache; set HF_HUB_CACHE to a folder")]
    NoCache,
    /// Offline, and the cache lacks something.
    #[error(
        "{model}: {missing} is not in the cache at {place}; run once without HF_HUB_OFFLINE to \
         fetch it, or give a folder or a .gguf file"
    )]
    NotCached {
        /// As the user wrote it.
        model: String,
        /// What is not there.
        missing: String,
        /// Where it was looked for.
        place: PathBuf,
    },
    /// A token that no request can carry.
    #[error(
        "{model}: the token in use (HF_TOKEN, or the file a login has left) has a line break or \
         another character that no token has; set HF_TOKEN to the token alone"
    )]
    BadToken {
        /// As the user wrote it.
        model: String,
    },
    /// No connection, or one that broke.
    #[error(
        "{model}: cannot fetch from {endpoint} ({cause}); check the connection and run again, or \
         give a folder or a .gguf file on this machine"
    )]
    Network {
        /// As the user wrote it.
        model: String,
        /// Where it was looked for.
        endpoint: String,
        /// What the network says.
        cause: String,
    },
    /// The Hub knows no such model, revision or file.
    #[error("{model}: {endpoint} has no such model, revision or file; check the spelling")]
    NotFound {
        /// As the user wrote it.
        model: String,
        /// Where it was looked for.
        endpoint: String,
    },
    /// The Hub wants to know who asks, or knows and refuses.
    #[error("{model}: {endpoint} refuses access ({status}): {advice}")]
    Refused {
        /// As the user wrote it.
        model: String,
        /// Where it was looked for.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// What to do.
        advice: &'static str,
    },
    /// An answer that is not the Hub's.
    #[error("{model}: {endpoint} does not answer like a model hub: {cause}")]
    Protocol {
        /// As the user wrote it.
        model: String,
        /// Who answered.
        endpoint: String,
        /// What is odd.
        cause: String,
    },
    /// The repository holds nothing that can be run.
    #[error("{model}: no weights in safetensors or GGUF format in this repository")]
    NoWeights {
        /// As the user wrote it.
        model: String,
    },
    /// No file, or more than one, fits what was asked for.
    #[error("{model}: {why}; there are: {}", .there.join(", "))]
    NoMatch {
        /// As the user wrote it.
        model: String,
        /// What does not fit.
        why: String,
        /// What could have been named.
        there: Vec<String>,
    },
    /// A file that is not what its hash says, each time it is fetched.
    #[error(
        "{model}: {file} arrives damaged from {endpoint} ({cause}); try again later, or give a \
         folder or a .gguf file on this machine"
    )]
    Damaged {
        /// As the user wrote it.
        model: String,
        /// Where it was fetched from.
        endpoint: String,
        /// Its name in the repository.
        file: String,
        /// What does not fit.
        cause: String,
    },
    /// Another process has begun to fetch the same file and gets no further.
    #[error(
        "{model}: another program is fetching it and gets no further; end that one and run again"
    )]
    Busy {
        /// As the user wrote it.
        model: String,
    },
    /// The cache cannot be written.
    #[error("{model}: cannot write to the cache at {place}: {error}")]
    Io {
        /// As the user wrote it.
        model: String,
        /// The cache.
        place: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}
