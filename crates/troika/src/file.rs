//! Writes files completely or not at all: first beside the place, then renamed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Checks that a file can be written, before the work for its contents begins.
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
    let beside = beside(&target(path));
    File::create(&beside).and_then(|_| std::fs::remove_file(&beside))
}

/// The file that a link leads to, or the path itself.
fn target(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The temporary file beside it.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
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
    let beside = beside(&place);
    let written = File::create(&beside).and_then(|file| {
        fill(file.try_clone()?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &place)
    });
    written.inspect_err(|_| {
        // Removing may fail because the file was never created: the first error is reported.
        let _ = std::fs::remove_file(&beside);
    })
}
