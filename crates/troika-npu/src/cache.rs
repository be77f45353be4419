//! Compiled graphs that are kept for the next start.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::profiling::ProfilingLevel;
use crate::runtime::{Chosen, Runtime};

/// Where compiled graphs are kept. What it cannot keep or find is compiled again.
pub trait GraphCache: std::fmt::Debug + Send + Sync {
    /// The bytes of a key, if they are there and whole.
    fn get(&self, key: &GraphKey) -> Option<Vec<u8>>;

    /// Keeps the bytes of a key.
    fn put(&self, key: &GraphKey, bytes: &[u8]);

    /// The folder to make packages in; `None`: none can be kept.
    fn packages(&self) -> Option<PathBuf>;

    /// Keeps a folder with a package under its key, or takes the one that is there. Returns where it
    /// is.
    fn keep_package(&self, key: &GraphKey, made: &Path) -> Option<PathBuf>;
}

/// What a compiled graph depends on: the model with its weights, and what compiles it. A profiled
/// one may be compiled otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey(pub [u8; 32]);

impl GraphKey {
    pub(crate) fn new(
        runtime: &Runtime,
        chosen: Chosen,
        threads: usize,
        profiled: Option<ProfilingLevel>,
        model: &blake3::Hash,
    ) -> GraphKey {
        let mut hasher = blake3::Hasher::new();
        let (chosen_name, versions) = (chosen.to_string(), runtime.versions(chosen));
        let profiled = profiled.map_or("", |level| level.name());
        for part in [&*chosen_name, &*threads.to_string(), &*versions, profiled] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(model.as_bytes());
        GraphKey(*hasher.finalize().as_bytes())
    }
}

/// Where a package is.
pub(crate) struct PackageFolder {
    pub path: PathBuf,
    /// Removes it, unless it is kept.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub made: Option<TempDir>,
}
