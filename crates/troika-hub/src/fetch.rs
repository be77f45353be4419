//! Fetching from the Hub into the cache.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::name::{Spec, is_safe_path};
use super::select::{Selection, Unfit, select};
use super::{HubError, HubOptions, Progress, cache};

/// How long the Hub may take to be found and to begin its first answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Tries for each file, and the pause after the first; each further pause is four times as long.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(250);
/// Progress is told about this often.
const TELL_EVERY: u64 = 1 << 20;

/// Brings the model into the cache, as far as it is not there.
///
/// # Errors
/// See [`HubError`].
pub fn fetch(
    spec: &Spec,
    dir: &Path,
    options: &HubOptions,
    progress: &dyn Fn(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let ask = Ask { spec, dir, options };
    let api = ApiBuilder::from_cache(Cache::new(dir.to_path_buf()))
        .with_endpoint(options.endpoint().to_string())
        .with_token(options.token.clone())
        .with_progress(false)
        .with_retries(0)
        .with_user_agent("troika", env!("CARGO_PKG_VERSION"))
        .build()
        .map_err(|e| ask.error(e))?;
    let listing = ask.listing(&api)?;
    let names: Vec<String> = listing.files.iter().map(|(name, _)| name.clone()).collect();
    let selection = select(&names, &spec.wanted).map_err(|unfit| ask.unfit(unfit))?;
    // All requests name the commit, so that a push in the meantime cannot mix two versions.
    let pinned = Repo::with_revision(spec.repo.clone(), RepoType::Model, listing.commit.clone());
    let files = Files {
        ask,
        local: Cache::new(dir.to_path_buf()).repo(pinned.clone()),
        remote: api.repo(pinned),
        api,
        commit: listing.commit.clone(),
        progress,
    };
    files.fetch_all(&selection, &listing)?;
    files.finish()?;
    Ok(cache::entry(&files.local.pointer_path(&listing.commit), &selection))
}

/// What the Hub says about a revision.
struct Listing {
    commit: String,
    /// Names, with sizes where told.
    files: Vec<(String, Option<u64>)>,
}

/// What is asked for; makes errors that say so.
struct Ask<'a> {
    spec: &'a Spec,
    dir: &'a Path,
    options: &'a HubOptions,
}

impl Ask<'_> {
    fn listing(&self, api: &Api) -> Result<Listing, HubError> {
        let (id, revision) = (self.spec.repo.clone(), self.spec.revision.clone());
        let repo = api.repo(Repo::with_revision(id, RepoType::Model, revision));
        let request = repo.info_request().config();
        let request = request
            .timeout_resolve(Some(PATIENCE))
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_recv_body(Some(PATIENCE));
        let body = request
            .build()
            .query("blobs", "true")
            .call()
            .and_then(|mut response| response.body_mut().read_to_string())
            .map_err(|e| self.error(ApiError::RequestError(Box::new(e))))?;
        parse_listing(&body).map_err(|cause| self.protocol(cause))
    }

    fn model(&self) -> String {
        self.spec.model.clone()
    }

    fn endpoint(&self) -> String {
        self.options.endpoint().to_string()
    }

    fn protocol(&self, cause: String) -> HubError {
        HubError::Protocol { model: self.model(), endpoint: self.endpoint(), cause }
    }

    fn network(&self, cause: String) -> HubError {
        HubError::Network { model: self.model(), endpoint: self.endpoint(), cause }
    }

    fn io(&self, error: io::Error) -> HubError {
        HubError::Io { model: self.model(), place: self.dir.to_path_buf(), error }
    }

    fn unfit(&self, unfit: Unfit) -> HubError {
        let model = self.model();
        match unfit {
            Unfit::Weightless => HubError::NoWeights { model },
            Unfit::NoMatch(why, there) => HubError::NoMatch { model, why, there },
            Unfit::MissingPart(part) => self.protocol(format!("{part} is not in the repository")),
        }
    }

    /// Runs a request. The client takes some promises of a server for granted and panics where
    /// they are broken; to us that is one more odd answer.
    fn guard<T>(&self, call: impl FnOnce() -> Result<T, ApiError>) -> Result<T, HubError> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => result.map_err(|e| self.error(e)),
            Err(_) => Err(self.protocol("its redirects are malformed".to_string())),
        }
    }

    fn error(&self, error: ApiError) -> HubError {
        match error {
            ApiError::RequestError(e) => match *e {
                ureq::Error::StatusCode(status) => self.status(status),
                ureq::Error::Json(e) => self.protocol(e.to_string()),
                ureq::Error::BadUri(e) => self.protocol(e),
                e => self.network(e.to_string()),
            },
            ApiError::IoError(e) if is_local(&e) => self.io(e),
            ApiError::IoError(e) => self.network(e.to_string()),
            ApiError::LockAcquisition(_) => HubError::Busy { model: self.model() },
            ApiError::TooManyRetries(e) => self.error(*e),
            e => self.protocol(e.to_string()),
        }
    }

    fn status(&self, status: u16) -> HubError {
        let (model, endpoint) = (self.model(), self.endpoint());
        let advice = match (status, self.options.token.is_some()) {
            (404, _) => return HubError::NotFound { model, endpoint },
            (401, false) => "there is no such model, or it asks for a login; set HF_TOKEN",
            (401, true) => "there is no such model, or the token in use does not open it",
            (403, _) => "accept the model's terms on its page, with the account of your HF_TOKEN",
            (408 | 429 | 500.., _) => return self.network(format!("HTTP status {status}")),
            _ => return self.protocol(format!("HTTP status {status}")),
        };
        HubError::Refused { model, endpoint, status, advice }
    }
}

