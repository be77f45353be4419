//! Finds and opens a model's files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use troika_model::files::{parse_json, read_small};
use troika_model::spec::GgufMeta;

use crate::error::WeightError;
use crate::format::file_map::{FileMap, damaged, io_error, not_a_model};
use crate::format::mapped::{MappedCheckpoint, MappedFiles};
use crate::format::{gguf, gguf_files, safetensors};

/// The kind of a model's files.
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
    pub files: Arc<dyn MappedCheckpoint>,
    /// Everything else.
    pub source: FileSource,
}

/// Opens a folder (with `config.json` and safetensors, or with one .gguf file) or a .gguf file.
///
/// # Errors
/// The path does not exist, the folder is not a model, or files are damaged.
pub fn open(path: &Path) -> Result<ModelFiles, WeightError> {
    let meta = std::fs::metadata(path).map_err(|e| io_error(path, &e))?;
    if meta.is_dir() { open_dir(path) } else { open_file(path) }
}

/// Opens a GGUF file inside this program; `name` stands for its path.
///
/// # Errors
/// The bytes are not a GGUF file.
pub fn open_inside(name: &str, bytes: &'static [u8]) -> Result<ModelFiles, WeightError> {
    let (files, meta) = gguf_files::of(FileMap::inside(name, bytes))?;
    let source = FileSource::Gguf { path: PathBuf::from(name), meta };
    Ok(ModelFiles { files: Arc::new(files), source })
}

/// The metadata and tensors that a GGUF file's header names, without the tensors' bytes: `start` is
/// the beginning of a file of `len` bytes. `None` if the header is longer.
///
/// # Errors
/// The bytes do not begin a GGUF file.
pub fn open_start(name: &str, start: &[u8], len: u64) -> Result<Option<ModelFiles>, WeightError> {
    let wrong = |why| damaged(Path::new(name), why);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let Some(header) = gguf::parse_start(start, len).map_err(wrong)? else { return Ok(None) };
    let mut files = MappedFiles::new(name.into());
    files.add_file(Arc::new(FileMap::inside(name, &[])));
    // Factors of positions are values, which are not there.
    for t in header.tensors.into_iter().filter(|t| !t.name.starts_with("rope_f")) {
        files.add(t.name, t.dtype, t.shape, 0..0)?;
    }
    let source = FileSource::Gguf { path: PathBuf::from(name), meta: header.meta };
    Ok(Some(ModelFiles { files: Arc::new(files), source }))
}

/// The files that a model of this path is read from, as far as they are there: of a folder its
/// configs and weights, of a .gguf file all parts. Other files of the folder are somebody else's.
pub fn files_of_model(path: &Path) -> Vec<PathBuf> {
    const CONFIGS: &str = "config.json generation_config.json tokenizer.json \
        tokenizer_config.json chat_template.jinja";
    const WEIGHTS: [&str; 3] = [".safetensors", ".safetensors.index.json", ".gguf"];
    let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
    if path.is_dir() {
        let read = |n: String| {
            CONFIGS.split(' ').any(|c| c == n) || WEIGHTS.iter().any(|ending| n.ends_with(ending))
        };
        return files_of(path, |p| name(p).is_some_and(read));
    }
    let mut all = vec![path.to_path_buf()];
    let stem = |p: &Path| Some(name(p)?.rsplit_once("-of-")?.0.rsplit_once('-')?.0.to_string());
    if let (Some(folder), Some(parts)) = (path.parent(), stem(path)) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        all.extend(files_of(folder, |p| stem(p).is_some_and(|s| s == parts)));
    }
    all
}

fn open_file(path: &Path) -> Result<ModelFiles, WeightError> {
    let has_ending =
        |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
    if has_ending("safetensors") || has_ending("json") {
        return Err(not_a_model(path, "give the folder that holds it and config.json"));
    }
    let (files, meta) = match gguf_files::open(path) {
        Err(WeightError::Unsupported { .. }) if !has_ending("gguf") => {
            let why = "a model is a folder with config.json and safetensors, or a .gguf file";
            return Err(not_a_model(path, why));
        }
        opened => opened?,
    };
    let source = FileSource::Gguf { path: path.to_path_buf(), meta };
    Ok(ModelFiles { files: Arc::new(files), source })
}

fn open_dir(dir: &Path) -> Result<ModelFiles, WeightError> {
    let at = |name: &str| Some(dir.join(name)).filter(|p| p.exists());
    let (index, single) = (at("model.safetensors.index.json"), at("model.safetensors"));
    // One file that is there is what an index of other files was made into.
    let index = index.filter(|index| single.is_none() || safetensors::has_shards(index));
    let (config, weights) = (at("config.json"), index.as_ref().or(single.as_ref()));
    if config.is_none() || weights.is_none() {
        let mut ggufs = files_of(dir, first_part);
        if let (1, Some(one)) = (ggufs.len(), ggufs.pop()) {
            return open_file(&one);
        }
    }
    let config = config.map(|c| read_config(&c)).transpose()?;
    let (config, weights) = match (config, weights) {
        (Some(config), Some(weights)) => (config, weights),
        (c, w) => return Err(not_a_model(dir, missing(dir, c.is_some(), w.is_some()))),
    };
    let files = match index {
        Some(_) => safetensors::open_index(weights)?,
        None => safetensors::open(weights)?,
    };
    let source = FileSource::HuggingFace { dir: dir.to_path_buf(), config };
    Ok(ModelFiles { files: Arc::new(files), source })
}

fn read_config(path: &Path) -> Result<Value, WeightError> {
    let text = read_small(path).map_err(|e| io_error(path, &e))?;
    parse_json(&text).map_err(|e| damaged(path, format!("it is not JSON ({e})")))
}

/// A sentence about what a folder lacks.
fn missing(dir: &Path, has_config: bool, has_weights: bool) -> String {
    let ending = |p: &Path, e: &str| p.extension().is_some_and(|x| x == e);
    let torch = files_of(dir, |p| ending(p, "bin") || ending(p, "pth") || ending(p, "pt"));
    let ggufs = files_of(dir, first_part).len();
    match (has_config, has_weights) {
        _ if ggufs > 1 => format!("it has {ggufs} .gguf files, give the path of one"),
        (false, true) => "it has weights but no config.json".into(),
        (true, _) if !torch.is_empty() => {
            "its PyTorch weights are not read, convert them to safetensors".into()
        }
        (true, _) => "it has no model.safetensors (and no index of shards)".into(),
        (false, false) => "it has neither config.json nor one .gguf file".into(),
    }
}

/// The files of a folder that satisfy a condition.
fn files_of(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| wanted(p)).collect()
}

/// Whether a path is a .gguf file, but not a later part of a split one.
fn first_part(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(stem) = name.strip_suffix(".gguf") else { return false };
    // NAME-00002-of-00003
    let part = stem.rsplit_once("-of-").and_then(|(left, _)| Some(left.rsplit_once('-')?.1));
    part.and_then(|p| p.parse::<u32>().ok()).is_none_or(|part| part <= 1)
}
