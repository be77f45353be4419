//! Packed weights on disk, so that the next start maps them instead of making them.
//!
//! There is one file per model and quantization, named by a hash of everything that the packed
//! bytes depend on besides the layout ([`key`]). It is written beside its place and then renamed
//! ([`partial`]), so two processes may write the same one. Layout, with little-endian numbers:
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `TROIKAPW` |
//! | 8..12 | version |
//! | 16..24, 24..32 | offset and length of the index |
//! | 32..64 | hash of the index |
//! | 4096.. | packed weights, each 4096-byte aligned |
//! | last | the index, JSON ([`PackedIndex`]) |
//!
//! A weight's hash is checked when it is requested; damaged weights are made again. The hashes
//! detect damage, not forgery: anyone who can write to the folder controls what the model computes.

mod folder;
mod format;
pub(crate) mod hash;
mod key;
mod partial;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use format::ALIGN;
pub(crate) use format::Found;
use troika_device::{WeightBytes, lock, size};

pub use folder::{CacheFile, CacheFolder, CacheKind};
pub use format::{PackedEntry, PackedIndex, parse_packed};
pub(crate) use key::key;
pub(crate) use partial::touch;
pub use partial::{Partial, remove_leftovers};

/// A file being written.
struct Writer {
    partial: Partial,
    at: u64,
    entries: Vec<PackedEntry>,
    /// The most bytes of the file.
    limit: u64,
}

enum State {
    /// No new weights.
    Clean,
    Writing(Writer),
    /// Writing has ended.
    Closed,
}

/// The packed weights of one model and quantization.
pub(crate) struct PackedCache {
    folder: CacheFolder,
    path: PathBuf,
    /// The model's file.
    model: String,
    /// The types of its weights.
    types: String,
    found: Option<Found>,
    state: Mutex<State>,
    /// One of each kind, since a single damaged weight is warning enough.
    warnings: Mutex<BTreeMap<&'static str, String>>,
}

impl PackedCache {
    /// Opens the file for `key` in a folder; if there is none, the first [`PackedCache::put`]
    /// creates it. `model` and `types` describe the source and
    /// types of the weights.
    pub fn open(
        folder: CacheFolder,
        key: &blake3::Hash,
        model: String,
        types: String,
    ) -> PackedCache {
        folder.remove_abandoned();
        let path = folder.packed().join(format!("{}.packed", &key.to_hex()[..32]));
        let mut cache = PackedCache {
            folder,
            path,
            model,
            types,
            found: None,
            state: Mutex::new(State::Clean),
            warnings: Mutex::default(),
        };
        // A dangling link counts as missing.
        if cache.path.exists() {
            match Found::read(&cache.path) {
                Ok(found) => {
                    touch(&cache.path);
                    cache.found = Some(found);
                }
                Err(why) => cache.damaged(&why),
            }
        }
        cache
    }

    /// A packed weight with the expected length.
    pub fn get(&self, name: &str, layout: &str, len: usize) -> Option<WeightBytes> {
        let found = self.found.as_ref()?;
        let entry = found.entry(name, layout)?;
        let range = entry.range().filter(|r| r.len() == len);
        let bytes = range.and_then(|r| WeightBytes::new(found.map.clone(), r));
        let bytes = bytes.filter(|b| hash::of_bytes(b).to_hex().as_str() == entry.hash);
        if bytes.is_none() {
            self.damaged(&format!("weight {name}"));
        }
        bytes
    }

    /// Where the file is, or will be.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Whether the file has a packed weight with the expected length. Its bytes are not looked at.
    pub fn has(&self, name: &str, layout: &str, len: usize) -> bool {
        let entry = self.found.as_ref().and_then(|found| found.entry(name, layout));
        entry.is_some_and(|entry| entry.len == len as u64)
    }

    /// Tensors in which NaN or infinities were found when the file was made.
    pub fn non_finite(&self) -> BTreeSet<String> {
        self.found.as_ref().map(|f| f.index.non_finite.clone()).unwrap_or_default()
    }

