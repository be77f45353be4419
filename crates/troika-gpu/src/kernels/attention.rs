//! The cache and attention over it.

use troika_graph::{Attention, DType};

use super::spec::{Binding, Dispatch, KernelError, KernelSpec, Loc, unsupported};
use Binding::{Value, Weight};

/// A forward batch's words in a value that the host writes.
///
/// For each row of the batch there are four words from `rows` on: its position; the word at which
/// its page table begins; the logical index of the table's first page; and 0. A page table is a run
/// of physical pages, one a word ([`troika_device::PageTable::pages`]). Row `p % page_len` of page
/// `table[p / page_len - first]` holds position `p`. Words are indexed from the binding's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchWords {
    /// The word at which the records of the rows begin.
    pub rows: u32,
    /// Rows.
    pub count: u32,
    /// Positions of a page: a power of two, the same in all tables.
    pub page_len: u32,
    /// A word that a kernel sets to 1 when it wrote an f16 that is infinite though the number was
    /// not; nothing else is written.
    pub flag: u32,
}

/// The element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFormat {
    /// f32.
    F32,
    /// Pairs of f16; rows have an even number of elements.
    F16,
    /// Pairs of bf16; rows have an even number of elements.
    Bf16,
}

impl CacheFormat {
    /// The format of a type; `None` if caches do not have it.
    pub const fn of(dtype: DType) -> Option<CacheFormat> {
        match dtype {
            DType::F32 => Some(CacheFormat::F32),
            DType::F16 => Some(CacheFormat::F16),
            DType::BF16 => Some(CacheFormat::Bf16),
            _ => None,
        }
    }

    pub(super) const fn code(self) -> u32 {
        match self {
            CacheFormat::F32 => 0,
            CacheFormat::F16 => 1,
            CacheFormat::Bf16 => 2,
        }
    }
}

static KV_APPEND: KernelSpec = KernelSpec {
    name: "kv_append",
    source: concat!(include_str!("wgsl/rounding.wgsl"), include_str!("wgsl/kv_append.wgsl")),
    bindings: &[Value, Value, Value],
    workgroup_bytes: 0,
};

/// Writes rows of `width` elements at their positions.
///
/// Bindings: x; the batch's words; the cache, from its first row on.
///
/// # Errors
/// An odd `width` in a cache of two-byte elements.
pub fn kv_append(
    batch: BatchWords,
    width: u32,
    x: Loc,
    cache: CacheFormat,
) -> Result<Dispatch, KernelError> {
    if cache != CacheFormat::F32 && !width.is_multiple_of(2) {
        return unsupported(format!("cache rows of {width} elements of two bytes"));
    }
    let words = if cache == CacheFormat::F32 { width } else { width / 2 };
    Dispatch {
        spec: &KV_APPEND,
        overrides: vec![("FORMAT", f64::from(cache.code()))],
        params: vec![
            x.offset,
            x.stride,
            batch.rows,
            batch.count,
            batch.page_len.trailing_zeros(),
            width,
            words,
            batch.flag,
        ],
        grid: [words.div_ceil(64), batch.count.min(super::MAX_GROUPS), 1],
    }
    .checked()
}

/// An attention's operands.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// The op.
    pub op: &'a Attention,
    /// The batch whose rows attend.
    pub batch: BatchWords,
    /// Format of the key cache.
    pub keys: CacheFormat,
    /// Format of the value cache (that of the keys when the value is in the key).
    pub values: CacheFormat,
}

static ATTENTION: KernelSpec = KernelSpec {
    name: "attention",
    source: include_str!("wgsl/attention.wgsl"),
    bindings: &[Weight, Value, Value, Value, Value, Value],
    workgroup_bytes: 12 * 1024,
};

static ATTENTION_MERGE: KernelSpec = KernelSpec {
    name: "attention_merge",
    source: include_str!("wgsl/attention_merge.wgsl"),
    bindings: &[Weight, Value, Value],
    workgroup_bytes: 0,
};

