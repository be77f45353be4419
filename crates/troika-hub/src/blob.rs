//! Fetches one file of a repository from the Hub to its place in the cache.
//!
//! Bytes are collected in `blobs/ETAG.part`, which stays if an attempt ends early. When complete
//! and verified, it becomes `blobs/ETAG`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Progress;
use super::digest::Check;
use super::error::HubError;
use super::http::{Answer, Client, Trouble};
use super::job::FetchJob;
use super::listing::is_token;
use super::lock;

/// Bytes read at once.
const BUFFER: usize = 1 << 17;
/// How often progress is reported, in bytes.
const TELL_EVERY: u64 = 1 << 20;
/// Pause between attempts to take a lock.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why an attempt did not fetch the file.
#[derive(Debug)]
pub enum Failure {
    /// A fault of the network or the server.
    Trouble(Trouble),
    /// The bytes do not match the file's hash and were discarded.
    Damaged(String),
    /// Another attempt would fail in the same way.
    Final(HubError),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        Failure::Trouble(trouble)
    }
}

/// A file to fetch.
pub struct WantedFile<'a> {
    /// The fetch it belongs to.
    pub job: &'a FetchJob<'a>,
    /// Makes requests.
    pub client: &'a Client,
    /// All requests name the commit, so that a push in the meantime cannot mix two versions.
    pub commit: &'a str,
    /// Its name in the repository.
    pub name: &'a str,
}

/// The file's contents fetched so far.
struct PartialBlob<'a> {
    wanted: &'a WantedFile<'a>,
    etag: String,
    size: u64,
    blob: PathBuf,
    part: PathBuf,
    /// Bytes in the part.
    there: u64,
}

impl WantedFile<'_> {
    fn url(&self) -> String {
        let (endpoint, repo) = (self.job.options.endpoint(), &self.job.spec.repo);
        format!("{endpoint}/{repo}/resolve/{}/{}", self.commit, self.name)
    }

    /// Fetches the file, or its first `most` bytes, which the rest can follow; `size` comes from the
    /// repository's description. Returns what holds them, and the bytes of the whole file.
    ///
    /// # Errors
    /// What failed, and how many bytes were fetched.
    pub fn fetch(&self, size: Option<u64>, most: u64) -> Result<(PathBuf, u64), (Failure, u64)> {
        let mut part = self.describe(size).map_err(|failure| (failure, 0))?;
        let place = part.fetch(most).map_err(|failure| (failure, part.there))?;
        Ok((place, part.size))
    }

    /// Asks for the file's hash and size with a request for its first byte.
    fn describe(&self, listed: Option<u64>) -> Result<PartialBlob<'_>, Failure> {
        let answer = self.client.get(&self.url(), Some("bytes=0-0"), None)?;
        let name = self.name;
        let odd = |why: &str| Failure::Trouble(Trouble::Odd(format!("{name} {why}")));
        if answer.hub_header("x-repo-commit") != Some(self.commit) {
            return Err(odd("comes with another commit than was asked for"));
        }
        let etag = answer.hub_header("x-linked-etag").or_else(|| answer.hub_header("etag"));
        let etag = etag.ok_or_else(|| odd("comes without an ETag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
        if !is_token(&etag) {
            return Err(odd("comes with a malformed ETag"));
        }
        let linked = answer.hub_header("x-linked-size").and_then(|size| size.parse().ok());
        let sent = match answer.status() {
            206 => answer.range().map(|(_, _, total)| total),
            _ => answer.length(),
        };
        let size = listed.or(linked).or(sent).ok_or_else(|| odd("comes without its size"))?;
        if let Some(other) = sent.filter(|&sent| sent != size) {
            return Err(odd(&format!("has {size} bytes, but {other} are offered")));
        }
        let blobs = self.job.home().join("blobs");
        let (blob, part) = (blobs.join(&etag), blobs.join(format!("{etag}.part")));
        Ok(PartialBlob { wanted: self, etag, size, blob, part, there: 0 })
    }
}