/// Whether an error is the disk's and not the network's.
fn is_local(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::NotFound
            | K::PermissionDenied
            | K::AlreadyExists
            | K::NotADirectory
            | K::IsADirectory
            | K::ReadOnlyFilesystem
            | K::StorageFull
            | K::QuotaExceeded
            | K::FileTooLarge
    )
}

/// Reads the Hub's description of a revision; names that could not be files here are left out.
fn parse_listing(body: &str) -> Result<Listing, String> {
    let json: serde_json::Value = serde_json::from_str(body).map_err(|e| e.to_string())?;
    let commit = json.get("sha").and_then(|sha| sha.as_str()).ok_or("no commit is named")?;
    if !is_safe_path(commit) || commit.contains('/') {
        return Err("the commit's name is malformed".to_string());
    }
    let siblings = json.get("siblings").and_then(|s| s.as_array()).ok_or("no files are named")?;
    let mut files: Vec<(String, Option<u64>)> = siblings
        .iter()
        .filter_map(|file| {
            let name = file.get("rfilename")?.as_str().filter(|name| is_safe_path(name))?;
            Some((name.to_string(), file.get("size").and_then(|size| size.as_u64())))
        })
        .collect();
    files.sort();
    Ok(Listing { commit: commit.to_string(), files })
}

/// The files of one commit, there and here.
struct Files<'a> {
    ask: Ask<'a>,
    api: Api,
    remote: ApiRepo,
    local: CacheRepo,
    commit: String,
    progress: &'a dyn Fn(Progress<'_>),
}

