//! Why a model could not be fetched.

use std::io;
use std::path::PathBuf;

/// What can go wrong between a model's name and its files.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither an existing path nor a name on the Hub.
    #[error("{model}: no such file or folder{advice}")]
    Missing {
        /// The name as the user wrote it.
        model: String,
        /// How models of the Hub are named: the end of the sentence.
        advice: String,
    },
    /// A name on the Hub with an invalid part.
    #[error("{model}: {why}; a model is written owner/name, owner/name:TAG or owner/name@REVISION")]
    BadName {
        /// The name as the user wrote it.
        model: String,
        /// What is wrong.
        why: String,
    },
    /// No folder for the cache.
    #[error("there is no home folder for the model cache; set HF_HUB_CACHE to a folder")]
    NoCache,
    /// Offline, and the cache is incomplete.
    #[error(
        "{model}: {missing} is not in the cache at {place}; run once without HF_HUB_OFFLINE to \
         fetch it, or give a folder or a .gguf file"
    )]
    NotCached {
        /// The name as the user wrote it.
        model: String,
        /// What is missing.
        missing: String,
        /// Where it was expected.
        place: PathBuf,
    },
    /// The token for this model cannot be sent in a request.
    #[error(
        "{0}: the token in use (HF_TOKEN, or the file a login has left) has a line break or \
         another character that no token has; set HF_TOKEN to the token alone"
    )]
    BadToken(String),
    /// No connection, or one that broke.
    #[error(
        "{model}: cannot fetch from {endpoint} ({cause}); check the connection and run again, or \
         give a folder or a .gguf file on this machine"
    )]
    Network {
        /// The name as the user wrote it.
        model: String,
        /// The server.
        endpoint: String,
        /// The network's message.
        cause: String,
    },
    /// The Hub has no such model, revision or file.
    #[error("{model}: {endpoint} has no such model, revision or file; check the spelling")]
    NotFound {
        /// The name as the user wrote it.
        model: String,
        /// The server.
        endpoint: String,
    },
    /// The Hub requires a login, or refuses access.
    #[error("{model}: {endpoint} refuses access ({status}): {advice}")]
    Refused {
        /// The name as the user wrote it.
        model: String,
        /// The server.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// What to do.
        advice: &'static str,
    },
    /// An answer that does not come from a model hub.
    #[error("{model}: {endpoint} does not answer like a model hub: {cause}")]
    Protocol {
        /// The name as the user wrote it.
        model: String,
        /// The server.
        endpoint: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The repository has no usable weights.
    #[error("{0}: no weights in safetensors or GGUF format in this repository")]
    NoWeights(String),
    /// A model that whoever fetches it has no use for, and why.
    #[error("{0}: {1}")]
    Useless(String, String),
    /// No file, or more than one, matches the request.
    #[error("{model}: {why}; there are: {}", .there.join(", "))]
    NoMatch {
        /// The name as the user wrote it.
        model: String,
        /// What does not match.
        why: String,
        /// The possible names.
        there: Vec<String>,
    },
    /// A file that does not match its hash after repeated fetches.
    #[error(
        "{model}: {file} arrives damaged from {endpoint} ({cause}); try again later, or give a \
         folder or a .gguf file on this machine"
    )]
    Damaged {
        /// The name as the user wrote it.
        model: String,
        /// The server.
        endpoint: String,
        /// Its name in the repository.
        file: String,
        /// What does not match.
        cause: String,
    },
    /// Another process is fetching the same file and makes no progress.
    #[error("{0}: another program is fetching it and gets no further; end that one and run again")]
    Busy(String),
    /// The cache cannot be written.
    #[error("{model}: cannot write to the cache at {place}: {error}")]
    Io {
        /// The name as the user wrote it.
        model: String,
        /// The cache.
        place: PathBuf,
        /// The system's message.
        error: io::Error,
    },
    /// The file does not fit on the disk.
    #[error(
        "{model}: {file} needs {needed} bytes more at {place}, and {free} are free; remove something \
         there, or set HF_HUB_CACHE to a folder on another disk"
    )]
    NoSpace {
        /// The name as the user wrote it.
        model: String,
        /// Its name in the repository.
        file: String,
        /// The cache.
        place: PathBuf,
        /// Bytes that are still to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The cache cannot be read.
    #[error("cannot read the model cache at {place}: {error}")]
    Unreadable {
        /// The folder.
        place: PathBuf,
        /// The system's message.
        error: io::Error,
    },
    /// Something to remove is not there.
    #[error("{model}: {missing} is not in the cache at {place}")]
    Absent {
        /// The name as the user wrote it.
        model: String,
        /// What is missing.
        missing: String,
        /// Where it was expected.
        place: PathBuf,
    },
    /// Something to remove lies outside of the cache.
    #[error(
        "{model}: {place} leads out of the cache, and nothing is removed outside of it; remove the \
         link by hand"
    )]
    Outside {
        /// The name as the user wrote it.
        model: String,
        /// The link.
        place: PathBuf,
    },
    /// Another process holds a lock on what is to be removed.
    #[error("{0}: another program is fetching it; wait for it or end it, and run again")]
    InUse(String),
    /// Something cannot be removed.
    #[error("{model}: cannot remove {place}: {error}")]
    Stuck {
        /// The name as the user wrote it.
        model: String,
        /// What is still there.
        place: PathBuf,
        /// The system's message.
        error: io::Error,
    },
}