/// Attends for all rows of the batch. All visible positions have pages.
///
/// Bindings: sinks (`[heads]`, f32; a spare weight if there are none); queries; the batch's words;
/// the key cache; the value cache (the key cache again when the value is in the key); results.
///
/// # Errors
/// Heads of more than 1024 elements; an odd width in a cache of two-byte elements.
pub fn attention(shape: AttentionShape<'_>, q: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    attend(shape, None, q, y)
}

/// How many workgroups should share the keys of each row and head, for rows that see at most
/// `longest` positions; 1 where [`attention`] serves alone.
pub fn attention_parts(shape: &AttentionShape<'_>, longest: usize) -> u32 {
    let longest = shape.op.window.map_or(longest, |w| longest.min(w));
    let groups = (shape.batch.count as usize).saturating_mul(shape.op.heads).max(1);
    (512 / groups).min(longest.div_ceil(256)).clamp(1, 64) as u32
}

/// Floats of a row's results of parts.
pub fn part_floats(op: &Attention, parts: u32) -> usize {
    op.heads * parts as usize * (op.v_dim + 2)
}

/// As [`attention`], with the keys of each row shared out to so many workgroups. Results are those
/// of the parts, [`part_floats`] a row, which [`attention_merge`] merges.
///
/// Bindings: as for [`attention`].
///
/// # Errors
/// As for [`attention`].
pub fn attention_in_parts(
    shape: AttentionShape<'_>,
    parts: u32,
    q: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    attend(shape, Some(parts.max(1)), q, y)
}

/// Merges the results of parts for `rows` rows.
///
/// Bindings: sinks (`[heads]`, f32; a spare weight if there are none); results of parts; results.
///
/// # Errors
/// More rows than a dispatch may have.
pub fn attention_merge(
    op: &Attention,
    rows: u32,
    parts: u32,
    from: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    Dispatch {
        spec: &ATTENTION_MERGE,
        overrides: vec![
            ("V_DIM", op.v_dim as f64),
            ("SINKS", f64::from(u8::from(op.sinks.is_some()))),
        ],
        params: vec![from.offset, from.stride, y.offset, y.stride, parts],
        grid: [op.heads as u32, rows, 1],
    }
    .checked()
}

fn attend(
    shape: AttentionShape<'_>,
    parts: Option<u32>,
    q: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    let AttentionShape { op, batch, keys, values } = shape;
    let [heads, kv_heads, k_dim, v_dim] =
        [op.heads, op.kv_heads, op.k_dim, op.v_dim].map(|n| n as u32);
    if k_dim > 1024 || v_dim > 1024 || k_dim == 0 || v_dim == 0 || kv_heads == 0 {
        return unsupported(format!("attention heads of {k_dim} and {v_dim} elements"));
    }
    let value_width = kv_heads * if op.value_in_key { k_dim } else { v_dim };
    let odd = |format, width: u32| format != CacheFormat::F32 && !width.is_multiple_of(2);
    if odd(keys, kv_heads * k_dim) || odd(values, value_width) {
        return unsupported("cache rows of an odd number of two-byte elements");
    }
    Dispatch {
        spec: &ATTENTION,
        overrides: vec![
            ("KEYS", f64::from(keys.code())),
            ("VALUES", f64::from(values.code())),
            ("K_DIM", f64::from(k_dim)),
            ("V_DIM", f64::from(v_dim)),
            ("SOFTCAP", f64::from(u8::from(op.softcap.is_some()))),
            ("SINKS", f64::from(u8::from(op.sinks.is_some()))),
            ("PARTS", f64::from(u8::from(parts.is_some()))),
        ],
        params: vec![
            q.offset,
            q.stride,
            y.offset,
            y.stride,
            batch.rows,
            batch.page_len.trailing_zeros(),
            heads / kv_heads,
            kv_heads * k_dim,
            value_width,
            if op.value_in_key { k_dim } else { v_dim },
            op.window.map_or(u32::MAX, |w| w.min(u32::MAX as usize) as u32),
            op.scale.to_bits(),
            op.softcap.unwrap_or(1.0).to_bits(),
            parts.unwrap_or(1),
        ],
        grid: [heads, batch.count, parts.unwrap_or(1)],
    }
    .checked()
}
