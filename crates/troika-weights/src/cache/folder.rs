//! The folder of packed weights and remembered hashes: listing and removing its files.

use std::fs::DirEntry;
use std::io::{ErrorKind, Read, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::format::{Found, PackedIndex};
use super::partial::{Partial, place_of, remove_abandoned, touch};
use crate::cache::hash::Record;

/// Number of hexadecimal digits at the start of file names.
const DIGITS: usize = 32;
/// The ending of compiled graphs.
const GRAPH: &str = ".graph";
/// The ending of folders with a package of graphs.
const PACKAGE: &str = ".package";
/// What names of folders begin with in which a package is made.
const BEGUN: &str = ".coreml-";
/// The ending of what is known of devices.
const DEVICE: &str = ".device";
/// Hexadecimal digits that names of profiles end with.
const PROFILE_DIGITS: usize = 16;

troika_model::named! {
    /// The kinds of files in the folder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CacheKind {
        /// Packed weights of a model.
        Packed = "packed",
        /// The remembered hash of a model's file.
        Hash = "hash",
        /// A graph that an NPU's compiler has compiled.
        Graph = "graph",
        /// A folder with a package of graphs and its compiled form. What it holds is known to who
        /// writes it.
        Package = "package",
        /// What is known of a device and its driver. What it holds is known to who writes it.
        Device = "device",
        /// A profile of a model on devices, complete or begun. What it holds is known to who writes
        /// it.
        Profile = "profile",
        /// A file that is being written, or was left behind by a process that ended.
        Partial = "partial",
    }
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Its path.
    pub path: PathBuf,
    /// Its kind.
    pub kind: CacheKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// The time of its last use.
    pub used: SystemTime,
}

impl CacheFile {
    /// The index of a file of packed weights.
    ///
    /// # Errors
    /// Why the file is unusable.
    pub fn index(&self) -> std::result::Result<PackedIndex, String> {
        Found::read(&self.path).map(|f| f.index)
    }

    /// The path of the model file whose hash this record remembers.
    ///
    /// # Errors
    /// Why the record is unusable.
    pub fn hashed(&self) -> std::result::Result<PathBuf, String> {
        Record::read(&self.path).map(|r| r.path)
    }

    /// Reads the file and checks all its hashes. Packages have none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(&self) -> std::result::Result<(), String> {
        let checked = match self.kind {
            CacheKind::Packed => Found::read(&self.path).and_then(|f| f.verify()),
            CacheKind::Hash => self.hashed().map(drop),
            CacheKind::Graph => keyed(&self.path, GRAPH).map(drop),
            CacheKind::Device => keyed(&self.path, DEVICE).map(drop),
            CacheKind::Package | CacheKind::Profile | CacheKind::Partial => Ok(()),
        };
        // Another process may have removed it since the listing.
        checked.or_else(|why| match self.path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            _ => Err(why),
        })
    }

    /// Whether no future start will use it.
    fn is_useless(&self) -> bool {
        match self.kind {
            CacheKind::Packed => self.index().is_err(),
            CacheKind::Hash => !Record::read(&self.path).is_ok_and(|r| r.is_current()),
            // They may be gigabytes. One with other bytes behind its key is made again by the start
            // that needs it.
            CacheKind::Graph => !begins_with_key(&self.path, GRAPH),
            CacheKind::Device => keyed(&self.path, DEVICE).is_err(),
            CacheKind::Package | CacheKind::Profile | CacheKind::Partial => false,
        }
    }
}

/// The folder that stores packed weights and hashes of models.
///
/// Several processes may use it at once. A removed file remains available to processes that have it
/// mapped until they end (on Windows it cannot be removed then).
#[derive(Clone, Debug)]
pub struct CacheFolder {
    dir: PathBuf,
    most: u64,
}

