//! Writing files: beside the place first, then renamed, so that there is never half a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Whether a file can be written, asked before the work is done whose result it is to hold.
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
    let beside = beside(&target(path));
    File::create(&beside).and_then(|_| std::fs::remove_file(&beside))
}

/// The file itself where the path is a link to one.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The file that is written first.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
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
    let beside = beside(&place);
    let written = File::create(&beside).and_then(|file| {
        fill(file.try_clone()?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &place)
    });
    written.inspect_err(|_| {
        // What could not be created cannot be removed either; both are reported as one.
        let _ = std::fs::remove_file(&beside);
    })
}
