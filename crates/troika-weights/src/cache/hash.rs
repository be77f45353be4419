//! Hashes of the bytes of weights.
//!
//! All cores hash pieces of a fixed size, and the hashes of pieces are hashed together, so the
//! result depends on the bytes alone. A record remembers a file's hash with its path and [`Stamp`],
//! so that a model is hashed only once.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cache::{Partial, touch};
use crate::format::file_map::{FileMap, read_at};
use crate::parallel;

/// Bytes of a piece.
const PIECE: usize = 4 << 20;
/// A hash is not remembered if the file was changed more recently than this. Timestamps may be so
/// coarse that a later change would not show.
const SETTLED: Duration = Duration::from_secs(2);

/// Most bytes of a record that is read.
const MAX_RECORD: u64 = 64 << 10;

pub(crate) fn of_bytes(bytes: &[u8]) -> blake3::Hash {
    if bytes.len() <= PIECE {
        return blake3::hash(bytes);
    }
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
    combine(parallel::map(pieces.len(), |i| blake3::hash(pieces[i])))
}

fn combine(pieces: Vec<blake3::Hash>) -> blake3::Hash {
    let mut all = blake3::Hasher::new_derive_key("troika 2026 hash of pieces");
    pieces.iter().for_each(|p| _ = all.update(p.as_bytes()));
    all.finalize()
}

/// A file's metadata, which changes when its bytes do. The inode's change time cannot be set back,
/// unlike the modification time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    size: u64,
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds.
    modified: [i64; 2],
    changed: [i64; 2],
}

impl Stamp {
    pub fn of(file: &File) -> std::io::Result<Stamp> {
        Ok(stamp(&file.metadata()?))
    }

    /// Whether the last change is old enough that another one will show.
    fn is_settled(&self, now: SystemTime) -> bool {
        let [seconds, nanos] = self.modified.max(self.changed);
        let parts = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
        let last = parts.map(|(s, n)| UNIX_EPOCH + Duration::new(s, n));
        // A time in the future comes from another clock.
        last.and_then(|t| now.duration_since(t).ok()).is_some_and(|age| age > SETTLED)
    }
}

#[cfg(unix)]
fn stamp(meta: &Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    Stamp {
        size: meta.len(),
        device: meta.dev(),
        inode: meta.ino(),
        modified: [meta.mtime(), meta.mtime_nsec()],
        changed: [meta.ctime(), meta.ctime_nsec()],
    }
}

#[cfg(not(unix))]
fn stamp(meta: &Metadata) -> Stamp {
    let since = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let since = since.unwrap_or_default();
    let modified = [since.as_secs() as i64, i64::from(since.subsec_nanos())];
    Stamp { size: meta.len(), device: 0, inode: 0, modified, changed: modified }
}

/// A remembered hash.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    pub path: PathBuf,
    stamp: Stamp,
    hash: String,
}

impl Record {
    pub fn read(path: &Path) -> Result<Record, String> {
        let meta = std::fs::symlink_metadata(path).map_err(|e| e.to_string())?;
        if !meta.is_file() || meta.len() > MAX_RECORD {
            return Err("it is no record of a hash".into());
        }
        let text = std::fs::read(path).map_err(|e| e.to_string())?;
        let record: Record = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        blake3::Hash::from_hex(&record.hash).map_err(|e| e.to_string())?;
        Ok(record)
    }

    /// Whether the file is unchanged since it was hashed.
    pub fn is_current(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|m| stamp(&m) == self.stamp)
    }
}