impl PartialBlob<'_> {
    fn fetch(&mut self, most: u64) -> Result<PathBuf, Failure> {
        let io = |e| Failure::Final(self.wanted.job.io(e));
        let _locks = self.lock()?;
        // Another program may have fetched it meanwhile.
        if length(&self.blob) != Some(self.size) {
            self.complete(most.min(self.size))?;
        }
        if most < self.size {
            return Ok(if self.blob.exists() { &self.blob } else { &self.part }.clone());
        }
        self.point().map_err(io)?;
        Ok(self.blob.clone())
    }

    /// Waits for the locks as long as their holder makes progress.
    fn lock(&self) -> Result<Vec<File>, Failure> {
        let job = self.wanted.job;
        let incomplete = self.blob.with_file_name(format!("{}.incomplete", self.etag));
        let lengths = || [&self.part, &incomplete, &self.blob].map(|path| length(path));
        let (mut seen, mut since, mut told) = (lengths(), Instant::now(), false);
        loop {
            let taken = lock::take(job.dir, &job.spec.folder(), &self.etag);
            if let Some(locks) = taken.map_err(|e| Failure::Final(job.io(e)))? {
                return Ok(locks);
            }
            if !told {
                let note = format!("{}: another program is fetching it; waiting", self.wanted.name);
                (job.progress)(Progress::Note(&note));
                told = true;
            }
            std::thread::sleep(LOOK_EVERY);
            let now = lengths();
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > job.limits.others {
                return Err(Failure::Final(job.fails(
                    "another program is fetching it and gets no further; end that one and run again",
                )));
            }
        }
    }

    /// Completes the part as far as `end`. A whole one is checked, and renamed to the blob.
    fn complete(&mut self, end: u64) -> Result<(), Failure> {
        let job = self.wanted.job;
        let io = |e| Failure::Final(job.io(e));
        if length(&self.part).is_some_and(|there| there > self.size) {
            std::fs::remove_file(&self.part).map_err(io)?;
        }
        let mut check = Check::new(&self.etag, self.size);
        let mut file = OpenOptions::new().append(true).create(true).open(&self.part).map_err(io)?;
        self.there = file.metadata().map_err(io)?.len();
        let is_whole = end == self.size;
        if is_whole && self.there > 0 {
            File::open(&self.part).and_then(|part| check.read(part)).map_err(io)?;
        }
        if self.there < end {
            self.check_space()?;
            self.receive(&mut file, &mut check, end)?;
        }
        if !is_whole {
            return Ok(());
        }
        if !check.fits() {
            drop(file);
            std::fs::remove_file(&self.part).map_err(io)?;
            self.there = 0;
            let why = "its contents are not those the server's hash stands for";
            return Err(Failure::Damaged(why.to_string()));
        }
        // After a crash, an incomplete file must not look complete.
        file.sync_all().map_err(io)?;
        drop(file);
        std::fs::rename(&self.part, &self.blob).map_err(io)
    }

    /// Refuses to begin what the disk cannot hold.
    fn check_space(&self) -> Result<(), Failure> {
        let job = self.wanted.job;
        let needed = self.size - self.there;
        // A file system that does not tell has all the space it wants. Some network file systems
        // claim to have no bytes at all.
        let stats = fs4::statvfs(job.dir).ok().filter(|stats| stats.total_space() > 0);
        let free = stats.map(|stats| stats.available_space());
        let Some(free) = free.filter(|free| *free < needed) else { return Ok(()) };
        Err(Failure::Final(job.fails(format!(
            "{} needs {needed} bytes more at {}, and {free} are free; remove something there, or set \
             HF_HUB_CACHE to a folder on another disk",
            self.wanted.name,
            job.dir.display()
        ))))
    }

    /// Fetches the missing bytes of the part, as far as `end`.
    fn receive(&mut self, file: &mut File, check: &mut Check, end: u64) -> Result<(), Failure> {
        let job = self.wanted.job;
        let io = |e| Failure::Final(job.io(e));
        let range = match end < self.size {
            true => Some(format!("bytes={}-{}", self.there, end - 1)),
            false => (self.there > 0).then(|| format!("bytes={}-", self.there)),
        };
        let answer = self.wanted.client.get(&self.wanted.url(), range.as_deref(), None)?;
        if !self.goes_on(&answer, end)? && self.there > 0 {
            file.set_len(0).map_err(io)?;
            (self.there, *check) = (0, Check::new(&self.etag, self.size));
        }
        let mut read = answer.into_reader();
        let mut buffer = vec![0; BUFFER];
        let mut told = self.there;
        // A server without ranges sends all of the file, of which the rest is not read.
        while self.there < end || end == self.size {
            let n = match read(&mut buffer)? {
                0 if self.there < end => {
                    let cause = format!("{} of {} bytes arrived", self.there, self.size);
                    return Err(Trouble::Passing(cause, None).into());
                }
                0 => break,
                n => n,
            };
            if n as u64 > self.size - self.there {
                let why = format!("it sends more than the {} bytes of the file", self.size);
                return Err(Trouble::Odd(why).into());
            }
            let n = n.min(usize::try_from(end - self.there).unwrap_or(n));
            file.write_all(&buffer[..n]).map_err(io)?;
            check.update(&buffer[..n]);
            self.there += n as u64;
            if self.there >= told + TELL_EVERY {
                told = self.there;
                self.tell();
            }
        }
        if told != self.there {
            self.tell();
        }
        Ok(())
    }

    /// Whether an answer continues the part; otherwise it begins at the file's start.
    fn goes_on(&self, answer: &Answer, end: u64) -> Result<bool, Failure> {
        let odd = |why: String| Failure::Trouble(Trouble::Odd(why));
        let goes_on = answer.status() == 206;
        let from = if goes_on { self.there } else { 0 };
        if goes_on {
            match answer.range() {
                Some((first, _, total)) if (first, total) == (from, self.size) => {}
                _ => return Err(odd("it sends another range than was asked for".to_string())),
            }
        }
        match answer.length() {
            Some(length) if ![end, self.size].map(Some).contains(&from.checked_add(length)) => {
                let (name, size) = (self.wanted.name, self.size);
                let why = format!("it sends {length} bytes from byte {from} of {name}");
                Err(odd(format!("{why}, which has {size}")))
            }
            _ => Ok(goes_on),
        }
    }

    fn tell(&self) {
        let (name, done, total) = (self.wanted.name, self.there, self.size);
        (self.wanted.job.progress)(Progress::File { name, done, total });
    }

    /// Links the snapshot to the blob.
    fn point(&self) -> io::Result<()> {
        let WantedFile { job, commit, name, .. } = self.wanted;
        let pointer = job.home().join("snapshots").join(commit).join(name);
        if let Some(folder) = pointer.parent() {
            std::fs::create_dir_all(folder)?;
        }
        if pointer.is_symlink() {
            std::fs::remove_file(&pointer)?;
        }
        let up = "../".repeat(name.split('/').count() + 1);
        let linked = link(&format!("{up}blobs/{}", self.etag), &self.blob, &pointer);
        // An existing file of this name is right already.
        linked.or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })
    }
}

fn length(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len())
}

#[cfg(unix)]
fn link(target: &str, _: &Path, pointer: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, pointer)
}

#[cfg(not(unix))]
fn link(_: &str, blob: &Path, pointer: &Path) -> io::Result<()> {
    std::fs::hard_link(blob, pointer).or_else(|_| std::fs::copy(blob, pointer).map(|_| ()))
}