impl CacheFolder {
    /// A folder, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> CacheFolder {
        CacheFolder { dir: dir.into(), most: u64::MAX }
    }

    /// The same folder, which may have so many bytes: the least recently used files are removed.
    #[must_use]
    pub fn within(self, most: u64) -> CacheFolder {
        CacheFolder { most, ..self }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The most bytes that it may have.
    pub fn most(&self) -> u64 {
        self.most
    }

    pub(crate) fn packed(&self) -> PathBuf {
        self.dir.join("packed")
    }

    pub(crate) fn hashes(&self) -> PathBuf {
        self.dir.join("hashes")
    }

    /// Where compiled graphs are, and packages are made.
    pub fn graphs(&self) -> PathBuf {
        self.dir.join("graphs")
    }

    fn graph_file(&self, key: &[u8]) -> PathBuf {
        self.graphs().join(keyed_name(key, GRAPH))
    }

    fn device_file(&self, key: &[u8]) -> PathBuf {
        self.dir.join("devices").join(keyed_name(key, DEVICE))
    }

    /// A compiled graph by its key, if it is there and whole.
    pub fn graph(&self, key: &[u8]) -> Option<Vec<u8>> {
        let path = self.graph_file(key);
        let (of, bytes) = keyed(&path, GRAPH).ok()?;
        touch(&path);
        (of == key).then_some(bytes)
    }

    /// Keeps a compiled graph under its key, in a cache of at most [`CacheFolder::most`] bytes.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn keep_graph(&self, key: &[u8; 32], bytes: &[u8]) -> Result<()> {
        self.keep_keyed(&self.graph_file(key), key, bytes)
    }

    /// Keeps a folder of [`CacheFolder::graphs`] with a package under its key, unless there is one.
    /// Returns where it is then.
    ///
    /// # Errors
    /// The folder cannot be renamed.
    pub fn keep_package(&self, key: &[u8; 32], made: &Path) -> Result<PathBuf> {
        let place = self.graphs().join(keyed_name(key, PACKAGE));
        if !place.is_dir() {
            std::fs::rename(made, &place)?;
        }
        touch(&place);
        // It is there, also if others cannot be removed.
        let _ = self.shrink(self.most, Some(&place));
        Ok(place)
    }

    /// What is kept of a device under a name; `None` if nothing is.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn of_device(&self, name: &str) -> std::result::Result<Option<Vec<u8>>, String> {
        let path = self.device_file(blake3::hash(name.as_bytes()).as_bytes());
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let (_, bytes) = keyed(&path, DEVICE).map_err(|e| format!("{}: {e}", path.display()))?;
        touch(&path);
        Ok(Some(bytes))
    }

    /// Keeps bytes of a device under a name, in a cache of at most [`CacheFolder::most`] bytes.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn keep_of_device(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let key = *blake3::hash(name.as_bytes()).as_bytes();
        self.keep_keyed(&self.device_file(&key), &key, bytes)
    }

    fn keep_keyed(&self, path: &Path, key: &[u8; 32], bytes: &[u8]) -> Result<()> {
        Partial::whole(path, &[key, blake3::keyed_hash(key, bytes).as_bytes(), bytes].concat())?;
        self.shrink(self.most, Some(path)).map(drop)
    }

    /// Where profiles are.
    pub fn profiles(&self) -> PathBuf {
        self.dir.join("profiles")
    }

    /// All files of the cache, the most recently used first. Other files are ignored.
    ///
    /// # Errors
    /// The folder cannot be read. A missing folder counts as empty.
    pub fn files(&self) -> Result<Vec<CacheFile>> {
        let mut all = Vec::new();
        let folders = [
            (self.packed(), CacheKind::Packed),
            (self.hashes(), CacheKind::Hash),
            (self.graphs(), CacheKind::Graph),
            (self.graphs(), CacheKind::Package),
            (self.dir.join("devices"), CacheKind::Device),
            (self.profiles(), CacheKind::Profile),
        ];
        for (dir, kind) in folders {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            for entry in entries {
                all.extend(file(&entry?, kind));
            }
        }
        all.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
        Ok(all)
    }

    /// Removes the least recently used files until the rest have at most `limit` bytes. Hashes are
    /// removed last. `keep` stays, and so do files that other processes are writing. Returns the
    /// removed files.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub fn shrink(&self, limit: u64, keep: Option<&Path>) -> Result<Vec<CacheFile>> {
        let mut files = self.files()?;
        files.retain(|f| !matches!(f.kind, CacheKind::Profile | CacheKind::Partial));
        files.reverse();
        files.sort_by_key(|f| f.kind == CacheKind::Hash);
        let mut total: u64 = files.iter().map(|f| f.bytes).sum();
        let mut removed = Vec::new();
        for file in files {
            if total <= limit {
                break;
            }
            if keep != Some(&file.path) {
                remove(&file.path)?;
                total = total.saturating_sub(file.bytes);
                removed.push(file);
            }
        }
        Ok(removed)
    }

    /// Removes files without future use: abandoned partial files, outdated ones and those whose
    /// beginning is damaged, hashes of files that are gone or changed, and profiles that `useless`
    /// names. Then does the same as [`CacheFolder::shrink`].
    ///
    /// # Errors
    /// Those of [`CacheFolder::shrink`].
    pub fn prune(
        &self,
        limit: u64,
        useless: &dyn Fn(&CacheFile) -> bool,
    ) -> Result<Vec<CacheFile>> {
        let mut removed = Vec::new();
        for file in self.files()? {
            if file.kind == CacheKind::Partial && remove_abandoned(&file.path) {
                removed.push(file);
            } else if file.is_useless() || (file.kind == CacheKind::Profile && useless(&file)) {
                remove(&file.path)?;
                removed.push(file);
            }
        }
        removed.extend(self.shrink(limit, None)?);
        Ok(removed)
    }

    /// Removes everything except files that other processes are writing.
    ///
    /// # Errors
    /// Those of [`CacheFolder::shrink`].
    pub fn clear(&self) -> Result<Vec<CacheFile>> {
        self.prune(0, &|_| true)
    }

    /// Removes files abandoned by ended processes, as far as possible.
    pub(crate) fn remove_abandoned(&self) {
        let partial = |f: &CacheFile| f.kind == CacheKind::Partial;
        for file in self.files().unwrap_or_default().into_iter().filter(partial) {
            let _ = remove_abandoned(&file.path);
        }
    }
}

