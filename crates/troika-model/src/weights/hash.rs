//! Hashes of weights' bytes.
//!
//! Bytes are hashed in pieces of a fixed size on all cores, and the pieces' hashes together: the
//! result depends on the bytes alone. A file's hash is remembered beside the path, size, time of
//! change and inode of the file, so that a model is read for its hash only once.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::cache::partial;
use super::parallel;

/// Bytes of a piece.
const PIECE: usize = 4 << 20;

/// The hash of some bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> blake3::Hash {
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

/// What tells whether a file is still the one that was hashed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    path: PathBuf,
    size: u64,
    changed_ns: u128,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    file: Identity,
    hash: String,
}

fn identity(path: &Path) -> std::io::Result<Identity> {
    let path = path.canonicalize()?;
    let meta = std::fs::metadata(&path)?;
    let since = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Identity { size: meta.len(), changed_ns: since.as_nanos(), inode: inode(&meta), path })
}

#[cfg(unix)]
fn inode(meta: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(meta)
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> u64 {
    0
}

/// The hash of a file's bytes, remembered in the folder `records`. Files are read, not mapped:
/// mapped pages would count as this process's memory.
pub(super) fn of_file(path: &Path, records: &Path) -> std::io::Result<blake3::Hash> {
    let before = identity(path)?;
    let name = blake3::hash(before.path.as_os_str().as_encoded_bytes()).to_hex();
    let record = records.join(format!("{}.json", &name[..32]));
    if let Some(hash) = remembered(&record, &before) {
        return Ok(hash);
    }
    let pieces = usize::try_from(before.size.div_ceil(PIECE as u64)).unwrap_or(usize::MAX);
    let hashes = parallel::map(pieces, |i| hash_piece(path, i as u64 * PIECE as u64));
    let hash = combine(hashes.into_iter().collect::<std::io::Result<_>>()?);
    if identity(path)? == before {
        // To be without a record costs time on the next start, nothing else.
        let text = serde_json::to_vec(&Record { file: before, hash: hash.to_hex().to_string() });
        let _ = text.map_err(std::io::Error::other).and_then(|t| replace(&record, &t));
    }
    Ok(hash)
}

fn remembered(record: &Path, now: &Identity) -> Option<blake3::Hash> {
    let record: Record = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
    (record.file == *now).then(|| blake3::Hash::from_hex(record.hash).ok())?
}

fn hash_piece(path: &Path, at: u64) -> std::io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::with_capacity(PIECE);
    file.take(PIECE as u64).read_to_end(&mut bytes)?;
    Ok(blake3::hash(&bytes))
}

/// Writes a file whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = partial(path);
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}
