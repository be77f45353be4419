//! The links of snapshots to blobs, as a removal needs them: those that lead nowhere, too.

use std::io;
use std::path::{Path, PathBuf};

use super::cache;
use super::listing::is_token;

/// A file of a snapshot.
#[derive(Debug)]
pub struct Pointer {
    /// Its name below the folder that was looked through.
    pub name: String,
    /// Its place.
    pub path: PathBuf,
    /// The blob of this repository that it links to.
    pub blob: Option<String>,
}

/// All files below a folder, links included, even those that lead nowhere. Links to folders are not
/// followed: what they lead to lies elsewhere.
///
/// # Errors
/// A folder that cannot be read: then it is not known what uses a blob.
pub fn pointers(folder: &Path) -> io::Result<Vec<Pointer>> {
    let mut found = Vec::new();
    let mut open = Vec::new();
    if !folder.is_symlink() {
        open.push((folder.to_path_buf(), String::new()));
    }
    while let Some((folder, below)) = open.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                open.push((path, format!("{name}/")));
            } else {
                let blob = blob_of(&path);
                found.push(Pointer { name, path, blob });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The name of the blob that a link leads to, whether or not it is there.
fn blob_of(path: &Path) -> Option<String> {
    let target = path.parent()?.join(std::fs::read_link(path).ok()?);
    // A link may also lead to another link.
    blob_at(&target).or_else(|| blob_at(&path.canonicalize().ok()?))
}

fn blob_at(place: &Path) -> Option<String> {
    let is_in_blobs = place.parent()?.canonicalize().ok()?.ends_with("blobs");
    let name = place.file_name()?.to_str()?;
    (is_in_blobs && is_token(name)).then(|| name.to_string())
}

/// The names of the blobs in a folder, without what is still being fetched. A folder that is a link
/// has none: its blobs lie elsewhere.
pub fn blob_names(blobs: &Path) -> Vec<String> {
    if blobs.is_symlink() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(blobs).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| is_token(name)).collect()
}

/// The references to a commit, by name.
pub fn references_to(refs: &Path, commit: &str) -> Vec<String> {
    let named = |name: &String| {
        std::fs::read_to_string(refs.join(name)).is_ok_and(|text| text.trim() == commit)
    };
    cache::files(refs).into_iter().filter(named).collect()
}
