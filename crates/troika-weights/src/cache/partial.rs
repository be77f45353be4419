//! Files under construction.
//!
//! A file is written beside its place under a name of its own and renamed when it is whole. While
//! it is written its process holds a lock on it, which the system takes back however the process
//! ends, so a partial file whose lock is free was left behind and is removed by the next start, or
//! by whoever writes the same file again.
//! Processes of other containers, and of other hosts where a network folder's locks reach them,
//! are seen so; process numbers would not tell. Where files cannot be locked, those count as left
//! behind that were not written to for a day. A wrong guess costs the other process no more than
//! the file: it cannot rename it then and says so.
//!
//! Nothing waits for the disk (`fsync`): a start that is the first after a crash of the system may
//! find a file with bytes that were never written. Its hashes tell, and it is made again.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How file names of files under construction end.
const ENDING: &str = "partial";
/// Files that were not written to for so long were left behind, where locks do not tell.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A file under construction; removed when it is dropped.
pub struct Partial {
    path: PathBuf,
    /// What is written to.
    pub file: File,
}

impl Partial {
    /// Begins a file that will be put at `place`, in a folder that is there.
    ///
    /// # Errors
    /// A folder that cannot be written to.
    pub fn begin(place: &Path) -> Result<Partial> {
        Partial::begin_with(place, OpenOptions::new().write(true).create_new(true))
    }

    /// As [`Partial::begin`], with a folder that is made if it is not there. Only their owner can
    /// read them.
    pub(crate) fn begin_private(place: &Path) -> Result<Partial> {
        private_folder(place.parent().unwrap_or(Path::new(".")))?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Partial::begin_with(place, &options)
    }

    fn begin_with(place: &Path, options: &OpenOptions) -> Result<Partial> {
        for _ in 0..8 {
            let path = beside(place);
            let file = options.open(&path)?;
            let begun = Partial { path, file };
            // Another process may take a file for abandoned until it is locked.
            let taken = matches!(begun.file.try_lock(), Err(TryLockError::WouldBlock));
            if !taken && begun.path.exists() {
                return Ok(begun);
            }
        }
        Err(Error::other("another process removes files that are being written"))
    }

    /// Puts the whole file in its place.
    ///
    /// # Errors
    /// A place that cannot be written to.
    pub fn put(self, place: &Path) -> Result<()> {
        std::fs::rename(&self.path, place)
    }

    /// Writes a file whole or not at all.
    pub(crate) fn whole(place: &Path, bytes: &[u8]) -> Result<()> {
        let mut partial = Partial::begin_private(place)?;
        partial.file.write_all(bytes)?;
        partial.put(place)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already when it was put in its place.
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

/// The name of the place that a file under construction is for, if its name is that of one.
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

/// Makes a folder, and those above it, that only its owner can open.
fn private_folder(path: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Removes a partial file that its process left behind, and tells whether it did.
pub(crate) fn remove_abandoned(path: &Path) -> bool {
    let Ok(file) = File::options().write(true).open(path) else { return false };
    let abandoned = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => {
            let changed = file.metadata().and_then(|m| m.modified());
            changed.ok().and_then(|t| t.elapsed().ok()).is_some_and(|age| age > ABANDONED)
        }
    };
    // Removed while it is locked: a process that just began it sees that it is gone.
    abandoned && std::fs::remove_file(path).is_ok()
}

/// Notes that a file was used now, so that others are removed before it. Where that cannot be
/// written, the order is that of making.
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
        // As a process leaves it that is killed.
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
