//! Memory-mapped files, and giving their pages back.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::shortened::Watch;

/// A memory-mapped file.
///
/// A file that another program shortens while it is mapped ends the process by a signal (SIGBUS
/// on Unix) when its lost pages are read; see [`super::exit_when_shortened`].
pub struct FileMap {
    // Before the map: what is unmapped must not be watched any more.
    _watch: Watch,
    path: PathBuf,
    map: Mmap,
    file: File,
}

impl FileMap {
    pub(super) fn new(path: &Path, file: File, map: Mmap) -> FileMap {
        let watch = Watch::new(path, &file, &map);
        FileMap { _watch: watch, path: path.to_path_buf(), map, file }
    }

    /// Where it was found. The path may name another file by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file whose bytes are mapped.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Tells the system that these bytes are not needed for now, if they are the file's. They are
    /// read again from the system's cache, or from disk, when somebody looks at them.
    pub(super) fn release(&self, bytes: &[u8]) -> bool {
        let at = self.offset_of(bytes);
        at.is_some_and(|at| {
            release(&self.map, at, bytes.len());
            true
        })
    }

    /// Asks the system to read these bytes ahead, if they are the file's.
    pub(super) fn fetch(&self, bytes: &[u8]) -> bool {
        let at = self.offset_of(bytes);
        at.is_some_and(|at| {
            fetch(&self.map, at, bytes.len());
            true
        })
    }

    fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let (start, at) = (self.map.as_ptr() as usize, bytes.as_ptr() as usize);
        let inside = at >= start && at + bytes.len() <= start + self.map.len();
        inside.then(|| at - start)
    }
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
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