impl Files<'_> {
    fn pointer(&self, name: &str) -> PathBuf {
        self.local.pointer_path(&self.commit).join(name)
    }

    fn fetch_all(&self, selection: &Selection, listing: &Listing) -> Result<(), HubError> {
        let missing: Vec<&String> =
            selection.files.iter().filter(|name| !self.pointer(name).exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let size = |name: &&String| {
            listing.files.iter().find(|(file, _)| file == *name).and_then(|(_, size)| *size)
        };
        (self.progress)(Progress::Start {
            model: &self.ask.spec.model,
            files: missing.len(),
            bytes: missing.iter().map(size).sum(),
        });
        missing.iter().try_for_each(|name| self.fetch_file(name))
    }

    /// Fetches one file, trying again where the network broke.
    fn fetch_file(&self, name: &str) -> Result<(), HubError> {
        for again in 1.. {
            match self.try_file(name) {
                Err(HubError::Network { cause, .. }) if again < TRIES => {
                    (self.progress)(Progress::Note(&format!("{name}: {cause}; trying again")));
                    std::thread::sleep(PAUSE * 4_u32.pow(again - 1));
                }
                other => return other,
            }
        }
        Ok(())
    }

    fn try_file(&self, name: &str) -> Result<(), HubError> {
        let ask = &self.ask;
        let meta = ask.guard(|| self.api.metadata(&self.remote.url(name)))?;
        if meta.commit_hash() != self.commit || !is_safe_path(meta.etag()) {
            return Err(ask.protocol(format!("{name} comes with another commit or a bad ETag")));
        }
        let (pointer, size) = (self.pointer(name), meta.size() as u64);
        let blob = self.local.blob_path(meta.etag());
        let part = blob.with_extension("part");
        match length(&part) {
            Some(there) if there > size => std::fs::remove_file(&part).map_err(|e| ask.io(e))?,
            Some(there) if there == size => {
                std::fs::rename(&part, &blob).map_err(|e| ask.io(e))?;
            }
            _ => {}
        }
        if pointer.is_symlink() {
            std::fs::remove_file(&pointer).map_err(|e| ask.io(e))?;
        }
        if length(&blob) == Some(size) {
            return link(meta.etag(), &blob, name, &pointer).map_err(|e| ask.io(e));
        }
        let bar = Bar { name, done: 0, told: 0, total: size, progress: self.progress };
        ask.guard(|| self.remote.download_with_progress(name, bar))?;
        self.check(&blob, &part, &pointer, size)
    }

    /// Takes back a file of the wrong length: the start of one is kept to go on from.
    fn check(&self, blob: &Path, part: &Path, pointer: &Path, size: u64) -> Result<(), HubError> {
        let there = length(pointer).unwrap_or(0);
        if there == size {
            return Ok(());
        }
        std::fs::remove_file(pointer).map_err(|e| self.ask.io(e))?;
        let undo =
            if there < size { std::fs::rename(blob, part) } else { std::fs::remove_file(blob) };
        // Where links are not to be had, the blob has become the pointer and is gone already.
        undo.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .map_err(|e| self.ask.io(e))?;
        Err(self.ask.network(format!("{there} of {size} bytes arrived")))
    }

    /// The snapshot is complete: names it.
    fn finish(&self) -> Result<(), HubError> {
        let spec = self.ask.spec;
        if spec.revision == self.commit {
            return Ok(());
        }
        let asked = Repo::with_revision(spec.repo.clone(), RepoType::Model, spec.revision.clone());
        let named = Cache::new(self.ask.dir.to_path_buf()).repo(asked.clone());
        named.create_ref(&self.commit).map_err(|e| self.ask.io(e))?;
        // The downloads have left a reference from the commit to itself.
        let own = self.ask.dir.join(asked.folder_name()).join("refs").join(&self.commit);
        std::fs::remove_file(own).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(self.ask.io(e)),
        })
    }
}

fn length(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len())
}

/// Points from a snapshot to a blob that is there already.
fn link(etag: &str, blob: &Path, name: &str, pointer: &Path) -> io::Result<()> {
    if let Some(folder) = pointer.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if cfg!(unix) {
        let up = "../".repeat(name.split('/').count() + 1);
        return symlink(Path::new(&format!("{up}blobs/{etag}")), pointer);
    }
    std::fs::hard_link(blob, pointer).or_else(|_| std::fs::copy(blob, pointer).map(|_| ()))
}

#[cfg(unix)]
fn symlink(target: &Path, pointer: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, pointer)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Turns the client's progress into ours.
struct Bar<'a> {
    name: &'a str,
    done: u64,
    told: u64,
    total: u64,
    progress: &'a dyn Fn(Progress<'_>),
}

impl Bar<'_> {
    fn tell(&mut self) {
        self.told = self.done;
        (self.progress)(Progress::File { name: self.name, done: self.done, total: self.total });
    }
}

impl hf_hub::api::Progress for Bar<'_> {
    fn init(&mut self, _size: usize, _filename: &str) {
        (self.done, self.told) = (0, 0);
    }

    fn update(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.done >= self.told + TELL_EVERY {
            self.tell();
        }
    }

    fn finish(&mut self) {
        if self.told != self.done {
            self.tell();
        }
    }
}
