//! The safetensors format, memory-mapped: a length, a JSON header, the data.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Number;
use troika_graph::DType;
use troika_model::files::{parse_json, read_small};

use crate::error::{WeightError, shown};
use crate::format::file_map::{damaged, io_error, map_file};
use crate::format::mapped::{MappedFiles, refuse_overlap};

/// The longest header that is read, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Type name in the file (`F32`, `BF16`, `I64`, ...).
    pub dtype: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// Parses the header of a file of `file_len` bytes.
///
/// # Errors
/// A sentence that says what is wrong: lengths beyond the end, overlaps, sizes that contradict
/// shapes, or invalid JSON.
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
    let header: Header = serde_json::from_slice(json).map_err(|e| match e.is_data() {
        true => format!("the header does not describe tensors ({e})"),
        false => format!("the header is not JSON ({e})"),
    })?;
    let mut entries = BTreeMap::new();
    for (name, raw) in header.0 {
        let entry = check_entry(raw, data_start, file_len)
            .map_err(|why| format!("tensor {}: {why}", shown(&name)))?;
        match entries.entry(name) {
            Entry::Vacant(free) => _ = free.insert(entry),
            Entry::Occupied(o) => return Err(format!("tensor {} appears twice", shown(o.key()))),
        }
    }
    refuse_overlap(entries.iter().map(|(name, e)| (name.as_str(), &e.range)))?;
    Ok(entries)
}

/// The header's entries in file order. A map would hide the first of two with one name.
struct Header(Vec<(String, RawEntry)>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    dtype: Option<String>,
    shape: Option<Vec<Number>>,
    data_offsets: Option<Vec<Number>>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Header, D::Error> {
        from.deserialize_map(Header(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Header {
    type Value = Header;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object of tensors")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<Header, M::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                self.0.push((name, map.next_value()?));
            }
        }
        Ok(self)
    }
}

fn check_entry(raw: RawEntry, data_start: usize, file_len: usize) -> Result<TensorEntry, String> {
    let as_size = |d: &Number| d.as_u64().and_then(|d| usize::try_from(d).ok());
    let dtype = raw.dtype.ok_or("has no dtype")?;
    let dims = raw.shape.ok_or("has no shape")?;
    let shape: Vec<usize> =
        dims.iter().map(as_size).collect::<Option<_>>().ok_or("has an impossible shape")?;
    let offsets = raw.data_offsets.ok_or("has no data_offsets")?;
    let [begin, end] = offsets.as_slice() else { return Err("needs two data_offsets".into()) };
    let (begin, end) =
        as_size(begin).zip(as_size(end)).ok_or("has data_offsets that are not sizes")?;
    if begin > end {
        return Err(format!("its data ends ({end}) before it begins ({begin})"));
    }
    let absolute = |o: usize| o.checked_add(data_start).filter(|&o| o <= file_len);
    let (Some(first), Some(last)) = (absolute(begin), absolute(end)) else {
        return Err(format!("its data ({begin}..{end}) lies past the end of the file"));
    };
    let bits =
        dtype_bits(&dtype).ok_or_else(|| format!("has the unknown type {}", shown(&dtype)))?;
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let bytes = elements.and_then(|n| n.checked_mul(bits)).map(|b| b.div_ceil(8));
    if bytes != Some(end - begin) {
        let dims = shown(&format!("{shape:?}"));
        return Err(format!("its {} bytes do not match {dtype} {dims}", end - begin));
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

pub(crate) fn open(path: &Path) -> Result<MappedFiles, WeightError> {
    let mut all = empty(path);
    add(&mut all, path)?;
    Ok(all)
}

/// Opens all shards named by an index.
pub(crate) fn open_index(index: &Path) -> Result<MappedFiles, WeightError> {
    let map = read_index(index)?;
    let mut all = empty(index);
    let mut shards: Vec<&str> = map.values().map(String::as_str).collect();
    shards.sort_unstable();
    shards.dedup();
    for shard in &shards {
        add(&mut all, &index.with_file_name(shard))?;
    }
    for (name, shard) in &map {
        let found = all.place(name).and_then(|i| shards.get(i));
        if found != Some(&shard.as_str()) {
            let (name, shard) = (shown(name), shown(shard));
            let why = format!("it says tensor {name} is in {shard}, but it is not there");
            return Err(damaged(index, why));
        }
    }
    Ok(all)
}

/// Whether all shards that an index names are there.
pub(crate) fn has_shards(index: &Path) -> bool {
    read_index(index).is_ok_and(|map| map.values().all(|s| index.with_file_name(s).exists()))
}

fn empty(inside: &Path) -> MappedFiles {
    MappedFiles::new(inside.parent().unwrap_or(Path::new(".")).display().to_string())
}

fn add(all: &mut MappedFiles, path: &Path) -> Result<(), WeightError> {
    let map = Arc::new(map_file(path)?);
    let bytes = (*map).as_ref();
    let entries = parse_header(bytes, bytes.len()).map_err(|why| damaged(path, why))?;
    all.add_file(map);
    for (name, e) in entries {
        let dtype = match e.dtype.as_str() {
            "F32" => Ok(DType::F32),
            "F16" => Ok(DType::F16),
            "BF16" => Ok(DType::BF16),
            // Not a weight itself, but a part of one in four-bit checkpoints.
            "I32" => Ok(DType::I32),
            _ => Err(e.dtype),
        };
        all.add(name, dtype, e.shape, e.range)?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The shard of each tensor.
fn read_index(index: &Path) -> Result<BTreeMap<String, String>, WeightError> {
    let damaged = |why: String| damaged(index, why);
    let text = read_small(index).map_err(|e| io_error(index, &e))?;
    let map = match parse_json::<Index>(&text) {
        Ok(index) => index.weight_map,
        Err(e) if e.is_data() => return Err(damaged(format!("it has no usable weight_map ({e})"))),
        Err(e) => return Err(damaged(format!("it is not JSON ({e})"))),
    };
    if map.is_empty() {
        return Err(damaged("its weight_map is empty".into()));
    }
    // A plain file name, without a path in the syntax of any system.
    let plain = |n: &str| {
        let mut parts = Path::new(n).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(p)), None) if p == n)
            && !n.contains(['/', '\\', ':', '\0'])
    };
    match map.values().find(|n| !plain(n)) {
        Some(bad) => {
            Err(damaged(format!("the shard name {:?} is not a file of this folder", shown(bad))))
        }
        None => Ok(map),
    }
}
