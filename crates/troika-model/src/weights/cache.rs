//! Packed weights kept on disk, so that the next start maps them instead of making them.
//!
//! One file per model and quantization. Its name is a hash of all that the packed bytes depend on
//! beside the layout: the weights' bytes, the model's description, the quantization and the
//! versions of both. It is written beside its place and renamed when it is whole, so two processes
//! may write the same one. Layout, numbers little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `TROIKAPW` |
//! | 8..12 | version |
//! | 16..24, 24..32 | offset and length of the index |
//! | 32..64 | hash of the index |
//! | 4096.. | packed weights, each 4096-byte aligned |
//! | last | the index, JSON: name, layout, offset, length and hash of each weight |
//!
//! Each weight's hash is checked when it is asked for. What does not fit is made again.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use troika_device::WeightBytes;

use super::file_map::FileMap;
use super::hash;
use super::open::map_file;

const MAGIC: &[u8; 8] = b"TROIKAPW";
const VERSION: u32 = 1;
/// Packed weights begin at multiples of this: a page, so that each can be mapped and advised.
const ALIGN: u64 = 4096;
/// Files that were not written to for so long were left by processes that ended...
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// ... and for so long, if there is no process of their number.
const SILENT: Duration = Duration::from_secs(60);

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    name: String,
    layout: String,
    offset: u64,
    len: u64,
    hash: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Index {
    entries: Vec<Entry>,
    /// Tensors with NaN or infinities, seen when they were quantized.
    non_finite: BTreeSet<String>,
}

/// The file a former start left.
struct Found {
    map: Arc<FileMap>,
    index: Index,
    by_name: HashMap<(String, String), usize>,
}

/// A file being written.
struct Writer {
    path: PathBuf,
    file: File,
    at: u64,
    entries: Vec<Entry>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Gone already when it was finished.
        let _ = std::fs::remove_file(&self.path);
    }
}

enum State {
    /// Nothing new yet.
    Clean,
    Writing(Writer),
    /// Nothing more is written.
    Closed,
}

/// The packed weights of one model and quantization.
pub(super) struct PackedCache {
    path: PathBuf,
    found: Option<Found>,
    state: Mutex<State>,
    warnings: Mutex<Vec<String>>,
}

impl PackedCache {
    /// The file for `key` in a folder, if there is one; else one is begun by the first
    /// [`PackedCache::put`].
    pub fn open(dir: &Path, key: &blake3::Hash) -> PackedCache {
        let path = dir.join(format!("{}.packed", &key.to_hex()[..32]));
        let mut warnings = Vec::new();
        let found = match path.exists().then(|| read(&path)).transpose() {
            Ok(found) => found,
            Err(why) => {
                warnings.push(format!("{} is damaged ({why}); it is made again", path.display()));
                None
            }
        };
        let (state, warnings) = (Mutex::new(State::Clean), Mutex::new(warnings));
        PackedCache { path, found, state, warnings }
    }

    /// A packed weight of the expected length.
    pub fn get(&self, name: &str, layout: &str, len: usize) -> Option<WeightBytes> {
        let found = self.found.as_ref()?;
        let entry = found.entry(name, layout)?;
        let range = entry.range().filter(|r| r.len() == len);
        let bytes = range.and_then(|r| WeightBytes::new(found.map.clone(), r));
        let bytes = bytes.filter(|b| hash::of_bytes(b).to_hex().as_str() == entry.hash);
        if bytes.is_none() {
            let path = self.path.display();
            self.warn(format!("{path} is damaged (weight {name}); it is made again"));
        }
        bytes
    }

    /// Tensors in which NaN or infinities were seen when the file was made.
    pub fn non_finite(&self) -> BTreeSet<String> {
        self.found.as_ref().map(|f| f.index.non_finite.clone()).unwrap_or_default()
    }

    /// Writes a packed weight. A disk that is full or a folder that cannot be written ends the
    /// writing with a warning; nothing depends on it.
    pub fn put(&self, name: &str, layout: &str, bytes: &[u8]) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Clean) {
            *state = match Writer::begin(&self.path) {
                Ok(writer) => State::Writing(writer),
                Err(e) => self.failed(&e),
            };
        }
        let State::Writing(writer) = &mut *state else { return };
        if let Err(e) = writer.add(name, layout, bytes) {
            *state = self.failed(&e);
        }
    }

    fn failed(&self, e: &std::io::Error) -> State {
        let dir = self.path.parent().unwrap_or(&self.path).display();
        self.warn(format!(
            "packed weights cannot be kept in {dir} ({e}); the next start makes them again"
        ));
        State::Closed
    }

    /// Puts the file in its place if anything was written, together with what the former one
    /// held beside. Returns the warnings of all that happened.
    pub fn finish(&self, non_finite: BTreeSet<String>) -> Vec<String> {
        let mut state = lock(&self.state);
        if let State::Writing(mut writer) = std::mem::replace(&mut *state, State::Closed) {
            let written = self
                .found
                .as_ref()
                .map_or(Ok(()), |f| writer.take_over(f))
                .and_then(|()| writer.finish(non_finite, &self.path));
            if let Err(e) = written {
                self.failed(&e);
            }
        }
        std::mem::take(&mut lock(&self.warnings))
    }

    fn warn(&self, text: String) {
        let mut all = lock(&self.warnings);
        // One damaged weight is as good as many.
        if all.is_empty() {
            all.push(text);
        }
    }
}

