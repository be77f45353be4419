//! Reads the small files of a model's folder.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::path::Path;

/// Several times the size of the largest tokenizer.
const LARGEST: u64 = 256 << 20;

/// Reads a config, tokenizer, template or index.
///
/// # Errors
/// The file cannot be read, is a pipe or device (which may never end), or is too large.
pub fn read_small(path: &Path) -> Result<Vec<u8>> {
    // Checked before opening: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() && !meta.is_dir() {
        return Err(Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(Error::other(format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_large_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read_small(&path).unwrap(), b"{}");
        // A sparse file, which takes no disk space.
        File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(read_small(&path).unwrap_err().to_string().contains("larger than 256 MiB"));
        assert!(read_small(dir.path()).is_err());
        assert!(read_small(&dir.path().join("absent")).is_err());
        #[cfg(unix)]
        assert!(read_small(Path::new("/dev/zero")).unwrap_err().to_string().contains("regular"));
    }
}