/// The key and the bytes of a file that begins with the key and a hash of both.
fn keyed(path: &Path, ending: &str) -> std::result::Result<([u8; 32], Vec<u8>), String> {
    let mut file = std::fs::read(path).map_err(|e| e.to_string())?;
    let parts = file.split_first_chunk::<32>();
    let parts = parts.and_then(|(key, rest)| Some((*key, rest.split_first_chunk::<32>()?)));
    let whole = parts.filter(|(key, (hash, rest))| blake3::keyed_hash(key, rest) == **hash);
    let (key, _) = whole.ok_or("its bytes are not those of its hash")?;
    if path.file_name() != Some(keyed_name(&key, ending).as_ref()) {
        return Err("it is a copy of another file".into());
    }
    Ok((key, file.split_off(64)))
}

/// Whether such a file begins with its key. The rest is not read.
fn begins_with_key(path: &Path, ending: &str) -> bool {
    let mut head = [0; 64];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && path.file_name() == Some(keyed_name(&head, ending).as_ref())
}

/// The name of such a file.
fn keyed_name(key: &[u8], ending: &str) -> String {
    let digits: String = key.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}{ending}", &digits[..DIGITS])
}

/// A file, if its name and type show that it belongs to the cache.
fn file(entry: &DirEntry, kind: CacheKind) -> Option<CacheFile> {
    let path = entry.path();
    let name = path.file_name()?.to_str()?;
    let place = place_of(name);
    let named = is_named(place.unwrap_or(name), kind);
    let is_begun = place.is_some() || name.starts_with(BEGUN);
    // For a link, looks at the link. Opening a pipe would wait for its other end.
    let links = kind == CacheKind::Packed;
    let meta = entry.metadata().ok()?;
    let fits = match kind {
        CacheKind::Package => meta.is_dir(),
        _ => meta.is_file() || links && meta.is_symlink(),
    };
    if !named || !fits {
        return None;
    }
    let kind = if is_begun { CacheKind::Partial } else { kind };
    let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let bytes = if meta.is_dir() { bytes_in(&path) } else { meta.len() };
    Some(CacheFile { path, kind, bytes, used })
}

/// The bytes of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
        meta => meta.map_or(0, |meta| meta.len()),
    };
    entries.map(bytes).sum()
}

