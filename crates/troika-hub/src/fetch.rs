//! Fetches models from the Hub into the cache.

use std::path::PathBuf;
use std::time::Duration;

use super::blob::{self, Failure};
use super::http::{Client, Trouble, can_be_sent, shown};
use super::job::FetchJob;
use super::listing::{self, Listing};
use super::select::{Selection, select};
use super::{HubError, Progress, cache};

/// Bytes after which earlier failed attempts are forgotten: a long download may break often as long
/// as it makes progress.
const HEADWAY: u64 = 1 << 20;

/// Fetches the missing files of a model into the cache.
///
/// # Errors
/// See [`HubError`].
pub fn fetch(job: &FetchJob<'_>) -> Result<PathBuf, HubError> {
    if job.options.token.as_deref().is_some_and(|token| !can_be_sent(token)) {
        return Err(HubError::BadToken(job.model()));
    }
    let client = Client::new(job.options, job.limits);
    let listing = job.listing(&client)?;
    let names: Vec<String> = listing.files.iter().map(|(name, _)| name.clone()).collect();
    let selection = select(&names, &job.spec.wanted).map_err(|unfit| job.unfit(unfit))?;
    job.fetch_all(&client, &selection, &listing)?;
    let home = job.home();
    // The reference is written last, so that it never names an incomplete snapshot.
    if job.spec.revision != listing.commit {
        let reference = home.join("refs").join(&job.spec.revision);
        cache::write_whole(&reference, listing.commit.as_bytes()).map_err(|e| job.io(e))?;
    }
    Ok(cache::entry(&home.join("snapshots").join(&listing.commit), &selection))
}

/// Counts attempts.
struct Tries<'a> {
    job: &'a FetchJob<'a>,
    what: &'a str,
    made: u32,
}

impl Tries<'_> {
    /// After a failure: waits, and returns whether to try again.
    fn retry(&mut self, cause: &str, asked: Option<Duration>) -> bool {
        self.made += 1;
        let Some(pause) = self.job.limits.pause_after(self.made, asked) else { return false };
        let note = format!("{}: {cause}; trying again", self.what);
        (self.job.progress)(Progress::Note(&note));
        std::thread::sleep(pause);
        true
    }
}

impl FetchJob<'_> {
    fn listing(&self, client: &Client) -> Result<Listing, HubError> {
        let revision = self.spec.revision.replace('/', "%2F");
        let (endpoint, repo) = (self.options.endpoint(), &self.spec.repo);
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let mut tries = Tries { job: self, what: &self.spec.model, made: 0 };
        loop {
            let trouble = match self.read_listing(client, &url) {
                Ok(body) => {
                    return Listing::parse(&body).map_err(|why| self.protocol(shown(&why)));
                }
                Err(trouble) => trouble,
            };
            match &trouble {
                Trouble::Passing(cause, asked) if tries.retry(cause, *asked) => {}
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
        let weights = missing.iter().find(|name| name.ends_with(".safetensors"));
        missing.iter().try_for_each(|name| {
            let refused = self.options.refuse.filter(|_| Some(name) == weights);
            if let Some(why) = refused.and_then(|refuse| refuse(&snapshot)) {
                return Err(HubError::Useless(self.model(), why));
            }
            let file = blob::WantedFile { job: self, client, commit: &listing.commit, name };
            self.fetch_file(&file, listing.size(name))
        })
    }

    /// Fetches one file, with further attempts if the network fails.
    fn fetch_file(&self, file: &blob::WantedFile<'_>, size: Option<u64>) -> Result<(), HubError> {
        let mut tries = Tries { job: self, what: file.name, made: 0 };
        let mut reached = 0;
        loop {
            let (failure, there) = match file.fetch(size) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            if there >= reached + HEADWAY {
                (tries.made, reached) = (0, there);
            }
            let retry = match &failure {
                Failure::Trouble(Trouble::Passing(cause, asked)) => tries.retry(cause, *asked),
                Failure::Trouble(Trouble::Unreachable(cause)) => tries.retry(cause, None),
                Failure::Damaged(cause) => tries.retry(cause, None),
                _ => false,
            };
            if !retry {
                return Err(match failure {
                    Failure::Trouble(trouble) => self.error(trouble),
                    Failure::Damaged(cause) => self.damaged(file.name, cause),
                    Failure::Final(error) => error,
                });
            }
        }
    }
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