    /// Writes a packed weight. A full disk or unwritable folder only ends the writing with a
    /// warning.
    pub fn put(&self, name: &str, layout: &str, bytes: &[u8]) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Clean) {
            *state = match Partial::begin_private(&self.path) {
                Ok(partial) => State::Writing(Writer::new(partial, self.folder.most())),
                Err(e) => self.failed(&e),
            };
        }
        let State::Writing(writer) = &mut *state else { return };
        if let Err(e) = writer.add(name, layout, bytes) {
            *state = self.failed(&e);
        }
    }

    /// Completes the file if anything was written, including other weights of the previous file,
    /// and shrinks the folder if it is too large. `changed` names a model file that has changed
    /// since the key was made. Returns all warnings.
    pub fn finish(&self, non_finite: BTreeSet<String>, changed: Option<String>) -> Vec<String> {
        let mut state = lock(&self.state);
        if let State::Writing(mut writer) = std::mem::replace(&mut *state, State::Closed) {
            let written = match (changed, &self.found) {
                (Some(file), _) => Err(Error::other(format!("{file} was changed meanwhile"))),
                (None, Some(found)) => writer.take_over(found),
                (None, None) => Ok(()),
            };
            let (model, types, entries) = (self.model.clone(), self.types.clone(), Vec::new());
            let index = PackedIndex { model, types, entries, non_finite };
            if let Err(e) = written.and_then(|()| writer.finish(index, &self.path)) {
                self.failed(&e);
            }
        }
        // An unusable folder is reported only once.
        let told = lock(&self.warnings).contains_key("failed");
        let shrunk = self.folder.shrink(self.folder.most(), Some(&self.path));
        if let (Err(e), false) = (shrunk, told) {
            let text = format!("packed weights that are no longer used cannot be removed: {e}");
            self.warn("shrink", text);
        }
        std::mem::take(&mut *lock(&self.warnings)).into_values().collect()
    }

    fn failed(&self, e: &Error) -> State {
        let dir = self.path.parent().unwrap_or(&self.path).display();
        let what = format!("packed weights cannot be kept in {dir} ({e})");
        self.warn("failed", format!("{what}; the next start makes them again"));
        State::Closed
    }

    fn damaged(&self, why: &str) {
        let path = self.path.display();
        self.warn("damaged", format!("{path} is damaged ({why}); it is made again"));
    }

    fn warn(&self, kind: &'static str, text: String) {
        lock(&self.warnings).entry(kind).or_insert(text);
    }
}

impl Writer {
    fn new(partial: Partial, limit: u64) -> Writer {
        Writer { partial, at: ALIGN, entries: Vec::new(), limit }
    }

    fn add(&mut self, name: &str, layout: &str, bytes: &[u8]) -> std::io::Result<()> {
        let offset = self.at.next_multiple_of(ALIGN);
        let end = offset + bytes.len() as u64;
        if end > self.limit {
            let most = size(self.limit);
            return Err(Error::other(format!("they take more than the {most} allowed")));
        }
        self.partial.file.seek(SeekFrom::Start(offset))?;
        self.partial.file.write_all(bytes)?;
        self.at = end;
        let hash = hash::of_bytes(bytes).to_hex().to_string();
        let (name, layout, len) = (name.to_string(), layout.to_string(), bytes.len() as u64);
        self.entries.push(PackedEntry { name, layout, offset, len, hash });
        Ok(())
    }

    /// Copies weights that only the old file has: layouts of other devices.
    fn take_over(&mut self, old: &Found) -> std::io::Result<()> {
        for e in &old.index.entries {
            let here = self.entries.iter().any(|n| (&n.name, &n.layout) == (&e.name, &e.layout));
            if let Some(bytes) = old.bytes(e).filter(|_| !here) {
                self.add(&e.name, &e.layout, bytes)?;
                // A damaged weight remains damaged.
                if let Some(new) = self.entries.last_mut() {
                    new.hash.clone_from(&e.hash);
                }
                old.map.release(bytes);
            }
        }
        Ok(())
    }

    fn finish(mut self, mut index: PackedIndex, place: &std::path::Path) -> std::io::Result<()> {
        index.entries = std::mem::take(&mut self.entries);
        let text = serde_json::to_vec(&index)?;
        let file = &mut self.partial.file;
        file.seek(SeekFrom::Start(self.at))?;
        file.write_all(&text)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&format::head(self.at, &text))?;
        self.partial.put(place)
    }
}
