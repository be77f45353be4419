//! Tensors of one or several mapped files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use troika_device::{WeightBytes, WeightOwner};
use troika_graph::DType;
use troika_model::spec::{Checkpoint, RawTensor, StoredTensor};

use crate::error::{WeightError, shown};
use crate::format::file_map::{FileMap, damaged};

/// A checkpoint with tensors in mapped files.
pub trait MappedCheckpoint: Checkpoint {
    /// The mapped files; empty for tensors in other memory.
    fn maps(&self) -> Vec<Arc<FileMap>> {
        Vec::new()
    }
}

/// A model's files of one format.
#[derive(Default)]
pub(crate) struct MappedFiles {
    /// Where tensors are missed that no file has.
    missed_in: String,
    files: Vec<String>,
    maps: Vec<Arc<FileMap>>,
    /// Tensors with the index of their file.
    tensors: BTreeMap<String, (StoredTensor, usize)>,
    /// Tensors that cannot be weights, with the index of their file.
    other: BTreeMap<String, (RawTensor, usize)>,
}

impl MappedFiles {
    /// No files; `missed_in` is where tensors are missed that no file has.
    pub fn new(missed_in: String) -> MappedFiles {
        MappedFiles { missed_in, ..MappedFiles::default() }
    }

    /// Adds a file. Its tensors are added after it.
    pub fn add_file(&mut self, map: Arc<FileMap>) {
        self.files.push(map.path().display().to_string());
        self.maps.push(map);
    }

    /// Adds a tensor of the last file: its type, or the name of one that weights cannot have.
    pub fn add(
        &mut self,
        name: String,
        dtype: Result<DType, String>,
        shape: Vec<usize>,
        range: Range<usize>,
    ) -> Result<(), WeightError> {
        let (Some(map), Some(file)) = (self.maps.last(), self.files.last()) else { return Ok(()) };
        let damaged = |why: &str| damaged(Path::new(file), why);
        let here = self.files.len() - 1;
        if let Some(there) = self.place(&name) {
            let (name, other) = (shown(&name), &self.files[there]);
            return Err(damaged(&format!("tensor {name} is in {other}, too")));
        }
        let owner: WeightOwner = map.clone();
        let bytes = WeightBytes::new(owner, range);
        let bytes = bytes.ok_or_else(|| damaged("a tensor lies past the end"))?;
        match dtype {
            Err(dtype) => _ = self.other.insert(name, (RawTensor { dtype, shape, bytes }, here)),
            Ok(dtype) => {
                self.tensors.insert(name, (StoredTensor { dtype, shape, bytes }, here));
            }
        }
        Ok(())
    }

    /// How many tensors the files have.
    pub fn count(&self) -> usize {
        self.tensors.len() + self.other.len()
    }

    /// The index of the file that holds a tensor.
    pub fn place(&self, name: &str) -> Option<usize> {
        let usable = self.tensors.get(name).map(|t| t.1);
        usable.or_else(|| self.other.get(name).map(|t| t.1))
    }
}

impl Checkpoint for MappedFiles {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name).map(|t| &t.0)
    }

    fn raw(&self, name: &str) -> Option<RawTensor> {
        let other = || self.other.get(name).map(|t| t.0.clone());
        let usable = |StoredTensor { dtype, shape, bytes }: &StoredTensor| RawTensor {
            dtype: dtype.name().into(),
            shape: shape.clone(),
            bytes: bytes.clone(),
        };
        self.tensor(name).map(usable).or_else(other)
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn origin(&self, name: &str) -> String {
        self.place(name).map_or(&self.missed_in, |file| &self.files[file]).clone()
    }

    fn unusable(&self, name: &str) -> Option<&str> {
        self.other.get(name).map(|t| t.0.dtype.as_str())
    }
}

impl MappedCheckpoint for MappedFiles {
    fn maps(&self) -> Vec<Arc<FileMap>> {
        self.maps.clone()
    }
}

/// Refuses two tensors of a file that share bytes.
pub(crate) fn refuse_overlap<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Range<usize>)>,
) -> Result<(), String> {
    let mut placed: Vec<_> = tensors.filter(|(_, range)| !range.is_empty()).collect();
    placed.sort_by_key(|(_, range)| range.start);
    match placed.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        Some(pair) => Err(format!("tensors {} and {} overlap", shown(pair[0].0), shown(pair[1].0))),
        None => Ok(()),
    }
}
