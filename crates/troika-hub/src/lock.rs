//! Locks on a blob of the cache, shared with the Hub's own tools.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

/// Held while a blob and its part are written. The system releases it when the program ends.
#[derive(Debug)]
pub struct Locks {
    _files: Vec<File>,
}

impl Locks {
    /// Takes the locks of a blob: that of the `hf-hub` crate (`blobs/ETAG.lock` in the repository's
    /// folder) and that of the `huggingface_hub` package (`.locks/FOLDER/ETAG.lock` in the cache).
    /// Both tools use `flock` on Unix, like `File::try_lock`. `None` if another program holds one.
    ///
    /// # Errors
    /// Lock files cannot be created.
    pub fn take(dir: &Path, folder: &str, etag: &str) -> io::Result<Option<Locks>> {
        let name = format!("{etag}.lock");
        let places = [dir.join(folder).join("blobs"), dir.join(".locks").join(folder)];
        let mut files = Vec::new();
        for place in places {
            std::fs::create_dir_all(&place)?;
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(place.join(&name))?;
            match file.try_lock() {
                Ok(()) => files.push(file),
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Some file systems have no locks: programs are not separated there.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Ok(Some(Locks { _files: files }))
    }
}
