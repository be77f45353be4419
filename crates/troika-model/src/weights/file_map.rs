//! Memory-mapped files, and giving their pages back; files a program holds itself.

use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::hash;

/// A file's bytes: memory-mapped, or part of this program.
pub struct FileMap {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Inside(&'static [u8]),
}

impl FileMap {
    pub(super) fn new(path: &Path, map: Mmap) -> FileMap {
        FileMap { path: path.to_path_buf(), bytes: Bytes::Mapped(map) }
    }

    /// Bytes of this program; `name` is for messages.
    pub(super) fn inside(name: &str, bytes: &'static [u8]) -> FileMap {
        FileMap { path: PathBuf::from(name), bytes: Bytes::Inside(bytes) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hash of its bytes; that of a file is remembered in the folder `records`.
    pub(super) fn hash(&self, records: &Path) -> std::io::Result<blake3::Hash> {
        match &self.bytes {
            Bytes::Mapped(_) => hash::of_file(&self.path, records),
            Bytes::Inside(bytes) => Ok(hash::of_bytes(bytes)),
        }
    }

    /// Tells the system that these bytes are not needed for now, if they are the file's. They are
    /// read again from the system's cache, or from disk, when somebody looks at them.
    pub(super) fn release(&self, bytes: &[u8]) -> bool {
        let Some((map, at)) = self.mapped(bytes) else { return false };
        release(map, at, bytes.len());
        true
    }

    /// Asks the system to read these bytes ahead, if they are the file's.
    pub(super) fn fetch(&self, bytes: &[u8]) -> bool {
        let Some((map, at)) = self.mapped(bytes) else { return false };
        fetch(map, at, bytes.len());
        true
    }

    /// The map, and where in it these bytes begin.
    fn mapped(&self, bytes: &[u8]) -> Option<(&Mmap, usize)> {
        let Bytes::Mapped(map) = &self.bytes else { return None };
        let (start, at) = (map.as_ptr() as usize, bytes.as_ptr() as usize);
        let inside = at >= start && at + bytes.len() <= start + map.len();
        inside.then(|| (map, at - start))
    }
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Inside(bytes) => bytes,
        }
    }
}

#[cfg(unix)]
fn release(map: &Mmap, offset: usize, len: usize) {
    use memmap2::UncheckedAdvice::DontNeed;
    // SAFETY: the map is of a file and read-only, so its pages come back with the same bytes. An
    // advice that is refused changes nothing.
    let _ = unsafe { map.unchecked_advise_range(DontNeed, offset, len) };
}

#[cfg(unix)]
fn fetch(map: &Mmap, offset: usize, len: usize) {
    let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
}

#[cfg(not(unix))]
fn release(_: &Mmap, _: usize, _: usize) {}

#[cfg(not(unix))]
fn fetch(_: &Mmap, _: usize, _: usize) {}
