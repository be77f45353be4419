//! Finding and opening a model's files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::error::WeightError;
use super::gguf::GgufFiles;
use super::gguf_meta::GgufMeta;
use super::safetensors::{self, SafetensorsFiles};

/// Where a model came from.
#[derive(Clone, Debug)]
pub enum FileSource {
    /// A Hugging Face folder.
    HuggingFace {
        /// The folder.
        dir: PathBuf,
        /// Its `config.json`.
        config: Value,
    },
    /// A GGUF file.
    Gguf {
        /// The (first) file.
        path: PathBuf,
        /// Its metadata.
        meta: GgufMeta,
    },
}

/// A model's opened files.
#[derive(Clone)]
pub struct ModelFiles {
    /// The tensors.
    pub files: Arc<dyn Checkpoint>,
    /// Everything else.
    pub source: FileSource,
}

/// Maps a file into memory.
pub(super) fn map_file(path: &Path) -> Result<Mmap, WeightError> {
    let io = |e: std::io::Error| WeightError::Io {
        path: path.display().to_string(),
        why: e.to_string(),
    };
    let file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.is_dir() {
        return Err(io(std::io::ErrorKind::IsADirectory.into()));
    }
    // SAFETY: the map is read-only and private to this process. As with every memory-mapped
    // model, a file that another program shortens while it is in use can end the process; the
    // bytes are only ever read as plain numbers, so changed contents give wrong numbers, no more.
    unsafe { Mmap::map(&file) }.map_err(io)
}

/// Opens a folder (with `config.json` and safetensors, or with one .gguf file) or a .gguf file.
///
/// # Errors
/// A path that is not there, a folder that is not a model, damaged files.
pub fn open(path: &Path) -> Result<ModelFiles, WeightError> {
    let meta = std::fs::metadata(path)
        .map_err(|e| WeightError::Io { path: path.display().to_string(), why: e.to_string() })?;
    if meta.is_dir() { open_dir(path) } else { open_file(path) }
}

fn open_file(path: &Path) -> Result<ModelFiles, WeightError> {
    if path.extension().is_some_and(|e| e == "safetensors") {
        return Err(WeightError::NotAModel {
            path: path.display().to_string(),
            why: "give the folder that holds it and config.json".into(),
        });
    }
    let (files, meta) = GgufFiles::open(path)?;
    let source = FileSource::Gguf { path: path.to_path_buf(), meta };
    Ok(ModelFiles { files: Arc::new(files), source })
}

fn open_dir(dir: &Path) -> Result<ModelFiles, WeightError> {
    let not_a_model =
        |why: &str| WeightError::NotAModel { path: dir.display().to_string(), why: why.into() };
    let config_path = dir.join("config.json");
    if !config_path.exists() {
        return match only_gguf(dir) {
            Some(file) => open_file(&file),
            None => Err(not_a_model("it has neither config.json nor one .gguf file")),
        };
    }
    let file = config_path.display().to_string();
    let text = std::fs::read(&config_path)
        .map_err(|e| WeightError::Io { path: file.clone(), why: e.to_string() })?;
    let config = serde_json::from_slice(&text)
        .map_err(|e| WeightError::Damaged { file, why: format!("it is not JSON ({e})") })?;
    let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    let files = if index.exists() {
        safetensors::shards(&index)?
    } else if single.exists() {
        vec![single]
    } else {
        return Err(not_a_model("it has no model.safetensors (and no index of shards)"));
    };
    let files = Arc::new(SafetensorsFiles::open(dir, &files)?);
    Ok(ModelFiles { files, source: FileSource::HuggingFace { dir: dir.to_path_buf(), config } })
}

/// The one .gguf file (or first part) of a folder.
fn only_gguf(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
    let first_part = |p: &PathBuf| {
        let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.ends_with(".gguf") && (!name.contains("-of-") || name.contains("-00001-of-"))
    };
    let mut files = entries.filter(first_part);
    let one = files.next()?;
    files.next().is_none().then_some(one)
}
