//! One fetch: its parameters, what is told of it, and its errors.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use super::http::{Limits, Trouble};
use super::name::RepoSpec;
use super::options::without_user;
use super::select::SelectError;
use super::{HubError, HubOptions};

/// Events while a model is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Files are missing and will be fetched.
    Start {
        /// The model as the user named it.
        model: &'a str,
        /// Number of files.
        files: usize,
        /// Their total bytes, if the Hub tells.
        bytes: Option<u64>,
    },
    /// Progress of one file; bytes from earlier attempts count.
    File {
        /// Name in the repository.
        name: &'a str,
        /// Bytes fetched.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// A note for the user: a line of text.
    Note(&'a str),
}

/// The parameters of a fetch. Also makes errors that name them.
pub struct FetchJob<'a> {
    /// The model.
    pub spec: &'a RepoSpec,
    /// The cache.
    pub dir: &'a Path,
    /// Settings.
    pub options: &'a HubOptions,
    /// The timeouts.
    pub limits: Limits,
    /// Receives the progress.
    pub progress: &'a dyn Fn(Progress<'_>),
}

impl FetchJob<'_> {
    /// The repository's folder in the cache.
    pub fn home(&self) -> PathBuf {
        self.dir.join(self.spec.folder())
    }

    /// The server, as errors show it.
    pub fn endpoint(&self) -> String {
        without_user(self.options.endpoint())
    }

    /// An error that names the model.
    pub fn fails(&self, why: impl Display) -> HubError {
        HubError::of(&self.spec.model, why)
    }

    /// An error for an invalid answer.
    pub fn protocol(&self, cause: &str) -> HubError {
        self.fails(format!("{} does not answer like a model hub: {cause}", self.endpoint()))
    }

    /// An error of the cache.
    pub fn io(&self, error: io::Error) -> HubError {
        self.fails(format!("cannot write to the cache at {}: {error}", self.dir.display()))
    }

    /// An error for a repository without usable files.
    pub fn unfit(&self, unfit: SelectError) -> HubError {
        match unfit {
            SelectError::Weightless => {
                self.fails("no weights in safetensors or GGUF format in this repository")
            }
            SelectError::NoMatch(why, there) => {
                self.fails(format!("{why}; there are: {}", there.join(", ")))
            }
            SelectError::MissingPart(part) => {
                self.protocol(&format!("{part} is not in the repository"))
            }
        }
    }

    /// The error for a failed request.
    pub fn error(&self, trouble: Trouble) -> HubError {
        match trouble {
            Trouble::Unreachable(cause) | Trouble::Passing(cause, _) => {
                let hub = format!("{} ({cause})", self.endpoint());
                HubError::Network { model: self.spec.model.clone(), hub }
            }
            Trouble::Status(status) => self.status(status),
            Trouble::Odd(cause) => self.protocol(&cause),
        }
    }

    fn status(&self, status: u16) -> HubError {
        let hub = self.endpoint();
        let advice = match (status, self.options.token.is_some()) {
            (404, _) => {
                let none = "has no such model, revision or file; check the spelling";
                return self.fails(format!("{hub} {none}"));
            }
            (401, false) => "there is no such model, or it asks for a login; set HF_TOKEN",
            (401, true) => "there is no such model, or the token in use does not open it",
            (403, _) => "accept the model's terms on its page, with the account of your HF_TOKEN",
            _ => return self.protocol(&format!("HTTP status {status}")),
        };
        self.fails(format!("{hub} refuses access ({status}): {advice}"))
    }
}
