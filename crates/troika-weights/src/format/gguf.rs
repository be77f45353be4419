//! Headers of the GGUF format, versions 2 and 3.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use troika_graph::DType;
use troika_model::spec::{GgufMeta, GgufValue};

use crate::error::shown;
use crate::format::mapped::refuse_overlap;

/// The deepest nesting of metadata arrays that is read.
const MAX_DEPTH: usize = 4;

/// The most items of all metadata arrays together: several times the largest vocabulary with
/// scores, types and merges, but little memory compared with a small model.
const MAX_ITEMS: usize = 1 << 22;

/// The most tensors of a file: more than the largest models need for all layers and experts.
const MAX_TENSORS: usize = 1 << 18;

/// The most metadata pairs; files have dozens.
const MAX_PAIRS: usize = 1 << 16;

/// The longest key or tensor name, which is the format's limit for keys.
const MAX_NAME: usize = (1 << 16) - 1;

/// A tensor in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Element type, or the name of an unsupported one.
    pub dtype: Result<DType, String>,
    /// Its bytes in the file (empty for unsupported types).
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
    /// Bytes of the whole file, of which `bytes` may be the first ones.
    file: usize,
    /// Whether something was asked for behind the bytes that are there.
    short: bool,
    at: usize,
    /// Array items read so far.
    items: usize,
}

type Result<T, E = String> = std::result::Result<T, E>;

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.file - self.at
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.bytes.len() - self.at {
            self.short = n <= self.left();
            return Err(format!("it ends at byte {} inside the header", self.bytes.len()));
        }
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "short read".to_string())
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a count of items with at least `min_bytes` each. Refuses counts beyond the file's size
    /// before allocating.
    fn count(&mut self, what: &str, min_bytes: usize) -> Result<usize> {
        let n = self.u64()?;
        if n > (self.left() / min_bytes) as u64 {
            return Err(format!("it claims {n} {what}, more than its bytes can hold"));
        }
        Ok(n as usize)
    }

    fn text(&mut self) -> Result<Cow<'a, str>> {
        let n = self.count("bytes of text", 1)?;
        Ok(String::from_utf8_lossy(self.take(n)?))
    }

    fn name(&mut self) -> Result<String> {
        let name = self.text()?;
        match name.len() {
            0..=MAX_NAME => Ok(name.into_owned()),
            long => Err(format!("it has a name of {long} bytes")),
        }
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue> {
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
            8 => GgufValue::Str(self.text()?.into_owned()),
            9 => self.list(depth)?,
            10 => Uint(self.u64()?),
            11 => Int(i64::from_le_bytes(self.array()?)),
            12 => Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("it has a metadata value of unknown type {kind}")),
        })
    }

    fn list(&mut self, depth: usize) -> Result<GgufValue> {
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
        self.items = self.items.saturating_add(n);
        if self.items > MAX_ITEMS {
            return Err(format!("its metadata arrays have more than {MAX_ITEMS} items"));
        }
        match kind {
            8 => (0..n).map(|_| self.text()).collect::<Result<_>>().map(GgufValue::Texts),
            _ => (0..n)
                .map(|_| self.value(kind, depth + 1))
                .collect::<Result<_>>()
                .map(GgufValue::Array),
        }
    }
}

/// Why a valid file cannot be read here: it has another format, version or byte order.
pub(crate) fn foreign(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(b"GGUF") {
        return Some("it does not start with GGUF".into());
    }
    let version = bytes.get(4..8).and_then(|v| Some(u32::from_le_bytes(v.try_into().ok()?)));
    match version {
        // Too short: the parser reports it.
        None | Some(2 | 3) => None,
        Some(v) if matches!(v.swap_bytes(), 1..=3) => {
            Some("it is a big-endian GGUF file, only little-endian ones are read".into())
        }
        Some(v) => Some(format!("it is GGUF version {v}, versions 2 and 3 are read")),
    }
}

/// Parses the header of a file; `bytes` is the whole file.
///
/// # Errors
/// A sentence that says what is wrong: another format or version, counts or offsets beyond the end,
/// or impossible shapes.
pub fn parse(bytes: &[u8]) -> Result<GgufHeader, String> {
    parse_start(bytes, bytes.len())?.ok_or_else(|| "its header is cut short".to_string())
}

