//! Removes models from the cache, and nothing outside of it.
//!
//! What names a model goes first: references, then links of snapshots. Blobs go last, each under its
//! lock and only if nothing else leads to it. A folder is renamed before it is emptied. So whoever
//! is stopped in the middle leaves a cache without the model, and perhaps bytes that the next
//! removal takes away.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::inventory::{self, bytes_below};
use super::name::{RepoSpec, Wanted};
use super::options::HubOptions;
use super::pointers::{Pointer, blob_names, pointers, references_to};
use super::{cache, lock, select};

/// How a folder is called that is being removed.
const LEFTOVER: &str = ".removed-";

/// A model of the cache that is to be removed.
#[derive(Debug)]
pub struct Removal {
    model: String,
    /// The cache, without links on the way to it.
    dir: PathBuf,
    /// The name of the repository's folder in it.
    folder: String,
    extent: Extent,
    /// The bytes that will become free.
    pub bytes: u64,
    /// The names of the models that go.
    pub names: Vec<String>,
}

/// How much of a repository goes.
#[derive(Debug)]
enum Extent {
    /// The link to a repository that lies elsewhere.
    Link,
    /// All of it.
    Repository,
    /// A revision, or files of one.
    Part { commit: String, names: Option<Vec<String>> },
}

impl Removal {
    /// Finds what a name stands for. `owner/name` is all of the repository, `owner/name@REVISION` one
    /// revision, and `owner/name:TAG` or `owner/name:FILE.gguf` a GGUF model.
    ///
    /// # Errors
    /// A malformed name, or one without anything in the cache.
    pub fn plan(model: &str, options: &HubOptions) -> Result<Removal, HubError> {
        let spec = RepoSpec::parse(model)?;
        let given = options.cache_dir.as_deref().ok_or(HubError::NoCache)?;
        let absent = |missing: &str, place: &Path| {
            HubError::of(model, format!("{missing} is not in the cache at {}", place.display()))
        };
        let dir = given.canonicalize().map_err(|_| absent("the model", given))?;
        let (folder, names) = (spec.folder(), Vec::new());
        let home = dir.join(&folder);
        let meta = home.symlink_metadata().map_err(|_| absent("the model", &dir))?;
        let whole = spec.wanted == Wanted::Default && !model.contains('@');
        let (model, extent) = (model.to_string(), Extent::Repository);
        let mut plan = Removal { model, dir, folder, extent, bytes: 0, names };
        if meta.is_symlink() {
            // Only the link is in the cache.
            plan.extent = if whole { Extent::Link } else { return Err(plan.outside(&home)) };
        } else if !whole {
            plan.extent = plan.part(&spec, &home, &absent)?;
        }
        plan.bytes = plan.freed_bytes()?;
        plan.names = match plan.extent {
            Extent::Repository | Extent::Link => inventory::names_in(&plan.folder, &home),
            _ => vec![plan.model.clone()],
        };
        Ok(plan)
    }

    /// Which part of a repository a name stands for. What would leave nothing is more than a part.
    fn part(
        &self,
        spec: &RepoSpec,
        home: &Path,
        absent: &dyn Fn(&str, &Path) -> HubError,
    ) -> Result<Extent, HubError> {
        let snapshot = cache::snapshot(home, &spec.revision)
            .ok_or_else(|| absent(&format!("revision `{}`", spec.revision), home))?;
        let commit = snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if snapshot.is_symlink() && spec.wanted != Wanted::Default {
            return Err(self.outside(&snapshot));
        }
        let files: Vec<String> =
            self.read(&snapshot, pointers(&snapshot))?.into_iter().map(|p| p.name).collect();
        let names = select::present_parts(&files, &spec.wanted)
            .map_err(|why| absent(&cache::describe(why), &snapshot))?;
        if names.len() < files.len() {
            return Ok(Extent::Part { commit, names: Some(names) });
        }
        let snapshots = home.join("snapshots");
        let entries = self.read(&snapshots, std::fs::read_dir(&snapshots))?;
        let part = Extent::Part { commit, names: None };
        Ok(if entries.count() > 1 { part } else { Extent::Repository })
    }

    /// Removes it. Returns the bytes that became free: none of what is gone already.
    ///
    /// # Errors
    /// Another program is fetching it, or something cannot be removed.
    pub fn run(&self) -> Result<u64, HubError> {
        self.remove_leftovers(&self.dir);
        let home = self.home();
        if home.symlink_metadata().is_err() {
            return Ok(0);
        }
        let freed = self.freed_bytes()?;
        match &self.extent {
            Extent::Link => std::fs::remove_file(&home)
                .or_else(|_| std::fs::remove_dir(&home))
                .map_err(|e| self.stuck(&home, e)),
            Extent::Repository => {
                if lock::any_held(&self.dir, &self.folder).map_err(|e| self.stuck(&home, e))? {
                    return Err(self.in_use());
                }
                self.remove_folder(&home, &self.dir)
            }
            Extent::Part { .. } => self.remove_part(&home),
        }?;
        Ok(freed)
    }

    /// Removes files of a repository, and the blobs that nothing else leads to.
    fn remove_part(&self, home: &Path) -> Result<(), HubError> {
        self.remove_leftovers(home);
        let going = self.going()?;
        going.iter().try_for_each(|pointer| self.check_inside(&pointer.path))?;
        let needed: BTreeSet<&String> = going.iter().filter_map(|p| p.blob.as_ref()).collect();
        let mut locks = Vec::new();
        for blob in self.unused_blobs(&going)? {
            let taken = lock::take(&self.dir, &self.folder, &blob);
            match taken.map_err(|e| self.stuck(&home.join("blobs").join(&blob), e))? {
                Some(lock) => locks.push((blob, lock)),
                None if needed.contains(&blob) => return Err(self.in_use()),
                // A download that is not linked yet.
                None => {}
            }
        }
        // Before there were locks, another program may have linked to a blob.
        let unused = self.unused_blobs(&going)?;
        match &self.extent {
            Extent::Part { commit, names: None } => self.remove_snapshot(home, commit)?,
            _ => going.iter().try_for_each(|pointer| self.remove_pointer(home, &pointer.path))?,
        }
        for (blob, _lock) in locks.iter().filter(|(blob, _)| unused.contains(blob)) {
            self.remove_file(&home.join("blobs").join(blob))?;
        }
        Ok(())
    }

