//! The GGUF format, versions 2 and 3. Memory-mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use troika_device::{WeightBytes, WeightOwner};
use troika_graph::DType;

use super::checkpoint::{Checkpoint, StoredTensor};
use super::error::WeightError;
use super::gguf_meta::{GgufMeta, GgufValue};
use super::open::map_file;

/// Nesting of metadata arrays that is read.
const MAX_DEPTH: usize = 4;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Element type, or the name of one this build does not read.
    pub dtype: Result<DType, String>,
    /// Bytes of the file (empty for types that are not read).
    pub range: Range<usize>,
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufHeader {
    /// Metadata.
    pub meta: GgufMeta,
    /// Tensors.
    pub tensors: Vec<GgufTensor>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Res<T> = Result<T, String>;

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, n: usize) -> Res<&'a [u8]> {
        if n > self.left() {
            return Err(format!("it ends at byte {} inside the header", self.bytes.len()));
        }
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn array<const N: usize>(&mut self) -> Res<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "short read".to_string())
    }

    fn u32(&mut self) -> Res<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Res<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of items of at least `min_bytes` each: more than the file holds is refused before
    /// anything is allocated.
    fn count(&mut self, what: &str, min_bytes: usize) -> Res<usize> {
        let n = self.u64()?;
        if n > (self.left() / min_bytes) as u64 {
            return Err(format!("it claims {n} {what}, more than its bytes can hold"));
        }
        Ok(n as usize)
    }

    fn string(&mut self) -> Res<String> {
        let n = self.count("bytes of text", 1)?;
        Ok(String::from_utf8_lossy(self.take(n)?).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Res<GgufValue> {
        use GgufValue::{Bool, Float, Int, Uint};
        Ok(match kind {
            0 => Uint(u64::from(self.array::<1>()?[0])),
            1 => Int(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Uint(u64::from(u16::from_le_bytes(self.array()?))),
            3 => Int(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Uint(u64::from(self.u32()?)),
            5 => Int(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Bool(self.array::<1>()?[0] != 0),
            8 => GgufValue::Str(self.string()?),
            9 => self.list(depth)?,
            10 => Uint(self.u64()?),
            11 => Int(i64::from_le_bytes(self.array()?)),
            12 => Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("it has a metadata value of unknown type {kind}")),
        })
    }

    fn list(&mut self, depth: usize) -> Res<GgufValue> {
        if depth == MAX_DEPTH {
            return Err("its metadata arrays are nested too deeply".into());
        }
        let kind = self.u32()?;
        let min = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => return Err(format!("it has a metadata array of unknown type {kind}")),
        };
        let n = self.count("array items", min)?;
        (0..n).map(|_| self.value(kind, depth + 1)).collect::<Res<_>>().map(GgufValue::Array)
    }
}

/// Parses a whole header; `bytes` is the whole file.
///
/// # Errors
/// A sentence that says what is wrong: another format or version, counts or offsets past the end,
/// impossible shapes.
pub fn parse(bytes: &[u8]) -> Result<GgufHeader, String> {
    let mut r = Reader { bytes, at: 0 };
    if r.take(4).ok() != Some(b"GGUF") {
        return Err("it does not start with GGUF".into());
    }
    match r.u32()? {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 2 | 3) => {
            return Err("it is big-endian, only little-endian files are read".into());
        }
        v => return Err(format!("it has version {v}, versions 2 and 3 are read")),
    }
    // A tensor takes at least name length, dimensions, type and offset; a pair at least 13.
    let tensor_count = r.count("tensors", 24)?;
    let pair_count = r.count("metadata pairs", 13)?;
    let mut meta = BTreeMap::new();
    for _ in 0..pair_count {
        let key = r.string()?;
        let kind = r.u32()?;
        let value = r.value(kind, 0).map_err(|e| format!("{e} (key {key})"))?;
        if meta.insert(key.clone(), value).is_some() {
            return Err(format!("metadata key {key} appears twice"));
        }
    }
    let meta = GgufMeta(meta);
    let infos = (0..tensor_count).map(|_| tensor_info(&mut r)).collect::<Res<Vec<_>>>()?;
    let align = match meta.get("general.alignment") {
        None => 32,
        Some(v) => v
            .as_u64()
            .filter(|a| a.is_power_of_two() && *a <= 1 << 20)
            .ok_or("general.alignment is not a power of two")? as usize,
    };
    let data = r.at.next_multiple_of(align);
    let mut names = BTreeSet::new();
    let mut tensors = Vec::with_capacity(infos.len());
    for info in infos {
        if !names.insert(info.name.clone()) {
            return Err(format!("tensor {} appears twice", info.name));
        }
        tensors.push(place(info, data, bytes.len())?);
    }
    Ok(GgufHeader { meta, tensors })
}

struct Info {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

fn tensor_info(r: &mut Reader<'_>) -> Res<Info> {
    let name = r.string()?;
    let dims = r.u32()?;
    if dims > 4 {
        return Err(format!("tensor {name} has {dims} dimensions, at most 4 are possible"));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let d = r.u64()?;
        shape.push(usize::try_from(d).map_err(|_| format!("tensor {name} is too large"))?);
    }
    shape.reverse();
    Ok(Info { name, shape, kind: r.u32()?, offset: r.u64()? })
}

fn place(info: Info, data: usize, file_len: usize) -> Res<GgufTensor> {
    let Info { name, shape, kind, offset } = info;
    let dtype = match dtype_of(kind) {
        Ok(d) => d,
        Err(other) => return Ok(GgufTensor { name, shape, dtype: Err(other), range: 0..0 }),
    };
    let cols = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
    let row_bytes = dtype.row_bytes(cols).ok_or_else(|| {
        format!("tensor {name} has rows of {cols} values, {dtype} needs whole blocks")
    })?;
    let bytes = rows.and_then(|r| r.checked_mul(row_bytes));
    let start = usize::try_from(offset).ok().and_then(|o| o.checked_add(data));
    let end = start.zip(bytes).and_then(|(s, b)| s.checked_add(b));
    match start.zip(end).filter(|&(_, end)| end <= file_len) {
        Some((start, end)) => Ok(GgufTensor { name, shape, dtype: Ok(dtype), range: start..end }),
        None => Err(format!("tensor {name} lies past the end of the file")),
    }
}

/// ggml's type numbers.
fn dtype_of(kind: u32) -> Result<DType, String> {
    Ok(match kind {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        30 => DType::BF16,
        39 => DType::MXFP4,
        other => {
            let names = [
                (9, "Q8_1"),
                (15, "Q8_K"),
                (16, "IQ2_XXS"),
                (17, "IQ2_XS"),
                (18, "IQ3_XXS"),
                (19, "IQ1_S"),
                (20, "IQ4_NL"),
                (21, "IQ3_S"),
                (22, "IQ2_S"),
                (23, "IQ4_XS"),
                (24, "I8"),
                (25, "I16"),
                (26, "I32"),
                (27, "I64"),
                (28, "F64"),
                (29, "IQ1_M"),
                (34, "TQ1_0"),
                (35, "TQ2_0"),
            ];
            let known = names.iter().find(|n| n.0 == other).map(|n| n.1.to_string());
            return Err(known.unwrap_or_else(|| format!("number {other}")));
        }
    })
}

/// One GGUF file, or all parts of a split one.
pub(super) struct GgufFiles {
    path: String,
    tensors: BTreeMap<String, (StoredTensor, usize)>,
    other: BTreeMap<String, String>,
    parts: Vec<String>,
}

impl GgufFiles {
    /// Opens a file and, if it is the first part of several, the others.
    pub fn open(path: &Path) -> Result<(GgufFiles, GgufMeta), WeightError> {
        let mut all = GgufFiles {
            path: path.display().to_string(),
            tensors: BTreeMap::new(),
            other: BTreeMap::new(),
            parts: Vec::new(),
        };
        let meta = all.add(path)?;
        let parts = meta.get("split.count").and_then(GgufValue::as_u64).unwrap_or(1);
        for part in 2..=parts {
            let next = part_path(path, part, parts).ok_or_else(|| WeightError::Damaged {
                file: all.path.clone(),
                why: format!("it is split in {parts} parts but not named NAME-00001-of-{parts:05}"),
            })?;
            all.add(&next)?;
        }
        Ok((all, meta))
    }

    fn add(&mut self, path: &Path) -> Result<GgufMeta, WeightError> {
        let file = path.display().to_string();
        let damaged = |why: String| WeightError::Damaged { file: file.clone(), why };
        let map = map_file(path)?;
        let header = parse(&map).map_err(damaged)?;
        let owner: WeightOwner = Arc::new(map);
        self.parts.push(file.clone());
        for t in header.tensors {
            let dtype = match t.dtype {
                Ok(d) => d,
                Err(name) => {
                    self.other.insert(t.name, name);
                    continue;
                }
            };
            let bytes = WeightBytes::new(owner.clone(), t.range)
                .ok_or_else(|| damaged(format!("tensor {} lies past the end", t.name)))?;
            let stored = StoredTensor { dtype, shape: t.shape, bytes };
            let part = self.parts.len() - 1;
            if self.tensors.insert(t.name.clone(), (stored, part)).is_some() {
                return Err(damaged(format!("tensor {} is in another part, too", t.name)));
            }
        }
        Ok(header.meta)
    }
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
        let part = self.tensors.get(name).and_then(|t| self.parts.get(t.1));
        part.unwrap_or(&self.path).clone()
    }

    fn unusable(&self, name: &str) -> Option<&str> {
        self.other.get(name).map(String::as_str)
    }
}