/// The hash of a mapped file, remembered in the folder `records`, and the file's stamp. Bytes
/// inside this program have no stamp.
///
/// Reads the file that is mapped, whatever its path names now. It does not read through the map,
/// since mapped pages would count as this process's memory.
pub(crate) fn of_map(
    map: &FileMap,
    records: &Path,
) -> std::io::Result<(blake3::Hash, Option<Stamp>)> {
    let Some(file) = map.file() else { return Ok((of_bytes(map.as_ref()), None)) };
    let (before, now) = (Stamp::of(file)?, SystemTime::now());
    // The path only finds the record; the stamp tells whether it is for this file.
    let path = map.path().canonicalize().unwrap_or_else(|_| map.path().to_path_buf());
    let name = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
    let record = records.join(format!("{}.json", &name[..32]));
    if let Some(hash) = remembered(&record, &before) {
        return Ok((hash, Some(before)));
    }
    let len = map.as_ref().len();
    let hashes = parallel::map(len.div_ceil(PIECE), |i| {
        hash_piece(file, i * PIECE..len.min((i + 1) * PIECE))
    });
    let hash = combine(hashes.into_iter().collect::<std::io::Result<_>>()?);
    if Stamp::of(file)? != before {
        return Err(std::io::Error::other(format!("{} is being changed", path.display())));
    }
    if before.is_settled(now) {
        // Without a record the next start only takes longer.
        let new = Record { path, stamp: before.clone(), hash: hash.to_hex().to_string() };
        let text = serde_json::to_vec(&new);
        let _ = text.map_err(std::io::Error::other).and_then(|t| Partial::whole(&record, &t));
    }
    Ok((hash, Some(before)))
}

fn remembered(record: &Path, now: &Stamp) -> Option<blake3::Hash> {
    let found = Record::read(record).ok()?;
    let hash = (found.stamp == *now).then(|| blake3::Hash::from_hex(found.hash).ok())?;
    touch(record);
    hash
}

fn hash_piece(file: &File, range: std::ops::Range<usize>) -> std::io::Result<blake3::Hash> {
    let mut bytes = vec![0; range.len()];
    if read_at(file, range.start as u64, &mut bytes)? < bytes.len() {
        let eof = std::io::ErrorKind::UnexpectedEof;
        return Err(std::io::Error::new(eof, "failed to fill whole buffer"));
    }
    Ok(blake3::hash(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::file_map::map_file;

    fn age(file: &Path, by: Duration) {
        let file = File::options().write(true).open(file).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }

    #[test]
    fn the_hash_is_of_what_is_mapped_not_of_what_the_path_names() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&file, "mapped").unwrap();
        std::fs::write(&other, "others").unwrap();
        let map = map_file(&file).unwrap();
        std::fs::rename(&other, &file).unwrap();
        let (hash, _) = of_map(&map, &dir.path().join("hashes")).unwrap();
        assert_eq!(hash, combine(vec![blake3::hash(b"mapped")]));
        let (hash, _) = of_map(&map_file(&file).unwrap(), &dir.path().join("hashes")).unwrap();
        assert_eq!(hash, combine(vec![blake3::hash(b"others")]));
    }

    #[cfg(unix)]
    #[test]
    fn contents_changed_in_place_with_their_time_kept_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, records) = (dir.path().join("a"), dir.path().join("hashes"));
        std::fs::write(&file, "before").unwrap();
        let time = std::fs::metadata(&file).unwrap().modified().unwrap();
        let map = map_file(&file).unwrap();
        // As if the record had been made long after the file.
        let (hash, stamp) = of_map(&map, &records).unwrap();
        let record = Record {
            path: file.canonicalize().unwrap(),
            stamp: stamp.unwrap(),
            hash: blake3::hash(b"remembered").to_hex().to_string(),
        };
        let name = blake3::hash(record.path.as_os_str().as_encoded_bytes()).to_hex();
        let place = records.join(format!("{}.json", &name[..32]));
        Partial::whole(&place, &serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(of_map(&map, &records).unwrap().0, blake3::hash(b"remembered"));
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&file, "after!").unwrap();
        File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        let after = of_map(&map, &records).unwrap().0;
        assert!(after != hash && after == combine(vec![blake3::hash(b"after!")]));
        assert!(!record.is_current());
    }

    #[test]
    fn a_file_that_was_just_changed_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let (file, records) = (dir.path().join("a"), dir.path().join("hashes"));
        std::fs::write(&file, "bytes").unwrap();
        age(&file, Duration::from_secs(3600));
        let map = map_file(&file).unwrap();
        let stamp = of_map(&map, &records).unwrap().1.unwrap();
        // Setting the time has just changed the inode.
        assert!(!cfg!(unix) || !records.exists());
        let now = SystemTime::now();
        assert!(stamp.is_settled(now + SETTLED + Duration::from_secs(1)));
        assert!(!cfg!(unix) || !stamp.is_settled(now));
        assert!(!stamp.is_settled(UNIX_EPOCH), "a change to come was trusted");
    }
}