    fn remove_snapshot(&self, home: &Path, commit: &str) -> Result<(), HubError> {
        let snapshot = home.join("snapshots").join(commit);
        self.check_inside(&snapshot)?;
        let refs = home.join("refs");
        for name in references_to(&refs, commit) {
            self.remove_file(&refs.join(name))?;
        }
        if snapshot.symlink_metadata().is_err() {
            return Ok(());
        }
        self.remove_folder(&snapshot, home)
    }

    /// Removes a file of a snapshot, and the folders that it leaves empty.
    fn remove_pointer(&self, home: &Path, path: &Path) -> Result<(), HubError> {
        self.remove_file(path)?;
        let snapshots = home.join("snapshots");
        for folder in path.ancestors().skip(1).take_while(|at| at.parent() != Some(&*snapshots)) {
            // One that is not empty stays.
            if std::fs::remove_dir(folder).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> Result<(), HubError> {
        self.check_inside(path)?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.stuck(path, e)),
            _ => Ok(()),
        }
    }

    /// Renames a folder to one in `to`, so that it goes at once, and removes that.
    fn remove_folder(&self, folder: &Path, to: &Path) -> Result<(), HubError> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let leftover = to.join(format!("{LEFTOVER}{name}-{}", std::process::id()));
        std::fs::rename(folder, &leftover).map_err(|e| self.stuck(folder, e))?;
        remove_tree(&leftover).map_err(|e| self.stuck(&leftover, e))
    }

    /// Removes what was left of earlier removals that were stopped.
    fn remove_leftovers(&self, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(LEFTOVER) {
                // It may be another process that is still at it.
                let _ = remove_tree(&entry.path());
            }
        }
    }

    /// The files of a snapshot that go.
    fn going(&self) -> Result<Vec<Pointer>, HubError> {
        let Extent::Part { commit, names } = &self.extent else { return Ok(Vec::new()) };
        let snapshot = self.home().join("snapshots").join(commit);
        if !snapshot.exists() {
            return Ok(Vec::new());
        }
        let mut all = self.read(&snapshot, pointers(&snapshot))?;
        all.retain(|pointer| names.as_ref().is_none_or(|names| names.contains(&pointer.name)));
        Ok(all)
    }

    /// The blobs that nothing leads to when some files are gone.
    fn unused_blobs(&self, going: &[Pointer]) -> Result<Vec<String>, HubError> {
        let home = self.home();
        let all = blob_names(&home.join("blobs"));
        let gone: BTreeSet<&Path> = going.iter().map(|pointer| &*pointer.path).collect();
        let snapshots = home.join("snapshots");
        let mut staying = self.read(&snapshots, pointers(&snapshots))?;
        staying.retain(|pointer| !gone.contains(&*pointer.path));
        let used: BTreeSet<String> = staying.into_iter().filter_map(|p| p.blob).collect();
        Ok(all.into_iter().filter(|blob| !used.contains(blob)).collect())
    }

    fn freed_bytes(&self) -> Result<u64, HubError> {
        let home = self.home();
        match self.extent {
            Extent::Link => return Ok(0),
            Extent::Repository => return Ok(bytes_below(&home)),
            Extent::Part { .. } => {}
        }
        let going = self.going()?;
        let blobs =
            self.unused_blobs(&going)?.into_iter().map(|blob| home.join("blobs").join(blob));
        let paths = blobs.chain(going.into_iter().map(|pointer| pointer.path));
        // A link has no bytes of its own.
        let length = |path: PathBuf| path.symlink_metadata().ok().filter(|meta| meta.is_file());
        Ok(paths.filter_map(length).map(|meta| meta.len()).sum())
    }

    fn home(&self) -> PathBuf {
        self.dir.join(&self.folder)
    }

    /// Refuses what a folder that is a link leads out of the repository.
    fn check_inside(&self, path: &Path) -> Result<(), HubError> {
        let folder = path.parent().unwrap_or(path);
        match folder.canonicalize() {
            Ok(real) if real.starts_with(self.home()) => Ok(()),
            Ok(_) => Err(self.outside(folder)),
            Err(e) => Err(self.stuck(path, e)),
        }
    }

    fn read<T>(&self, place: &Path, result: io::Result<T>) -> Result<T, HubError> {
        result.map_err(|e| inventory::unreadable(place, &e))
    }

    fn outside(&self, place: &Path) -> HubError {
        let place = place.display();
        let why = "leads out of the cache, and nothing is removed outside of it; remove the link";
        HubError::of(&self.model, format!("{place} {why} by hand"))
    }

    fn in_use(&self) -> HubError {
        let why = "another program is fetching it; wait for it or end it, and run again";
        HubError::of(&self.model, why)
    }

    fn stuck(&self, place: &Path, error: io::Error) -> HubError {
        HubError::of(&self.model, format!("cannot remove {}: {error}", place.display()))
    }
}

/// Removes a folder with all in it, or a link. What links lead to stays.
fn remove_tree(path: &Path) -> io::Result<()> {
    match path.symlink_metadata()?.is_symlink() {
        true => std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path)),
        false => std::fs::remove_dir_all(path),
    }
}