impl Entry {
    fn range(&self) -> Option<Range<usize>> {
        let end = self.offset.checked_add(self.len)?;
        Some(usize::try_from(self.offset).ok()?..usize::try_from(end).ok()?)
    }
}

impl Found {
    fn entry(&self, name: &str, layout: &str) -> Option<&Entry> {
        let at = self.by_name.get(&(name.to_string(), layout.to_string()))?;
        self.index.entries.get(*at)
    }
}

/// Maps a file and reads its index. The reason why it is no use.
fn read(path: &Path) -> Result<Found, String> {
    let map = map_file(path).map_err(|e| e.to_string())?;
    let bytes = map.as_ref();
    let head = bytes.get(..64).ok_or("it is cut short")?;
    let number = |at: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(b)
    };
    if head[..8] != *MAGIC || head[8..12] != VERSION.to_le_bytes() {
        return Err("it is of another kind or version".into());
    }
    let (offset, len) = (number(16), number(24));
    if offset.checked_add(len) != Some(bytes.len() as u64) {
        return Err("its length is not what it says".into());
    }
    let text = &bytes[offset as usize..];
    if blake3::hash(text).as_bytes() != &head[32..64] {
        return Err("its index is not what was written".into());
    }
    let index: Index = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let names = index.entries.iter().map(|e| (e.name.clone(), e.layout.clone()));
    let by_name = names.zip(0..).collect();
    Ok(Found { map: Arc::new(map), index, by_name })
}

impl Writer {
    fn begin(path: &Path) -> std::io::Result<Writer> {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        remove_abandoned(dir);
        let path = partial(path);
        let mut file = File::create_new(&path)?;
        file.seek(SeekFrom::Start(ALIGN))?;
        Ok(Writer { path, file, at: ALIGN, entries: Vec::new() })
    }

    fn add(&mut self, name: &str, layout: &str, bytes: &[u8]) -> std::io::Result<()> {
        let offset = self.at.next_multiple_of(ALIGN);
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.write_all(bytes)?;
        self.at = offset + bytes.len() as u64;
        let hash = hash::of_bytes(bytes).to_hex().to_string();
        let (name, layout, len) = (name.to_string(), layout.to_string(), bytes.len() as u64);
        self.entries.push(Entry { name, layout, offset, len, hash });
        Ok(())
    }

    /// Copies what is only in the former file: forms another device asked for.
    fn take_over(&mut self, old: &Found) -> std::io::Result<()> {
        for e in &old.index.entries {
            let here = self.entries.iter().any(|n| (&n.name, &n.layout) == (&e.name, &e.layout));
            let bytes = e.range().and_then(|r| old.map.as_ref().as_ref().get(r));
            if let Some(bytes) = bytes.filter(|_| !here) {
                self.add(&e.name, &e.layout, bytes)?;
                // A weight that was damaged stays so.
                if let Some(new) = self.entries.last_mut() {
                    new.hash.clone_from(&e.hash);
                }
                old.map.release(bytes);
            }
        }
        Ok(())
    }

    fn finish(mut self, non_finite: BTreeSet<String>, place: &Path) -> std::io::Result<()> {
        let index = Index { entries: std::mem::take(&mut self.entries), non_finite };
        let text = serde_json::to_vec(&index)?;
        self.file.seek(SeekFrom::Start(self.at))?;
        self.file.write_all(&text)?;
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&self.at.to_le_bytes());
        head.extend_from_slice(&(text.len() as u64).to_le_bytes());
        head.extend_from_slice(blake3::hash(&text).as_bytes());
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&head)?;
        self.file.flush()?;
        std::fs::rename(&self.path, place)
    }
}

/// A name beside a file's place that no other process or thread uses.
pub(super) fn partial(path: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let thread = format!("{:?}", std::thread::current().id());
    let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
    let own = format!("{}-{digits}-{}", std::process::id(), now.as_nanos());
    path.with_extension(format!("{own}.partial"))
}

/// Removes what processes that ended left behind.
fn remove_abandoned(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let changed = entry.metadata().and_then(|m| m.modified());
        let age = changed.ok().and_then(|t| t.elapsed().ok()).unwrap_or_default();
        let left = age > ABANDONED || age > SILENT && has_ended(&path);
        if path.extension().is_some_and(|e| e == "partial") && left {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the process that began a file is known to have ended.
fn has_ended(partial: &Path) -> bool {
    let name = partial.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    let process = name.rsplit('.').next().and_then(|own| own.split('-').next());
    let processes = Path::new("/proc/self").exists();
    processes && process.is_some_and(|p| !p.is_empty() && !Path::new("/proc").join(p).exists())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
