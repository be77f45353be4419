//! Writing files: beside the place first, then renamed, so that there is never half a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use troika_weights::{Partial, remove_leftovers};

/// Whether a file can be written, asked before the work is done whose result it is to hold. What
/// processes that were killed left behind of the same file is removed.
///
/// # Errors
/// A folder in the file's place, or one that is not there or cannot be written to.
pub fn can_write(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path);
    if meta.as_ref().is_ok_and(|m| m.is_dir()) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // A pipe or device is opened once, when there is something to write.
    if meta.is_ok_and(|m| !m.is_file()) {
        return Ok(());
    }
    let place = target(path);
    remove_leftovers(&place);
    Partial::begin(&place).map(drop)
}

/// The file itself where the path is a link to one.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Writes a file, or replaces one. Links stay, and pipes and devices are written to.
///
/// # Errors
/// A file that cannot be written; nothing is left behind then.
pub fn write_file(path: &Path, fill: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let fill = |file: File| {
        let mut out = io::BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    };
    // A pipe or device cannot be renamed over.
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return File::create(path).and_then(fill);
    }
    // A link stays, and the file it leads to is replaced.
    let place = target(path);
    let partial = Partial::begin(&place)?;
    fill(partial.file.try_clone()?)?;
    partial.file.sync_all()?;
    partial.put(&place)
}
