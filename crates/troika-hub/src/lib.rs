//! Models by name: a path on this machine, or `owner/name` on the Hugging Face Hub.
//!
//! Files are kept in the Hub's own cache layout, shared with other programs:
//! `models--owner--name/{refs/REVISION, snapshots/COMMIT/FILE, blobs/ETAG}`. A reference is written
//! after its snapshot is complete, so an interrupted fetch never hides an older copy. A file is
//! collected in `blobs/ETAG.part`, where the next run continues. It is checked against the hash in
//! its ETag, and written under the locks of the Hub's own tools. The token is sent only to the
//! Hub's own scheme, host and port, never to redirected servers. [`inventory`] lists the models that
//! are here, and [`Removal`] removes them.
//!
//! This is the only part of the library that reads the environment, and only in
//! [`HubOptions::from_env`].

mod blob;
mod cache;
mod digest;
mod error;
mod fetch;
mod http;
mod inventory;
mod job;
mod listing;
mod lock;
mod name;
mod options;
mod pointers;
mod removal;
mod select;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use error::HubError;
pub use fetch::Offer;
pub use inventory::{HubModel, Inventory, UnusableRepository, WeightFormat, inventory};
pub use job::Progress;
pub use options::{Glimpse, HubOptions, Verdict};
pub use removal::Removal;

use http::Limits;
use job::FetchJob;
use name::RepoSpec;

/// The path of a model: an existing path, or the path of a fetched copy.
///
/// `model` is an existing path, or `owner/name` with an optional `@REVISION` and an optional
/// `:TAG` (a quantization such as `Q4_K_M`) or `:FILE.gguf`. The result is a folder for
/// safetensors and a file (the first part, if split) for GGUF.
///
/// # Errors
/// [`HubError`]: each is one sentence that names the model.
pub fn resolve(
    model: &str,
    options: &HubOptions,
    progress: &dyn Fn(Progress<'_>),
) -> Result<PathBuf, HubError> {
    resolve_within(model, options, Limits::default(), progress)
}

/// The path of a model's copy in the cache, if it is complete. The Hub is not asked.
///
/// # Errors
/// [`HubError`]: a name that is none, or no cache.
pub fn cached(model: &str, options: &HubOptions) -> Result<Option<PathBuf>, HubError> {
    let (spec, dir) = parsed(model, options)?;
    Ok(cache::lookup(dir, &spec).ok())
}

/// Fetches what the Hub has of a model now, and returns the path of the copy. Without the Hub it
/// fails, even if there is an older copy.
///
/// # Errors
/// [`HubError`]: each is one sentence that names the model.
pub fn fetch(
    model: &str,
    options: &HubOptions,
    progress: &dyn Fn(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let (spec, dir) = parsed(model, options)?;
    fetch::fetch(&FetchJob { spec: &spec, dir, options, limits: Limits::default(), progress })
}

/// The models that a repository has on the Hub, the smallest first.
///
/// # Errors
/// [`HubError`]: each is one sentence that names the model.
pub fn offers(model: &str, options: &HubOptions) -> Result<Vec<Offer>, HubError> {
    let (spec, dir) = parsed(model, options)?;
    let limits = Limits::default();
    fetch::offers(&FetchJob { spec: &spec, dir, options, limits, progress: &|_| {} })
}

/// Asks whether the Hub answers, and whether it takes the token. Returns what it answered, as a part
/// of a sentence.
///
/// # Errors
/// Why it cannot be used: a part of a sentence.
pub fn reach(options: &HubOptions) -> Result<String, String> {
    let (endpoint, shown) = (options.endpoint(), options::without_user(options.endpoint()));
    if options.token.as_deref().is_some_and(|token| !http::can_be_sent(token)) {
        return Err("the token has a character that no token has".to_string());
    }
    let client = http::Client::new(options, Limits::default());
    match client.get(&format!("{endpoint}/api/whoami-v2"), None, None) {
        Ok(_) => Ok(format!("{shown} answers and takes the token")),
        Err(http::Trouble::Status(401 | 403)) if options.token.is_some() => {
            Err(format!("{shown} answers, but does not take the token"))
        }
        Err(http::Trouble::Status(_)) => Ok(format!("{shown} answers")),
        Err(http::Trouble::Unreachable(why) | http::Trouble::Passing(why, _)) => {
            Err(format!("{shown} cannot be reached ({why})"))
        }
        Err(http::Trouble::Odd(why)) => {
            Err(format!("{shown} does not answer like a model hub ({why})"))
        }
    }
}

/// What a name stands for, and the folder of the cache.
fn parsed<'a>(model: &str, options: &'a HubOptions) -> Result<(RepoSpec, &'a Path), HubError> {
    let spec = RepoSpec::parse(model)?;
    Ok((spec, options.cache_dir.as_deref().ok_or(HubError::NoCache)?))
}

fn resolve_within(
    model: &str,
    options: &HubOptions,
    limits: Limits,
    progress: &dyn Fn(Progress<'_>),
) -> Result<PathBuf, HubError> {
    if Path::new(model).exists() {
        return Ok(PathBuf::from(model));
    }
    let (spec, dir) = parsed(model, options)?;
    if options.offline {
        return cache::lookup(dir, &spec);
    }
    let error = match fetch::fetch(&FetchJob { spec: &spec, dir, options, limits, progress }) {
        Err(error @ HubError::Network { .. }) => error,
        other => return other,
    };
    let Ok(path) = cache::lookup(dir, &spec) else { return Err(error) };
    if let HubError::Network { hub, .. } = &error {
        let note = format!("cannot fetch from {hub}; using the copy at {}", path.display());
        progress(Progress::Note(&note));
    }
    Ok(path)
}
