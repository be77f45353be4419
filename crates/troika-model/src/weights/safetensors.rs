//! The safetensors format: a length, a JSON header, the data. Memory-mapped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use troika_device::{WeightBytes, WeightOwner};
use troika_graph::DType;

use super::checkpoint::{Checkpoint, StoredTensor};
use super::error::WeightError;
use super::open::map_file;

/// Largest header read, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Type name in the file (`F32`, `BF16`, `I64`, ...).
    pub dtype: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of the file.
    pub range: Range<usize>,
}

/// Parses the header at the start of a file of `file_len` bytes.
///
/// # Errors
/// A sentence that says what is wrong: lengths past the end, overlaps, sizes that do not match
/// shapes, bad JSON.
pub fn parse_header(
    start: &[u8],
    file_len: usize,
) -> Result<BTreeMap<String, TensorEntry>, String> {
    let head = start.get(..8).ok_or("it is shorter than the 8 bytes of a header length")?;
    let len = u64::from_le_bytes(head.try_into().map_err(|_| "no header length")?);
    if len > MAX_HEADER || len > (file_len as u64).saturating_sub(8) {
        return Err(format!("the header length {len} does not fit the file of {file_len} bytes"));
    }
    let data_start = 8 + len as usize;
    let json = start.get(8..data_start).ok_or("the header is cut short")?;
    let header: Value =
        serde_json::from_slice(json).map_err(|e| format!("the header is not JSON ({e})"))?;
    let map = header.as_object().ok_or("the header is not a JSON object")?;
    let mut entries = BTreeMap::new();
    for (name, value) in map.iter().filter(|(n, _)| *n != "__metadata__") {
        let entry = parse_entry(value, data_start, file_len)
            .map_err(|why| format!("tensor {name}: {why}"))?;
        entries.insert(name.clone(), entry);
    }
    check_overlap(&entries)?;
    Ok(entries)
}

fn parse_entry(v: &Value, data_start: usize, file_len: usize) -> Result<TensorEntry, String> {
    let dtype = v["dtype"].as_str().ok_or("has no dtype")?.to_string();
    let dims = v["shape"].as_array().ok_or("has no shape")?;
    let as_size = |d: &Value| d.as_u64().and_then(|d| usize::try_from(d).ok());
    let shape: Vec<usize> =
        dims.iter().map(as_size).collect::<Option<_>>().ok_or("has an impossible shape")?;
    let offsets = v["data_offsets"].as_array().ok_or("has no data_offsets")?;
    let [begin, end] = offsets.as_slice() else { return Err("needs two data_offsets".into()) };
    let (begin, end) =
        as_size(begin).zip(as_size(end)).ok_or("has data_offsets that are not sizes")?;
    let absolute = |o: usize| o.checked_add(data_start).filter(|&o| o <= file_len);
    let (Some(first), Some(last)) = (absolute(begin), absolute(end)) else {
        return Err(format!("its data ({begin}..{end}) lies past the end of the file"));
    };
    if begin > end {
        return Err(format!("its data ends ({end}) before it begins ({begin})"));
    }
    let bits = dtype_bits(&dtype).ok_or_else(|| format!("has the unknown type {dtype}"))?;
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let bytes = elements.and_then(|n| n.checked_mul(bits)).map(|b| b.div_ceil(8));
    if bytes != Some(end - begin) {
        return Err(format!("its {} bytes do not match {dtype} {shape:?}", end - begin));
    }
    Ok(TensorEntry { dtype, shape, range: first..last })
}

fn dtype_bits(name: &str) -> Option<usize> {
    Some(match name {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        n if n.starts_with("F8_") => 8,
        "I8" | "U8" | "BOOL" => 8,
        _ => return None,
    })
}

fn check_overlap(entries: &BTreeMap<String, TensorEntry>) -> Result<(), String> {
    let mut ranges: Vec<_> =
        entries.iter().filter(|(_, e)| !e.range.is_empty()).map(|(n, e)| (&e.range, n)).collect();
    ranges.sort_by_key(|(r, _)| r.start);
    for pair in ranges.windows(2) {
        let ((a, name_a), (b, name_b)) = (pair[0], pair[1]);
        if b.start < a.end {
            return Err(format!("tensors {name_a} and {name_b} overlap"));
        }
    }
    Ok(())
}

/// One or several safetensors files.
pub(super) struct SafetensorsFiles {
    dir: PathBuf,
    tensors: BTreeMap<String, (StoredTensor, String)>,
    /// Tensors of types no weight can have, with their file and type.
    other: BTreeMap<String, (String, String)>,
}

impl SafetensorsFiles {
    /// Opens a file, or all shards an index names.
    pub fn open(dir: &Path, files: &[PathBuf]) -> Result<SafetensorsFiles, WeightError> {
        let mut all = SafetensorsFiles {
            dir: dir.to_path_buf(),
            tensors: BTreeMap::new(),
            other: BTreeMap::new(),
        };
        files.iter().try_for_each(|f| all.add(f))?;
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<(), WeightError> {
        let file = path.display().to_string();
        let damaged = |why: String| WeightError::Damaged { file: file.clone(), why };
        let map = map_file(path)?;
        let entries = parse_header(&map, map.len()).map_err(damaged)?;
        let owner: WeightOwner = Arc::new(map);
        for (name, e) in entries {
            let dtype = match e.dtype.as_str() {
                "F32" => DType::F32,
                "F16" => DType::F16,
                "BF16" => DType::BF16,
                _ => {
                    self.other.insert(name, (file.clone(), e.dtype));
                    continue;
                }
            };
            let bytes = WeightBytes::new(owner.clone(), e.range)
                .ok_or_else(|| damaged("a tensor lies past the end".into()))?;
            let tensor = StoredTensor { dtype, shape: e.shape, bytes };
            if self.tensors.insert(name.clone(), (tensor, file.clone())).is_some() {
                return Err(damaged(format!("tensor {name} is in another shard, too")));
            }
        }
        Ok(())
    }
}

impl Checkpoint for SafetensorsFiles {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name).map(|t| &t.0)
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn origin(&self, name: &str) -> String {
        let file = self.tensors.get(name).map(|t| &t.1);
        file.or(self.other.get(name).map(|t| &t.0))
            .cloned()
            .unwrap_or_else(|| self.dir.display().to_string())
    }

    fn unusable(&self, name: &str) -> Option<&str> {
        self.other.get(name).map(|t| t.1.as_str())
    }
}

/// The shard files an index names.
pub(super) fn shards(index: &Path) -> Result<Vec<PathBuf>, WeightError> {
    let file = index.display().to_string();
    let damaged = |why: String| WeightError::Damaged { file: file.clone(), why };
    let text = std::fs::read(index)
        .map_err(|e| WeightError::Io { path: file.clone(), why: e.to_string() })?;
    let json: Value =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("it is not JSON ({e})")))?;
    let map =
        json["weight_map"].as_object().ok_or_else(|| damaged("it has no weight_map".into()))?;
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let dir = index.parent().unwrap_or(Path::new("."));
    let plain = |n: &&str| !n.is_empty() && !n.contains(['/', '\\']) && *n != "..";
    match names.iter().find(|n| !plain(n)) {
        Some(bad) => Err(damaged(format!("the shard name {bad:?} is not a file of this folder"))),
        None => Ok(names.iter().map(|n| dir.join(n)).collect()),
    }
}
