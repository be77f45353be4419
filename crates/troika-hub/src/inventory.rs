//! The models in the cache, by the names that a user types for them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::cache;
use super::error::HubError;
use super::listing::is_token;
use super::name::{MAIN, RepoSpec, is_safe_path};
use super::pointers::pointers;
use super::select::{self, Selection};

/// In which format a model's weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// A folder of safetensors.
    Safetensors,
    /// A GGUF file, with the quantization that its name tells.
    Gguf(Option<String>),
}

/// A model in the cache that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The name for it: `owner/name`, `owner/name:Q4_K_M`, `owner/name@REVISION`.
    pub name: String,
    /// What is opened: a folder or a file.
    pub path: PathBuf,
    /// The format of its weights.
    pub format: WeightFormat,
    /// Bytes of its files.
    pub bytes: u64,
    /// When one of its files was last read or written, as far as the file system keeps that.
    pub used: SystemTime,
}

/// A repository of the cache without a model that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableRepository {
    /// Its folder.
    pub path: PathBuf,
    /// Why: a part of a sentence.
    pub why: String,
    /// Bytes of the files in it.
    pub bytes: u64,
}

/// What is in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The folder of the cache.
    pub place: PathBuf,
    /// Models, by name.
    pub models: Vec<HubModel>,
    /// Bytes of the models' files. What several share counts once.
    pub bytes: u64,
    /// Repositories without a model.
    pub unusable: Vec<UnusableRepository>,
}

/// The length of each file, by the place that links to it lead to.
type Lengths = BTreeMap<PathBuf, u64>;

/// Looks through a folder of the Hub's cache. One that does not exist is empty.
///
/// # Errors
/// The folder cannot be read.
pub fn inventory(dir: &Path) -> Result<Inventory, HubError> {
    let mut found = Inventory { place: dir.to_path_buf(), ..Inventory::default() };
    let homes = repositories(dir).map_err(|e| unreadable(dir, &e))?;
    let mut all = Lengths::new();
    for (name, home) in homes {
        match models_of(&name, &home, &mut all) {
            Ok(models) => found.models.extend(models),
            Err(why) => {
                let bytes = bytes_below(&home);
                found.unusable.push(UnusableRepository { path: home, why, bytes });
            }
        }
    }
    found.bytes = all.values().sum();
    Ok(found)
}

/// The error for a folder of the cache that cannot be read.
pub fn unreadable(place: &Path, error: &io::Error) -> HubError {
    HubError::Other(format!("cannot read the model cache at {}: {error}", place.display()))
}

/// The folders of repositories, each with its name, in order.
fn repositories(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut homes = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("models--") && path.is_dir() {
            homes.push((name, path));
        }
    }
    homes.sort();
    Ok(homes)
}

/// The names of the models in a repository's folder.
pub fn names_in(folder: &str, home: &Path) -> Vec<String> {
    let models = models_of(folder, home, &mut Lengths::new()).unwrap_or_default();
    models.into_iter().map(|model| model.name).collect()
}

/// The models of a repository, or why there is none.
fn models_of(folder: &str, home: &Path, all: &mut Lengths) -> Result<Vec<HubModel>, String> {
    let repo = repository(folder).ok_or("its name is not owner/name")?;
    let read = |place: &Path| std::fs::read_dir(place).map_err(|e| format!("cannot be read: {e}"));
    let (mut models, mut why) = (Vec::new(), "it has no snapshot".to_string());
    let entries = match home.join("snapshots") {
        snapshots if snapshots.exists() => read(&snapshots)?,
        _ => return Err(why),
    };
    let names = references(home);
    for entry in entries.flatten() {
        let commit = entry.file_name().to_string_lossy().into_owned();
        let snapshot = entry.path();
        if !is_token(&commit) || !snapshot.is_dir() {
            continue;
        }
        read(&snapshot)?;
        let at = match names.get(&commit) {
            Some(name) if name == MAIN => String::new(),
            Some(name) => format!("@{name}"),
            None => format!("@{commit}"),
        };
        match models_in(&snapshot, all) {
            Ok(found) => models.extend(found.into_iter().map(|(choice, model)| HubModel {
                name: format!("{repo}{}{at}", choice.map_or(String::new(), |c| format!(":{c}"))),
                ..model
            })),
            Err(missing) => why = missing,
        }
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    if models.is_empty() { Err(why) } else { Ok(models) }
}

/// The models of a snapshot, each with what follows the colon in its name, or what is missing.
fn models_in(
    snapshot: &Path,
    all: &mut Lengths,
) -> Result<Vec<(Option<String>, HubModel)>, String> {
    let files = cache::files(snapshot);
    let selections = select::models(&files);
    let mut why = "it has no complete weights that can be used".to_string();
    let mut models = Vec::new();
    for selection in &selections {
        if let Some(missing) = cache::missing_file(snapshot, &files, selection) {
            why = format!("{missing} is missing");
            continue;
        }
        let choice = selection.entry.as_ref().map(|file| select::choice(&files, file));
        models.push((choice, model(snapshot, selection, all)));
    }
    if models.is_empty() { Err(why) } else { Ok(models) }
}

fn model(snapshot: &Path, selection: &Selection, all: &mut Lengths) -> HubModel {
    let (mut own, mut used) = (Lengths::new(), UNIX_EPOCH);
    for path in selection.files.iter().map(|name| snapshot.join(name)) {
        let Ok(meta) = path.metadata() else { continue };
        let times = [meta.accessed(), meta.modified()];
        used = times.into_iter().flatten().fold(used, SystemTime::max);
        own.insert(path.canonicalize().unwrap_or(path), meta.len());
    }
    let bytes = own.values().sum();
    all.append(&mut own);
    let format = match &selection.entry {
        Some(file) => WeightFormat::Gguf(select::quantization(file)),
        None => WeightFormat::Safetensors,
    };
    let path = cache::entry(snapshot, selection);
    HubModel { name: String::new(), path, format, bytes, used }
}

/// `owner/name`, if a name that can be typed leads to this folder.
fn repository(folder: &str) -> Option<String> {
    let repo = folder.strip_prefix("models--")?.replacen("--", "/", 1);
    let spec = RepoSpec::parse(&repo).ok()?;
    (spec.repo == repo && spec.folder() == folder).then_some(repo)
}

/// The name of each commit that has one: `main`, if that is one of several.
fn references(home: &Path) -> BTreeMap<String, String> {
    let refs = home.join("refs");
    let mut names = BTreeMap::new();
    for name in cache::files(&refs).into_iter().filter(|name| is_safe_path(name)) {
        let Ok(commit) = std::fs::read_to_string(refs.join(&name)) else { continue };
        let known = names.entry(commit.trim().to_string()).or_insert_with(|| name.clone());
        if name == MAIN {
            *known = name;
        }
    }
    names
}

/// Bytes of the files below a folder. Links are not followed.
pub fn bytes_below(folder: &Path) -> u64 {
    let files = pointers(folder).unwrap_or_default();
    let metas = files.iter().filter_map(|file| file.path.symlink_metadata().ok());
    metas.filter(|meta| meta.is_file()).map(|meta| meta.len()).sum()
}
