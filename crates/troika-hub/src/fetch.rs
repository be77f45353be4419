//! Fetches models from the Hub into the cache.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blob::{self, Failure};
use super::http::{Client, Trouble, can_be_sent, shown};
use super::job::FetchJob;
use super::listing::{self, Listing};
use super::name::MAIN;
use super::options::Glimpse;
use super::select::{Selection, choice, models, quantization, select};
use super::{HubError, Progress, cache};

/// Bytes after which earlier failed attempts are forgotten: a long download may break often as long
/// as it makes progress.
const HEADWAY: u64 = 1 << 20;

/// The bytes of a GGUF file's start that are looked at: more where its header is longer. They stay in
/// the cache, where the rest of the file follows them.
const HEADS: [u64; 3] = [8 << 20, 32 << 20, 128 << 20];

/// A model that a repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The name for it: `owner/name` or `owner/name:Q4_K_M`.
    pub name: String,
    /// The quantization that a GGUF file's name tells.
    pub quantization: Option<String>,
    /// Bytes of its files, if the Hub tells.
    pub bytes: Option<u64>,
}

/// Fetches the missing files of a model into the cache.
pub fn fetch(job: &FetchJob<'_>) -> Result<PathBuf, HubError> {
    let (client, listing) = job.repository()?;
    let selection = select(&listing.names(), &job.spec.wanted).map_err(|unfit| job.unfit(unfit))?;
    job.fetch_all(&client, &selection, &listing)?;
    let home = job.home();
    // The reference is written last, so that it never names an incomplete snapshot.
    if !job.options.only_look && job.spec.revision != listing.commit {
        let reference = home.join("refs").join(&job.spec.revision);
        cache::write_whole(&reference, listing.commit.as_bytes()).map_err(|e| job.io(e))?;
    }
    Ok(cache::entry(&home.join("snapshots").join(&listing.commit), &selection))
}

/// The models of a repository, the smallest first.
pub fn offers(job: &FetchJob<'_>) -> Result<Vec<Offer>, HubError> {
    let (_, listing) = job.repository()?;
    let names = listing.names();
    let at = Some(&job.spec.revision).filter(|revision| *revision != MAIN);
    let at = at.map_or(String::new(), |revision| format!("@{revision}"));
    let offer = |Selection { files, entry }| {
        let choice =
            entry.as_ref().map_or(String::new(), |file| format!(":{}", choice(&names, file)));
        let name = format!("{}{at}{choice}", job.spec.repo);
        let quantization = entry.and_then(|file| quantization(&file));
        Offer { name, quantization, bytes: listing.total(&files) }
    };
    let mut offers: Vec<Offer> = models(&names).into_iter().map(offer).collect();
    offers.sort_by(|a, b| (a.bytes, &a.name).cmp(&(b.bytes, &b.name)));
    Ok(offers)
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
    /// A client, and what the Hub says of the repository.
    fn repository(&self) -> Result<(Client, Listing), HubError> {
        if self.options.token.as_deref().is_some_and(|token| !can_be_sent(token)) {
            let why = "the token in use (HF_TOKEN, or the file a login has left) has a line break or \
                       another character that no token has; set HF_TOKEN to the token alone";
            return Err(self.fails(why));
        }
        let client = Client::new(self.options, self.limits);
        let listing = self.listing(&client)?;
        Ok((client, listing))
    }

    fn listing(&self, client: &Client) -> Result<Listing, HubError> {
        let revision = self.spec.revision.replace('/', "%2F");
        let (endpoint, repo) = (self.options.endpoint(), &self.spec.repo);
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let mut tries = Tries { job: self, what: &self.spec.model, made: 0 };
        loop {
            let read = client.get(&url, None, Some(self.limits.listing));
            match read.and_then(|answer| answer.into_bytes(listing::MAX_BYTES)) {
                Ok(body) => {
                    return Listing::parse(&body).map_err(|why| self.protocol(&shown(&why)));
                }
                Err(Trouble::Passing(cause, asked)) if tries.retry(&cause, asked) => {}
                Err(trouble) => return Err(self.error(trouble)),
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
        let missing: Vec<String> =
            selection.files.iter().filter(|name| !snapshot.join(name).exists()).cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        if !self.options.only_look {
            (self.progress)(Progress::Start {
                model: &self.spec.model,
                files: missing.len(),
                bytes: listing.total(&missing),
            });
        }
        let is_weight = |name: &String| selection.entry.is_some() || name.ends_with(".safetensors");
        let small = missing.iter().position(is_weight).unwrap_or(missing.len());
        let fetch = |name: &String| {
            // What was looked at may be all of it.
            if snapshot.join(name).exists() {
                return Ok(());
            }
            let file = blob::WantedFile { job: self, client, commit: &listing.commit, name };
            let fetched = self.fetch_file(&file, listing.size(name), u64::MAX);
            fetched.map(drop).map_err(|failure| self.failed(name, failure))
        };
        missing[..small].iter().try_for_each(fetch)?;
        if small < missing.len() {
            self.look(client, selection, listing)?;
        }
        if self.options.only_look {
            return Ok(());
        }
        missing[small..].iter().try_for_each(fetch)
    }

    /// Has the model looked at before its weights are fetched.
    fn look(
        &self,
        client: &Client,
        selection: &Selection,
        listing: &Listing,
    ) -> Result<(), HubError> {
        let Some(look) = self.options.look else { return Ok(()) };
        let (model, bytes) = (self.spec.model.as_str(), listing.total(&selection.files));
        let say = |place: &Path, gguf| {
            let seen = Glimpse { model, place, gguf, bytes };
            look(&seen).map_err(|why| self.fails(why))
        };
        let Some(name) = &selection.entry else {
            let line = say(&self.home().join("snapshots").join(&listing.commit), None)?;
            line.iter().for_each(|line| (self.progress)(Progress::Note(line)));
            return Ok(());
        };
        let file = blob::WantedFile { job: self, client, commit: &listing.commit, name };
        let mut line = None;
        for most in HEADS {
            match self.fetch_file(&file, listing.size(name), most) {
                Ok((place, whole)) => line = say(&place, Some(whole))?,
                // A server may have the file, but no ranges of it. What else is wrong is said when
                // the file is fetched.
                Err(Failure::Trouble(Trouble::Status(_) | Trouble::Odd(_))) => break,
                Err(failure) => return Err(self.failed(name, failure)),
            }
            if line.is_some() {
                break;
            }
        }
        let unseen = || format!("{name}: its header cannot be looked at before it is fetched");
        (self.progress)(Progress::Note(&line.unwrap_or_else(unseen)));
        Ok(())
    }

    /// Fetches a file or its beginning, with further attempts if the network fails.
    fn fetch_file(
        &self,
        file: &blob::WantedFile<'_>,
        size: Option<u64>,
        most: u64,
    ) -> Result<(PathBuf, u64), Failure> {
        let mut tries = Tries { job: self, what: file.name, made: 0 };
        let mut reached = 0;
        loop {
            let (failure, there) = match file.fetch(size, most) {
                Ok(fetched) => return Ok(fetched),
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
                return Err(failure);
            }
        }
    }

    fn failed(&self, name: &str, failure: Failure) -> HubError {
        match failure {
            Failure::Trouble(trouble) => self.error(trouble),
            Failure::Damaged(cause) => self.fails(format!(
                "{name} arrives damaged from {} ({cause}); try again later, or give a folder or a \
                 .gguf file on this machine",
                self.endpoint()
            )),
            Failure::Final(error) => error,
        }
    }
}
