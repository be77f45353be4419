//! Writes files completely or not at all: first beside the place, then renamed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cache::{Partial, remove_leftovers};

/// Checks that a file can be written, before the work for its contents begins. Removes what killed
/// processes left behind of the same file.
///
/// # Errors
/// The path is a folder, or its folder is missing or not writable.
pub fn can_write(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // A pipe or device is opened only once, when there is something to write.
    if meta.is_ok_and(|m| !m.is_file()) {
        return Ok(());
    }
    let place = target(path);
    remove_leftovers(&place);
    Partial::begin(&place).map(drop)
}

/// The file that a link leads to, or the path itself.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Writes or replaces a file. Links stay links; pipes and devices are written directly.
///
/// # Errors
/// The file cannot be written; nothing is left behind then.
pub fn write_file(path: &Path, fill: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let fill = |file: File| {
        let mut out = io::BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    };
    // A pipe or device cannot be replaced by renaming.
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return File::create(path).and_then(fill);
    }
    // A link stays; its target is replaced.
    let place = target(path);
    let partial = Partial::begin(&place)?;
    fill(partial.file.try_clone()?)?;
    partial.file.sync_all()?;
    partial.put(&place)
}