fn is_named(name: &str, kind: CacheKind) -> bool {
    let hex = |digits: &str| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let hashed = |ending: &str| {
        name.strip_suffix(ending).is_some_and(|digits| digits.len() == DIGITS && hex(digits))
    };
    match kind {
        CacheKind::Packed => hashed(".packed"),
        CacheKind::Hash => hashed(".json"),
        CacheKind::Graph => hashed(GRAPH),
        CacheKind::Package => hashed(PACKAGE) || name.starts_with(BEGUN),
        CacheKind::Device => hashed(DEVICE),
        CacheKind::Profile => {
            let name = name.strip_suffix(".partial").unwrap_or(name);
            let end = name.strip_suffix(".json").and_then(|stem| stem.rsplit_once('-'));
            end.is_some_and(|(_, digits)| digits.len() == PROFILE_DIGITS && hex(digits))
        }
        CacheKind::Partial => false,
    }
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        true => remove_package(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(std::io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Removes a package. If that is interrupted, no package of its name is left, but one that is begun.
fn remove_package(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let begun = path.with_file_name(format!("{BEGUN}{name}"));
    let _ = std::fs::remove_dir_all(&begun);
    std::fs::rename(path, &begun)?;
    std::fs::remove_dir_all(begun)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    fn add(dir: &Path, name: &str, bytes: usize, age: u64) -> PathBuf {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![0; bytes]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        path
    }

    fn packed(digit: char) -> String {
        format!("packed/{}.packed", String::from(digit).repeat(DIGITS))
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_hashes_last() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, kept] = [('a', 300), ('b', 100), ('c', 900)]
            .map(|(d, age)| add(dir.path(), &packed(d), 100, age));
        let hash = add(dir.path(), &format!("hashes/{}.json", "d".repeat(DIGITS)), 10, 999);
        let others = [
            add(dir.path(), "packed/notes.txt", 1000, 999),
            add(dir.path(), &format!("packed/{}.packed", "x".repeat(DIGITS)), 1000, 999),
            add(dir.path(), "packed/short.packed", 1000, 999),
            add(dir.path(), "model.safetensors", 1000, 999),
        ];
        let folder = CacheFolder::new(dir.path());
        assert_eq!(folder.files().unwrap().iter().map(|f| f.bytes).sum::<u64>(), 310);
        assert!(folder.shrink(310, None).unwrap().is_empty());
        let gone = |f: Vec<CacheFile>| f.into_iter().map(|f| f.path).collect::<Vec<_>>();
        assert_eq!(gone(folder.shrink(309, Some(&kept)).unwrap()), [old.as_path()]);
        assert_eq!(gone(folder.shrink(100, Some(&kept)).unwrap()), [new.clone(), hash.clone()]);
        assert!(kept.exists() && others.iter().all(|o| o.exists()));
        assert_eq!(gone(folder.clear().unwrap()), [kept]);
        assert!(others.iter().all(|o| o.exists()));
    }

    #[test]
    fn compiled_graphs_are_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CacheFolder::new(dir.path()).within(1000);
        let (one, other) = ([7; 32], [8; 32]);
        assert!(folder.graph(&one).is_none());
        folder.keep_graph(&one, b"compiled").unwrap();
        folder.keep_graph(&other, b"").unwrap();
        assert_eq!(folder.graph(&one).unwrap(), b"compiled");
        assert_eq!(folder.graph(&other).unwrap(), b"");
        let files = folder.files().unwrap();
        assert!(files.iter().all(|f| f.kind == CacheKind::Graph && f.verify().is_ok()));
        // Truncated, of another key, and with other bytes behind its own.
        let behind = [&one[..], &[0; 90]].concat();
        for (damage, pruned) in [(&b"short"[..], 1), (&[0; 80], 1), (&behind, 0)] {
            std::fs::write(folder.graph_file(&one), damage).unwrap();
            assert!(folder.graph(&one).is_none());
            assert_eq!(folder.files().unwrap().iter().filter(|f| f.verify().is_err()).count(), 1);
            assert_eq!(folder.prune(1000, &|_| false).unwrap().len(), pruned);
        }
        // That of another graph.
        std::fs::copy(folder.graph_file(&other), folder.graph_file(&one)).unwrap();
        assert!(folder.graph(&one).is_none());
        assert_eq!(folder.files().unwrap().iter().filter(|f| f.verify().is_err()).count(), 1);
        folder.clone().within(33).keep_graph(&one, b"compiled").unwrap();
        assert!(folder.graph(&one).is_some() && folder.graph(&other).is_none());
    }

    #[test]
    fn what_is_known_of_devices_is_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CacheFolder::new(dir.path()).within(1000);
        assert_eq!(folder.of_device("gpu 1"), Ok(None));
        folder.keep_of_device("gpu 1", b"fine").unwrap();
        assert_eq!(folder.of_device("gpu 1"), Ok(Some(b"fine".to_vec())));
        assert_eq!(folder.of_device("gpu 2"), Ok(None));
        let [file] = folder.files().unwrap().try_into().unwrap();
        assert!(file.kind == CacheKind::Device && file.verify().is_ok());
        std::fs::write(&file.path, "fine").unwrap();
        assert!(folder.of_device("gpu 1").is_err() && file.verify().is_err());
        assert_eq!(folder.prune(1000, &|_| false).unwrap().len(), 1);
    }

    #[test]
    fn packages_are_kept_as_folders() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CacheFolder::new(dir.path()).within(1000);
        let made = folder.graphs().join(".coreml-1");
        add(&made, "graphs.mlpackage/Data/model", 600, 10);
        let [begun] = folder.files().unwrap().try_into().unwrap();
        assert_eq!((begun.kind, begun.bytes), (CacheKind::Partial, 600));
        assert!(folder.prune(1000, &|_| false).unwrap().is_empty(), "it is being written");
        let kept = folder.keep_package(&[1; 32], &made).unwrap();
        add(&made, "graphs.mlpackage/Data/model", 600, 10);
        assert_eq!(folder.keep_package(&[1; 32], &made).unwrap(), kept);
        // The older one has no room beside it.
        let other = folder.keep_package(&[2; 32], &made).unwrap();
        let [file] = folder.files().unwrap().try_into().unwrap();
        assert_eq!((file.path, file.kind, file.bytes), (other, CacheKind::Package, 600));
        assert_eq!(folder.clear().unwrap().len(), 1);
        assert!(!kept.exists() && folder.files().unwrap().is_empty());
    }

    #[test]
    fn pruning_takes_what_is_of_no_use() {
        let dir = tempfile::tempdir().unwrap();
        add(dir.path(), &packed('a'), 5000, 10);
        add(dir.path(), &format!("hashes/{}.json", "b".repeat(DIGITS)), 10, 10);
        add(dir.path(), &format!("{}.7-1-5.partial", packed('c')), 10, 10);
        let profile = format!("profiles/llama-2x64-500-cpu-{}.json", "0".repeat(PROFILE_DIGITS));
        let profile = add(dir.path(), &profile, 10, 10);
        add(dir.path(), "profiles/notes.json", 10, 10);
        let used = super::super::Partial::begin_private(&dir.path().join(packed('d'))).unwrap();
        let folder = CacheFolder::new(dir.path()).within(1000);
        let gone =
            CacheFile { path: dir.path().join("gone"), ..folder.files().unwrap()[0].clone() };
        assert!(CacheFile { kind: CacheKind::Packed, ..gone }.verify().is_ok());
        let unsound = folder.files().unwrap().into_iter().filter(|f| f.verify().is_err());
        assert_eq!(unsound.count(), 2);
        assert_eq!(folder.prune(u64::MAX, &|_| false).unwrap().len(), 3);
        // Profiles took long to measure: the size of the cache is not their matter.
        assert!(folder.shrink(0, None).unwrap().is_empty() && profile.exists());
        let [one] = folder.prune(u64::MAX, &|_| true).unwrap().try_into().unwrap();
        assert_eq!((one.path, one.kind), (profile, CacheKind::Profile));
        let [left] = folder.files().unwrap().try_into().unwrap();
        assert_eq!(left.kind, CacheKind::Partial);
        assert!(folder.clear().unwrap().is_empty() && left.path.exists());
        drop(used);
        assert!(folder.files().unwrap().is_empty());
    }

    #[test]
    fn folders_that_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(CacheFolder::new(dir.path().join("none")).files().unwrap().is_empty());
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert!(CacheFolder::new(dir.path().join("file")).files().is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_removed_not_what_they_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = add(dir.path(), "precious", 1000, 10);
        add(dir.path(), &packed('a'), 1, 10);
        let link = dir.path().join(packed('b'));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let folder = CacheFolder::new(dir.path()).within(1000);
        assert_eq!(folder.clear().unwrap().len(), 2);
        assert!(target.exists() && link.symlink_metadata().is_err());
    }
}
