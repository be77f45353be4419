//! Memory-mapped GGUF files, including split models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use troika_device::{WeightBytes, WeightOwner};
use troika_model::spec::{Checkpoint, GgufMeta, GgufValue, StoredTensor};

use crate::error::{WeightError, shown};
use crate::format::MappedCheckpoint;
use crate::format::file_map::FileMap;
use crate::format::file_map::map_file;
use crate::format::gguf::{foreign, parse};

/// A GGUF file, or all parts of a split one.
#[derive(Default)]
pub(crate) struct GgufFiles {
    parts: Vec<String>,
    maps: Vec<Arc<FileMap>>,
    /// Tensors with the index of their part.
    tensors: BTreeMap<String, (StoredTensor, usize)>,
    /// Types of unsupported tensors, with the index of their part.
    other: BTreeMap<String, (String, usize)>,
}

impl GgufFiles {
    /// Opens a mapped file that is not split.
    pub fn of(map: FileMap) -> Result<(GgufFiles, GgufMeta), WeightError> {
        let mut all = GgufFiles::default();
        let meta = all.add(map)?;
        Ok((all, meta))
    }

    /// Opens a file and, if it is the first of several parts, the others.
    pub fn open(path: &Path) -> Result<(GgufFiles, GgufMeta), WeightError> {
        let (mut all, meta) = GgufFiles::of(map_file(path)?)?;
        let number = |meta: &GgufMeta, key: &str| meta.get(key).and_then(GgufValue::as_u64);
        let parts = number(&meta, "split.count").unwrap_or(1);
        if parts <= 1 {
            return Ok((all, meta));
        }
        let damaged = |file: &Path, why| WeightError::Damaged { file: display(file), why };
        if let Some(this @ 1..) = number(&meta, "split.no") {
            let why =
                format!("it is part {} of {parts}, give the first part", this.saturating_add(1));
            return Err(WeightError::NotAModel { path: display(path), why });
        }
        for part in 2..=parts {
            let next = part_path(path, part, parts).ok_or_else(|| {
                let why = format!("it is the first of {parts} parts, but not named");
                damaged(path, format!("{why} NAME-00001-of-{parts:05}.gguf"))
            })?;
            let head = all.add(map_file(&next)?)?;
            let says = (number(&head, "split.no"), number(&head, "split.count"));
            if says != (Some(part - 1), Some(parts)) {
                return Err(damaged(&next, format!("it is not part {part} of {parts}")));
            }
        }
        let found = (all.tensors.len() + all.other.len()) as u64;
        match number(&meta, "split.tensors.count").filter(|&n| n != found) {
            Some(n) => Err(damaged(path, format!("its parts have {found} tensors, not {n}"))),
            None => Ok((all, meta)),
        }
    }

    fn add(&mut self, map: FileMap) -> Result<GgufMeta, WeightError> {
        let file = display(map.path());
        let damaged = |why: String| WeightError::Damaged { file: file.clone(), why };
        let map = Arc::new(map);
        if let Some(why) = foreign((*map).as_ref()) {
            return Err(WeightError::Unsupported { file, why });
        }
        let header = parse((*map).as_ref()).map_err(damaged)?;
        // The header was copied, and weights are read when needed.
        map.release((*map).as_ref());
        let owner: WeightOwner = map.clone();
        let here = self.parts.len();
        for t in header.tensors {
            if let Some(there) = self.part_of(&t.name) {
                let (name, other) = (shown(&t.name), &self.parts[there]);
                return Err(damaged(format!("tensor {name} is in {other}, too")));
            }
            match t.dtype {
                Err(kind) => _ = self.other.insert(t.name, (kind, here)),
                Ok(dtype) => {
                    let bytes = WeightBytes::new(owner.clone(), t.range)
                        .ok_or_else(|| damaged("a tensor lies past the end".into()))?;
                    let stored = StoredTensor { dtype, shape: t.shape, bytes };
                    self.tensors.insert(t.name, (stored, here));
                }
            }
        }
        self.parts.push(file);
        self.maps.push(map);
        Ok(header.meta)
    }

    fn part_of(&self, name: &str) -> Option<usize> {
        let usable = self.tensors.get(name).map(|t| t.1);
        usable.or_else(|| self.other.get(name).map(|t| t.1))
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// The path of another part of a split file.
fn part_path(first: &Path, part: u64, parts: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{parts:05}.gguf"))?;
    Some(first.with_file_name(format!("{stem}-{part:05}-of-{parts:05}.gguf")))
}

impl Checkpoint for GgufFiles {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name).map(|t| &t.0)
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn origin(&self, name: &str) -> String {
        let part = self.part_of(name).unwrap_or(0);
        self.parts.get(part).cloned().unwrap_or_default()
    }

    fn unusable(&self, name: &str) -> Option<&str> {
        self.other.get(name).map(|t| t.0.as_str())
    }
}

impl MappedCheckpoint for GgufFiles {
    fn maps(&self) -> Vec<Arc<FileMap>> {
        self.maps.clone()
    }
}
