//! Files under construction.
//!
//! A file is written beside its place under a unique name and renamed when complete. Its process
//! holds a lock on it, which the system releases however the process ends. So a partial file
//! without a lock was abandoned, and the next start removes it. Unlike process numbers, locks also
//! work between containers, and between hosts if a network folder supports them. Without lock
//! support, files count as abandoned after a day without writes. A wrong guess only costs the other
//! process its file: it then fails to rename it and reports so.
//!
//! Nothing is synced to disk (`fsync`): after a system crash, a file may contain bytes that were
//! never written. Its hashes detect this, and it is made again.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The ending of names of partial files.
const ENDING: &str = "partial";
/// Without lock support, files not written for this long count as abandoned.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A partial file; removed when dropped.
pub struct Partial {
    path: PathBuf,
    /// What is written to.
    pub file: File,
}

impl Partial {
    /// Creates a partial file for `place`. Only its owner can read it.
    pub fn begin(place: &Path) -> Result<Partial> {
        Partial::begin_with(place, OpenOptions::new().write(true).create_new(true))
    }

    /// As [`Partial::begin`], with a folder that is made if it is not there. Only their owner can
    /// read them.
    pub(crate) fn begin_private(place: &Path) -> Result<Partial> {
        let (mut folder, mut options) = (DirBuilder::new(), OpenOptions::new());
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        folder.recursive(true).create(place.parent().unwrap_or(Path::new(".")))?;
        Partial::begin_with(place, options.write(true).create_new(true))
    }

    fn begin_with(place: &Path, options: &OpenOptions) -> Result<Partial> {
        for _ in 0..8 {
            let path = beside(place);
            let file = options.open(&path)?;
            let begun = Partial { path, file };
            // Until it is locked, another process may take it for abandoned.
            let taken = matches!(begun.file.try_lock(), Err(TryLockError::WouldBlock));
            if !taken && begun.path.exists() {
                return Ok(begun);
            }
        }
        Err(Error::other("another process removes files that are being written"))
    }

    /// Renames the complete file to its place.
    pub fn put(self, place: &Path) -> Result<()> {
        std::fs::rename(&self.path, place)
    }

    /// Writes a file completely or not at all.
    pub(crate) fn whole(place: &Path, bytes: &[u8]) -> Result<()> {
        let mut partial = Partial::begin_private(place)?;
        partial.file.write_all(bytes)?;
        partial.put(place)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // It is gone already if it was renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A name beside a file's place that no other process or thread uses.
fn beside(place: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let thread = format!("{:?}", std::thread::current().id());
    let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
    let mut name = place.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}-{digits}-{}.{ENDING}", std::process::id(), now.as_nanos()));
    place.with_file_name(name)
}

/// The final name of a file under construction; `None` for the name of any other file.
pub(crate) fn place_of(name: &str) -> Option<&str> {
    let (place, own) = name.strip_suffix(ENDING)?.strip_suffix('.')?.rsplit_once('.')?;
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    (own.split('-').count() == 3 && own.split('-').all(number)).then_some(place)
}

/// Removes what processes that ended left behind of files that they wrote for a place, as far as
/// that is possible.
pub fn remove_leftovers(place: &Path) {
    let folder = place.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = place.file_name().unwrap_or_default();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let is_file = entry.file_type().is_ok_and(|t| t.is_file());
        if is_file && file.to_str().and_then(place_of).is_some_and(|of| name == of) {
            let _ = remove_abandoned(&entry.path());
        }
    }
}

/// Removes a partial file or folder if it was abandoned. Returns whether it did. Folders have no lock.
pub(crate) fn remove_abandoned(path: &Path) -> bool {
    let is_old = || {
        let changed = path.metadata().and_then(|m| m.modified());
        changed.ok().and_then(|t| t.elapsed().ok()).is_some_and(|age| age > ABANDONED)
    };
    if path.is_dir() {
        return is_old() && std::fs::remove_dir_all(path).is_ok();
    }
    let Ok(file) = File::options().write(true).open(path) else { return false };
    let abandoned = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_old(),
    };
    // Removed under the lock, so that a process that just created it sees that it is gone.
    abandoned && std::fs::remove_file(path).is_ok()
}

/// Marks a file as used now, so that others are removed first. If that fails, files stay in the
/// order of their creation.
pub(crate) fn touch(path: &Path) {
    let _ = File::open(path).and_then(|f| f.set_modified(SystemTime::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_stay_and_left_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("sub/a.packed");
        let begun = Partial::begin_private(&place).unwrap();
        assert!(!remove_abandoned(&begun.path) && begun.path.exists());
        // As left by a killed process.
        let left = dir.path().join("sub/b.packed.1-2-3.partial");
        std::fs::write(&left, "left").unwrap();
        remove_leftovers(&place);
        assert!(left.exists() && begun.path.exists());
        remove_leftovers(&dir.path().join("sub/b.packed"));
        assert!(!left.exists());
        begun.put(&place).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("sub")).unwrap().count(), 1);
        drop(Partial::begin_private(&place).unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join("sub")).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_removed_meanwhile_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a.packed");
        let begun = Partial::begin_private(&place).unwrap();
        std::fs::remove_file(&begun.path).unwrap();
        assert!(begun.put(&place).is_err() && !place.exists());
    }

    #[test]
    fn names_of_files_under_construction_are_known() {
        let place = Path::new("dir/a.json");
        let name = beside(place).file_name().unwrap().to_str().unwrap().to_string();
        assert_eq!(place_of(&name), Some("a.json"));
        for other in ["a.json", "a.json.partial", "a.json.1-2.partial", "a.json.1-2-x.partial"] {
            assert_eq!(place_of(other), None, "{other}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/packed/a.packed");
        Partial::whole(&place, b"x").unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&place), 0o600);
        let parents: Vec<u32> = place.ancestors().skip(1).take(2).map(mode).collect();
        assert_eq!(parents, [0o700, 0o700]);
    }
}
