//! Locks on a blob of the cache, shared with the Hub's own tools.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Where the locks on blobs of a repository lie: for the `hf-hub` crate `blobs/ETAG.lock` in the
/// repository's folder, for the `huggingface_hub` package `.locks/FOLDER/ETAG.lock` in the cache.
fn places(dir: &Path, folder: &str) -> [PathBuf; 2] {
    [dir.join(folder).join("blobs"), dir.join(".locks").join(folder)]
}

/// Whether any program holds a lock on a blob of a repository. Makes no lock files.
///
/// # Errors
/// A lock file that cannot be opened.
pub fn any_held(dir: &Path, folder: &str) -> io::Result<bool> {
    for place in places(dir, folder) {
        let entries = match std::fs::read_dir(&place) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let path = entry?.path();
            let is_lock = path.extension().is_some_and(|ending| ending == "lock");
            if !is_lock || !path.is_file() {
                continue;
            }
            // Network file systems want it open for writing, which others may not allow.
            let file = OpenOptions::new().write(true).open(&path).or_else(|_| File::open(&path))?;
            if held(&file)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Tries to take a lock; whether another program holds it.
fn held(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        // Some file systems have no locks: programs are not separated there.
        Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Takes the locks of a blob that the Hub's own tools take, too, while it and its part are written.
/// They use `flock` on Unix, like `File::try_lock`. The files hold them, at most until the program
/// ends. `None` if another program holds one.
pub fn take(dir: &Path, folder: &str, etag: &str) -> io::Result<Option<Vec<File>>> {
    let name = format!("{etag}.lock");
    let mut files = Vec::new();
    for place in places(dir, folder) {
        std::fs::create_dir_all(&place)?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(place.join(&name))?;
        if held(&file)? {
            return Ok(None);
        }
        files.push(file);
    }
    Ok(Some(files))
}
