//! Memory-mapped files, releasing their pages, and files inside this program.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::WeightError;
use crate::format::shortened::Watch;

/// A file's bytes: memory-mapped, or part of this program.
///
/// If another program shortens the file while it is mapped, reading its lost pages ends the process
/// by a signal (SIGBUS on Unix); see [`crate::exit_when_shortened`].
pub struct FileMap {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped {
        // Declared before the map, so that watching ends before unmapping.
        _watch: Watch,
        map: Mmap,
        file: File,
    },
    Inside(&'static [u8]),
}

impl FileMap {
    pub(crate) fn new(path: &Path, file: File, map: Mmap) -> FileMap {
        let watch = Watch::new(path, &file, &map);
        let bytes = Bytes::Mapped { _watch: watch, map, file };
        FileMap { path: path.to_path_buf(), bytes }
    }

    /// Bytes inside this program; `name` is for messages.
    pub(crate) fn inside(name: &str, bytes: &'static [u8]) -> FileMap {
        FileMap { path: PathBuf::from(name), bytes: Bytes::Inside(bytes) }
    }

    /// The path it was opened at, which may name another file by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file that is mapped; `None` for bytes inside this program.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::Mapped { file, .. } => Some(file),
            Bytes::Inside(_) => None,
        }
    }

    /// Tells the system that these bytes of the file are not needed for now. When used again, they
    /// are read from the system's cache or from disk.
    pub(crate) fn release(&self, bytes: &[u8]) -> bool {
        self.advise(bytes, release)
    }

    /// Asks the system to read these bytes of the file ahead.
    pub(crate) fn fetch(&self, bytes: &[u8]) -> bool {
        self.advise(bytes, fetch)
    }

    /// Asks for small pages for these bytes of the file. Reading a row then maps only its
    /// surroundings, not the whole huge page in which the system may keep the file.
    pub(crate) fn in_small_pages(&self, bytes: &[u8]) -> bool {
        self.advise(bytes, small_pages)
    }

    /// Says something of these bytes, if they are of the map: their offset and length in it.
    fn advise(&self, bytes: &[u8], say: fn(&Mmap, usize, usize)) -> bool {
        let Bytes::Mapped { map, .. } = &self.bytes else { return false };
        let (start, at) = (map.as_ptr() as usize, bytes.as_ptr() as usize);
        let inside = at >= start && at + bytes.len() <= start + map.len();
        if inside {
            say(map, at - start, bytes.len());
        }
        inside
    }
}

pub(crate) fn map_file(path: &Path) -> Result<FileMap, WeightError> {
    let io = |e: std::io::Error| io_error(path, &e);
    // Checked before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(std::io::Error::other("is not a regular file")));
    }
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read-only and private to this process. As with every memory-mapped
    // model, a file that another program shortens while it is in use ends the process (in order
    // where `exit_when_shortened` was called); the bytes are only ever read as plain numbers, so
    // changed contents give wrong numbers, no more.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    if map.starts_with(b"version https://git-lfs") {
        return Err(damaged(path, "it is a Git LFS pointer, not the file it stands for"));
    }
    Ok(FileMap::new(path, file, map))
}

/// Reads until the room is full or the file ends.
pub(crate) fn read_at(file: &File, offset: u64, room: &mut [u8]) -> std::io::Result<usize> {
    let mut at = 0;
    while at < room.len() {
        let (from, to) = (offset + at as u64, &mut room[at..]);
        #[cfg(unix)]
        let read = std::os::unix::fs::FileExt::read_at(file, to, from);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, to, from);
        match read {
            Ok(0) => break,
            Ok(bytes) => at += bytes,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            // What lies behind a page that is not whole cannot be read directly.
            Err(e) if at > 0 && e.kind() == std::io::ErrorKind::InvalidInput => break,
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

pub(crate) fn io_error(path: &Path, e: &std::io::Error) -> WeightError {
    WeightError::Other(format!("{}: {e}", path.display()))
}

pub(crate) fn damaged(path: &Path, why: impl Display) -> WeightError {
    let file = path.display();
    WeightError::Other(format!("{file} is damaged: {why}; download or convert it again"))
}

/// A folder that lacks a part of a model, or a file that is only a part of one.
pub(crate) fn not_a_model(path: &Path, why: impl Display) -> WeightError {
    WeightError::Other(format!("{} is not a model folder: {why}", path.display()))
}

impl AsRef<[u8]> for FileMap {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
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

#[cfg(target_os = "linux")]
fn small_pages(map: &Mmap, offset: usize, len: usize) {
    let _ = map.advise_range(memmap2::Advice::NoHugePage, offset, len);
}

/// Other systems are told nothing.
#[cfg(not(target_os = "linux"))]
fn small_pages(_: &Mmap, _: usize, _: usize) {}
#[cfg(not(unix))]
use {small_pages as fetch, small_pages as release};
