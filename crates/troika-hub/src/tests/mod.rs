//! Tests with a hand-made cache and with a hub that runs in the test.

mod environment;
mod hostile;
mod inventory;
mod look;
mod offline;
mod online;
mod removal;
mod server;
mod token;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::http::Limits;
use super::{HubError, HubOptions, Progress, resolve_within};

/// A commit.
const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// Options with a cache in a folder.
fn options(dir: &Path) -> HubOptions {
    HubOptions { cache_dir: Some(dir.to_path_buf()), ..HubOptions::default() }
}

/// Resolves a model and collects its notes, one line each.
fn run(model: &str, options: &HubOptions) -> (Result<PathBuf, HubError>, Vec<String>) {
    run_within(model, options, quick())
}

/// Short timeouts, so that tests end quickly.
fn quick() -> Limits {
    Limits {
        connect: Duration::from_secs(2),
        answer: Duration::from_secs(2),
        silence: Duration::from_secs(1),
        listing: Duration::from_secs(2),
        tries: 3,
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_secs(2),
        others: Duration::from_secs(1),
    }
}

fn run_within(
    model: &str,
    options: &HubOptions,
    limits: Limits,
) -> (Result<PathBuf, HubError>, Vec<String>) {
    let told = RefCell::new(Vec::new());
    let result = resolve_within(model, options, limits, &|progress| {
        told.borrow_mut().push(match progress {
            Progress::Start { model, files, bytes } => format!("start {model} {files} {bytes:?}"),
            Progress::File { name, done, total } => format!("file {name} {done}/{total}"),
            Progress::Note(note) => format!("note {note}"),
        });
    });
    (result, told.into_inner())
}

/// The sentence of an error.
fn sentence(model: &str, options: &HubOptions) -> String {
    run(model, options).0.expect_err(model).to_string()
}

/// The names of a cache's models.
fn names(dir: &Path) -> Vec<String> {
    crate::inventory(dir).expect("a listing").models.into_iter().map(|m| m.name).collect()
}

/// A model in the cache as the Hub's own tools lay it out.
fn cached(dir: &Path, folder: &str, files: &[(&str, &str)]) -> PathBuf {
    let home = dir.join(folder);
    let snapshot = home.join("snapshots").join(SHA);
    for part in [home.join("refs"), home.join("blobs"), snapshot.clone()] {
        std::fs::create_dir_all(part).expect("folder");
    }
    std::fs::write(home.join("refs/main"), SHA).expect("ref");
    for (number, (name, text)) in files.iter().enumerate() {
        std::fs::write(home.join(format!("blobs/b{number}")), text).expect("blob");
        let up = "../".repeat(name.split('/').count() + 1);
        let pointer = snapshot.join(name);
        std::fs::create_dir_all(pointer.parent().expect("a parent")).expect("folder");
        link(Path::new(&format!("{up}blobs/b{number}")), &pointer);
    }
    snapshot
}

#[cfg(unix)]
fn link(target: &Path, pointer: &Path) {
    std::os::unix::fs::symlink(target, pointer).expect("link");
}

#[cfg(not(unix))]
fn link(target: &Path, pointer: &Path) {
    let blob = pointer.parent().expect("a parent").join(target);
    std::fs::copy(blob, pointer).expect("copy");
}
