//! One fetch: its parameters, and its errors.

use std::io;
use std::path::{Path, PathBuf};

use super::http::{Limits, Trouble};
use super::name::RepoSpec;
use super::options::without_user;
use super::select::SelectError;
use super::{HubError, HubOptions, Progress};

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

    /// The model as the user named it.
    pub fn model(&self) -> String {
        self.spec.model.clone()
    }

    /// The server, as errors show it.
    pub fn endpoint(&self) -> String {
        without_user(self.options.endpoint())
    }

    /// An error for an invalid answer.
    pub fn protocol(&self, cause: String) -> HubError {
        HubError::Protocol { model: self.model(), endpoint: self.endpoint(), cause }
    }

    /// An error for a server that could not be reached or did not answer.
    pub fn network(&self, cause: String) -> HubError {
        HubError::Network { model: self.model(), endpoint: self.endpoint(), cause }
    }

    /// An error for a file whose bytes do not match its hash.
    pub fn damaged(&self, file: &str, cause: String) -> HubError {
        let (model, endpoint) = (self.model(), self.endpoint());
        HubError::Damaged { model, endpoint, file: file.to_string(), cause }
    }

    /// An error of the cache.
    pub fn io(&self, error: io::Error) -> HubError {
        HubError::Io { model: self.model(), place: self.dir.to_path_buf(), error }
    }

    /// An error for a repository without usable files.
    pub fn unfit(&self, unfit: SelectError) -> HubError {
        let model = self.model();
        match unfit {
            SelectError::Weightless => HubError::NoWeights(model),
            SelectError::NoMatch(why, there) => HubError::NoMatch { model, why, there },
            SelectError::MissingPart(part) => {
                self.protocol(format!("{part} is not in the repository"))
            }
        }
    }

    /// The error for a failed request.
    pub fn error(&self, trouble: Trouble) -> HubError {
        match trouble {
            Trouble::Unreachable(cause) | Trouble::Passing(cause, _) => self.network(cause),
            Trouble::Status(status) => self.status(status),
            Trouble::Odd(cause) => self.protocol(cause),
        }
    }

    /// The error for an HTTP status.
    pub fn status(&self, status: u16) -> HubError {
        let (model, endpoint) = (self.model(), self.endpoint());
        let advice = match (status, self.options.token.is_some()) {
            (404, _) => return HubError::NotFound { model, endpoint },
            (401, false) => "there is no such model, or it asks for a login; set HF_TOKEN",
            (401, true) => "there is no such model, or the token in use does not open it",
            (403, _) => "accept the model's terms on its page, with the account of your HF_TOKEN",
            _ => return self.protocol(format!("HTTP status {status}")),
        };
        HubError::Refused { model, endpoint, status, advice }
    }
}
