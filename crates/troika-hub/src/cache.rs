//! Looks up models in the local cache.

use std::io;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::name::{RepoSpec, is_safe_path};
use super::select::{CONFIG, INDEX, SelectError, Selection, select};

/// How many folders deep a snapshot is searched.
const DEPTH: usize = 4;

/// The model's path in the cache, if it is complete.
///
/// # Errors
/// What is missing, and where it was expected.
pub fn lookup(dir: &Path, spec: &RepoSpec) -> Result<PathBuf, HubError> {
    let absent = |missing: &str, place: &Path| {
        let place = place.display();
        let advice =
            "run once without HF_HUB_OFFLINE to fetch it, or give a folder or a .gguf file";
        HubError::of(&spec.model, format!("{missing} is not in the cache at {place}; {advice}"))
    };
    let home = dir.join(spec.folder());
    if !home.is_dir() {
        return Err(absent("the model", dir));
    }
    let snapshot = snapshot(&home, &spec.revision)
        .ok_or_else(|| absent(&format!("revision `{}`", spec.revision), &home))?;
    let names = files(&snapshot);
    let selection =
        select(&names, &spec.wanted).map_err(|unfit| absent(&describe(unfit), &snapshot))?;
    match missing_file(&snapshot, &names, &selection) {
        Some(name) => Err(absent(&name, &snapshot)),
        None => Ok(entry(&snapshot, &selection)),
    }
}

/// The path to open in a snapshot.
pub fn entry(snapshot: &Path, selection: &Selection) -> PathBuf {
    selection.entry.as_ref().map_or_else(|| snapshot.to_path_buf(), |file| snapshot.join(file))
}

/// Writes a small file completely or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = folder.join(format!(".{name}.{}.part", std::process::id()));
    std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&part);
    })
}

/// The folder of a revision: the one its reference names, or the folder of the commit itself.
pub fn snapshot(home: &Path, revision: &str) -> Option<PathBuf> {
    let commit = std::fs::read_to_string(home.join("refs").join(revision)).ok();
    let commit = commit.as_deref().map_or(revision, str::trim);
    let folder = home.join("snapshots").join(commit);
    (is_safe_path(commit) && folder.is_dir()).then_some(folder)
}

/// Sorted names of all files below a folder whose contents exist too.
pub fn files(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    list(folder, "", DEPTH, &mut names);
    names.sort();
    names
}

fn list(folder: &Path, below: &str, depth: usize, names: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        match entry.path().metadata() {
            Ok(meta) if meta.is_file() => names.push(name),
            Ok(meta) if meta.is_dir() && depth > 0 => {
                list(&entry.path(), &format!("{name}/"), depth - 1, names);
            }
            _ => {}
        }
    }
}

/// A missing file without which a folder of safetensors cannot be opened.
pub fn missing_file(snapshot: &Path, names: &[String], selection: &Selection) -> Option<String> {
    if selection.entry.is_some() {
        return None;
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if !has(CONFIG) {
        return Some(CONFIG.to_string());
    }
    if !has(INDEX) {
        // Without their list, it is unknown how many shards there should be.
        let whole = selection.files.iter().any(|name| name == "model.safetensors");
        let sharded = selection.files.iter().any(|name| name.contains("-of-"));
        return (!whole && sharded).then(|| INDEX.to_string());
    }
    let text = std::fs::read_to_string(snapshot.join(INDEX)).ok()?;
    let index: serde_json::Value = serde_json::from_str(&text).ok()?;
    let shards = index.get("weight_map")?.as_object()?.values().filter_map(|name| name.as_str());
    let mut missing: Vec<&str> = shards.filter(|name| !has(name)).collect();
    missing.sort_unstable();
    missing.first().map(|name| name.to_string())
}

/// What is missing, as a part of a sentence.
pub fn describe(unfit: SelectError) -> String {
    match unfit {
        SelectError::Weightless => "a file of weights".to_string(),
        SelectError::NoMatch(why, there) if there.is_empty() => format!("the file ({why})"),
        SelectError::NoMatch(why, there) => {
            format!("the file ({why}; there are: {})", there.join(", "))
        }
        SelectError::MissingPart(part) => part,
    }
}
