//! Fetching from the Hub into the cache.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blob::{self, Failure};
use super::http::{Client, Limits, Trouble, shown};
use super::listing::{self, Listing};
use super::name::Spec;
use super::select::{Selection, Unfit, select};
use super::{HubError, HubOptions, Progress, cache};

/// Bytes that a try has to bring for the tries before it to be forgotten: a long download may
/// break often, as long as it gets on.
const HEADWAY: u64 = 1 << 20;

/// What is asked for and how; makes errors that say so.
pub struct Ask<'a> {
    /// The model.
    pub spec: &'a Spec,
    /// The cache.
    pub dir: &'a Path,
    /// Settings.
    pub options: &'a HubOptions,
    /// Patience.
    pub limits: Limits,
    /// Who wants to know how far it is.
    pub progress: &'a dyn Fn(Progress<'_>),
}

/// Brings the model into the cache, as far as it is not there.
///
/// # Errors
/// See [`HubError`].
pub fn fetch(ask: &Ask<'_>) -> Result<PathBuf, HubError> {
    let client = Client::new(ask.options, ask.limits);
    let listing = ask.listing(&client)?;
    let names: Vec<String> = listing.files.iter().map(|(name, _)| name.clone()).collect();
    let selection = select(&names, &ask.spec.wanted).map_err(|unfit| ask.unfit(unfit))?;
    ask.fetch_all(&client, &selection, &listing)?;
    let home = ask.home();
    // The reference is written last, so that it never names half a snapshot.
    if ask.spec.revision != listing.commit {
        let reference = home.join("refs").join(&ask.spec.revision);
        cache::write_whole(&reference, listing.commit.as_bytes()).map_err(|e| ask.io(e))?;
    }
    Ok(cache::entry(&home.join("snapshots").join(&listing.commit), &selection))
}

/// Counts tries.
struct Tries<'a> {
    ask: &'a Ask<'a>,
    what: &'a str,
    made: u32,
}

impl Tries<'_> {
    /// After a failure: waits and says whether to try again.
    fn again(&mut self, cause: &str, asked: Option<Duration>) -> bool {
        self.made += 1;
        let Some(pause) = self.ask.limits.pause_after(self.made, asked) else { return false };
        let note = format!("{}: {cause}; trying again", self.what);
        (self.ask.progress)(Progress::Note(&note));
        std::thread::sleep(pause);
        true
    }
}

impl Ask<'_> {
    /// The repository's folder in the cache.
    pub fn home(&self) -> PathBuf {
        self.dir.join(self.spec.folder())
    }

    fn listing(&self, client: &Client) -> Result<Listing, HubError> {
        let revision = self.spec.revision.replace('/', "%2F");
        let (endpoint, repo) = (self.options.endpoint(), &self.spec.repo);
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let mut tries = Tries { ask: self, what: &self.spec.model, made: 0 };
        loop {
            let trouble = match self.read_listing(client, &url) {
                Ok(body) => {
                    return Listing::parse(&body).map_err(|why| self.protocol(shown(&why)));
                }
                Err(trouble) => trouble,
            };
            match &trouble {
                Trouble::Passing(cause, asked) if tries.again(cause, *asked) => {}
                _ => return Err(self.error(trouble)),
            }
        }
    }

    fn read_listing(&self, client: &Client, url: &str) -> Result<Vec<u8>, Trouble> {
        let mut reader = client.get_within(url, None, Some(self.limits.listing))?.into_reader();
        let (mut body, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(body),
                n => body.extend_from_slice(&buffer[..n]),
            }
            if body.len() as u64 > listing::MAX_BYTES {
                let most = listing::MAX_BYTES >> 20;
                return Err(Trouble::Odd(format!("its list of files is longer than {most} MiB")));
            }
        }
    }

    fn fetch_all(
        &self,
        client: &Client,
        selection: &Selection,
        listing: &Listing,
    ) -> Result<(), HubError> {
        let snapshot = self.home().join("snapshots").join(&listing.commit);
        let missing: Vec<&String> =
            selection.files.iter().filter(|name| !snapshot.join(name).exists()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let sizes = missing.iter().map(|name| listing.size(name));
        (self.progress)(Progress::Start {
            model: &self.spec.model,
            files: missing.len(),
            bytes: sizes.map(|s| s.map(u128::from)).sum::<Option<u128>>().map(saturated),
        });
        missing.iter().try_for_each(|name| {
            let file = blob::Wanted { ask: self, client, commit: &listing.commit, name };
            self.fetch_file(&file, listing.size(name))
        })
    }

    /// Fetches one file, trying again where the network broke.
    fn fetch_file(&self, file: &blob::Wanted<'_>, size: Option<u64>) -> Result<(), HubError> {
        let mut tries = Tries { ask: self, what: file.name, made: 0 };
        let mut reached = 0;
        loop {
            let (failure, there) = match file.fetch(size) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            if there >= reached + HEADWAY {
                (tries.made, reached) = (0, there);
            }
            let again = match &failure {
                Failure::Trouble(Trouble::Passing(cause, asked)) => tries.again(cause, *asked),
                Failure::Trouble(Trouble::Unreachable(cause)) => tries.again(cause, None),
                Failure::Damaged(cause) => tries.again(cause, None),
                _ => false,
            };
            if !again {
                return Err(match failure {
                    Failure::Trouble(trouble) => self.error(trouble),
                    Failure::Damaged(cause) => self.damaged(file.name, cause),
                    Failure::Final(error) => error,
                });
            }
        }
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

    fn damaged(&self, file: &str, cause: String) -> HubError {
        let (model, endpoint) = (self.model(), self.endpoint());
        HubError::Damaged { model, endpoint, file: file.to_string(), cause }
    }

    /// An error of the cache.
    pub fn io(&self, error: io::Error) -> HubError {
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

    fn error(&self, trouble: Trouble) -> HubError {
        match trouble {
            Trouble::Unreachable(cause) | Trouble::Passing(cause, _) => self.network(cause),
            Trouble::Status(status) => self.status(status),
            Trouble::Odd(cause) => self.protocol(cause),
        }
    }

    fn status(&self, status: u16) -> HubError {
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

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