/// Parses the header of a file of `file` bytes, of which `bytes` are the first. `None` if the header
/// goes on behind them.
pub fn parse_start(bytes: &[u8], file: usize) -> Result<Option<GgufHeader>, String> {
    if let Some(why) = foreign(bytes) {
        return Err(why);
    }
    let file = file.max(bytes.len());
    let mut r = Reader { bytes, file, short: false, at: 8.min(bytes.len()), items: 0 };
    match header(&mut r) {
        Err(_) if r.short => Ok(None),
        read => read.map(Some),
    }
}

fn header(r: &mut Reader<'_>) -> Result<GgufHeader> {
    // A tensor has at least name length, dimensions, type and offset; a pair has at least 13 bytes.
    let tensor_count = r.count("tensors", 24)?;
    let pair_count = r.count("metadata pairs", 13)?;
    for (count, most, what) in
        [(tensor_count, MAX_TENSORS, "tensors"), (pair_count, MAX_PAIRS, "metadata pairs")]
    {
        if count > most {
            return Err(format!("it has {count} {what}, at most {most} are read"));
        }
    }
    let mut meta = BTreeMap::new();
    for _ in 0..pair_count {
        let key = r.name()?;
        let kind = r.u32()?;
        let value = r.value(kind, 0).map_err(|e| format!("{e} (key {})", shown(&key)))?;
        if meta.contains_key(&key) {
            return Err(format!("metadata key {} appears twice", shown(&key)));
        }
        meta.insert(key, value);
    }
    let meta = GgufMeta(meta);
    let infos = (0..tensor_count).map(|_| tensor_info(r)).collect::<Result<Vec<_>>>()?;
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
            return Err(format!("tensor {} appears twice", shown(&info.name)));
        }
        if !info.offset.is_multiple_of(align as u64) {
            let (name, at) = (shown(&info.name), info.offset);
            return Err(format!("tensor {name} begins at {at}, not at a multiple of {align}"));
        }
        tensors.push(place(info, data, r.file)?);
    }
    refuse_overlap(tensors.iter().map(|t| (t.name.as_str(), &t.range)))?;
    Ok(GgufHeader { meta, tensors })
}

struct Info {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

fn tensor_info(r: &mut Reader<'_>) -> Result<Info> {
    let name = r.name()?;
    let dims = r.u32()?;
    if dims > 4 {
        let name = shown(&name);
        return Err(format!("tensor {name} has {dims} dimensions, at most 4 are possible"));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let d = r.u64()?;
        let large = |_| format!("tensor {} is too large", shown(&name));
        shape.push(usize::try_from(d).map_err(large)?);
    }
    shape.reverse();
    Ok(Info { name, shape, kind: r.u32()?, offset: r.u64()? })
}

fn place(info: Info, data: usize, file_len: usize) -> Result<GgufTensor> {
    let Info { name, shape, kind, offset } = info;
    let dtype = match dtype_of(kind) {
        Ok(d) => d,
        Err(other) => return Ok(GgufTensor { name, shape, dtype: Err(other), range: 0..0 }),
    };
    let cols = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
    let row_bytes = dtype.row_bytes(cols).ok_or_else(|| {
        let (name, block) = (shown(&name), dtype.block_len());
        format!("tensor {name} has rows of {cols} values, {dtype} needs whole blocks of {block}")
    })?;
    let bytes = rows.and_then(|r| r.checked_mul(row_bytes));
    let start = usize::try_from(offset).ok().and_then(|o| o.checked_add(data));
    let end = start.zip(bytes).and_then(|(s, b)| s.checked_add(b));
    match start.zip(end).filter(|&(_, end)| end <= file_len) {
        Some((start, end)) => Ok(GgufTensor { name, shape, dtype: Ok(dtype), range: start..end }),
        None => Err(format!("tensor {} lies past the end of the file", shown(&name))),
    }
}

/// The type for ggml's type number, or the name of one that weights do not have.
fn dtype_of(kind: u32) -> Result<DType, String> {
    const NAMES: &str = "4 Q4_2 5 Q4_3 9 Q8_1 15 Q8_K 24 I8 25 I16 26 I32 27 I64 28 F64 \
        31 Q4_0_4_4 32 Q4_0_4_8 33 Q4_0_8_8 36 IQ4_NL_4_4 37 IQ4_NL_4_8 38 IQ4_NL_8_8";
    let weight = DType::from_gguf(kind).filter(|d| *d != DType::I32);
    weight.ok_or_else(|| {
        let mut words = NAMES.split(' ');
        let known = words.find(|word| *word == kind.to_string()).and(words.next());
        known.map_or_else(|| format!("number {kind}"), str::to_string)
    })
}
