//! The cache and attention over it.

use troika_graph::Attention;

use super::Binding::{Value, Weight};
use super::elements::Floats;
use super::spec::{
    Dispatch, KernelError, KernelResult, KernelSpec, Loc, PAIRS, ROUNDING, TOTAL, flag,
    unsupported, words,
};

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

static KV_APPEND: KernelSpec = KernelSpec::new(
    "kv_append",
    &[ROUNDING, PAIRS, include_str!("wgsl/kv_append.wgsl")],
    &[Value; 5],
);

/// Rows for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Elements of a row.
    pub width: u32,
    /// The rows.
    pub x: Loc,
    /// The cache's type; rows of two-byte floats have an even number of elements.
    pub cache: Floats,
}

impl Append {
    /// Words of a row of the cache.
    fn words(self) -> Result<u32, KernelError> {
        match self.cache {
            Floats::F32 => Ok(self.width),
            _ if self.width.is_multiple_of(2) => Ok(self.width / 2),
            _ => unsupported(format!("cache rows of {} elements of two bytes", self.width)),
        }
    }
}

/// Writes rows of keys, and of values if there are any, at their positions.
///
/// Bindings: keys; values; the batch's words; the key cache, from its first row on; the value cache,
/// likewise. Without values those of keys are bound again.
///
/// # Errors
/// An odd width in a cache of two-byte elements.
pub fn kv_append(batch: BatchWords, keys: Append, values: Option<Append>) -> KernelResult {
    let (k_words, v_words) = (keys.words()?, values.map_or(Ok(0), Append::words)?);
    let values = values.unwrap_or(keys);
    let page_bits = batch.page_len.trailing_zeros();
    let numbers = [batch.rows, batch.count, page_bits, k_words, v_words, batch.flag];
    let params = words(&[keys.x, values.x]).chain(numbers).collect();
    let [keys, values] = [keys, values].map(|append| f64::from(append.cache as u8));
    let overrides = vec![("KEYS", keys), ("VALUES", values)];
    let grid = [(k_words + v_words).div_ceil(64), batch.count.min(super::MAX_GROUPS), 1];
    Dispatch { spec: &KV_APPEND, overrides, params, grid }.checked()
}

/// An attention's operands.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// The op.
    pub op: &'a Attention,
    /// The batch whose rows attend.
    pub batch: BatchWords,
    /// Format of the key cache.
    pub keys: Floats,
    /// Format of the value cache (the key cache's format when the value is in the key).
    pub values: Floats,
    /// Keys and values of the rows (keys twice when the value is in the key), if they are not in the
    /// caches yet and are to be appended. Each row is then the last of its sequence.
    pub append: Option<[Loc; 2]>,
}

static ATTENTION: KernelSpec = KernelSpec {
    name: "attention",
    parts: &[ROUNDING, PAIRS, TOTAL, include_str!("wgsl/attention.wgsl")],
    bindings: &[Weight, Value, Value, Value, Value, Value, Value, Value],
    workgroup_bytes: 12 * 1024,
};

static ATTENTION_MERGE: KernelSpec = KernelSpec::new(
    "attention_merge",
    &[include_str!("wgsl/attention_merge.wgsl")],
    &[Weight, Value, Value],
);

/// Attends for all rows of the batch. All visible positions have pages. With `parts` the keys of each
/// row are shared out to so many workgroups: results are then those of the parts, [`part_floats`] a
/// row, which [`attention_merge`] merges.
///
/// Bindings: sinks (`[heads]`, f32; a spare weight if there are none); queries; the batch's words;
/// the key cache; the value cache (the key cache again when the value is in the key); results; the
/// keys and the values to append (queries again if there are none).
///
/// # Errors
/// Heads of more than 1024 elements; an odd width in a cache of two-byte elements, or heads of an odd
/// width that are to be appended to one.
pub fn attention(shape: AttentionShape<'_>, parts: Option<u32>, q: Loc, y: Loc) -> KernelResult {
    let AttentionShape { op, batch, keys, values, append } = shape;
    let [heads, kv_heads, k_dim, v_dim] =
        [op.heads, op.kv_heads, op.k_dim, op.v_dim].map(|n| n as u32);
    if k_dim > 1024 || v_dim > 1024 || k_dim == 0 || v_dim == 0 || kv_heads == 0 {
        return unsupported(format!("attention heads of {k_dim} and {v_dim} elements"));
    }
    let value_width = kv_heads * if op.value_in_key { k_dim } else { v_dim };
    let odd = |format, width: u32| format != Floats::F32 && !width.is_multiple_of(2);
    if odd(keys, kv_heads * k_dim) || odd(values, value_width) {
        return unsupported("cache rows of an odd number of two-byte elements");
    }
    let own_values = !op.value_in_key;
    if append.is_some() && (odd(keys, k_dim) || (own_values && odd(values, v_dim))) {
        return unsupported("heads of an odd number of two-byte elements to append");
    }
    let [k, v] = append.unwrap_or([q, q]);
    let widths = [k_dim, v_dim, kv_heads * k_dim, value_width];
    let vectors = widths.iter().all(|w| w.is_multiple_of(8));
    let numbers = [
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
    ];
    Dispatch {
        spec: &ATTENTION,
        overrides: vec![
            ("KEYS", f64::from(keys as u8)),
            ("VALUES", f64::from(values as u8)),
            ("K_DIM", f64::from(k_dim)),
            ("V_DIM", f64::from(v_dim)),
            ("SOFTCAP", flag(op.softcap.is_some())),
            ("SINKS", flag(op.sinks.is_some())),
            ("PARTS", flag(parts.is_some())),
            ("APPEND", flag(append.is_some())),
            ("SHARED", flag(op.value_in_key)),
            ("VECTORS", flag(vectors)),
        ],
        params: words(&[q, y]).chain(numbers).chain(words(&[k, v])).chain([batch.flag]).collect(),
        grid: [heads, batch.count, parts.unwrap_or(1)],
    }
    .checked()
}

/// The most parts of the keys of a row, and the least keys of a part.
const MOST_PARTS: usize = 32;
const PART_KEYS: usize = 256;

/// How many workgroups share the keys of each row and head, for rows that see at most `longest`
/// positions: a power of two; 1 where one serves alone. More than these do no harm.
pub fn attention_parts(op: &Attention, longest: usize) -> u32 {
    let longest = op.window.map_or(longest, |w| longest.min(w));
    longest.div_ceil(PART_KEYS).clamp(1, MOST_PARTS).next_power_of_two() as u32
}

/// Floats of a row's results of parts.
pub fn part_floats(op: &Attention, parts: u32) -> usize {
    op.heads * parts as usize * (op.v_dim + 2)
}

/// Merges the results of parts for `rows` rows.
///
/// Bindings: sinks (`[heads]`, f32; a spare weight if there are none); results of parts; results.
///
/// # Errors
/// More rows than a dispatch may have.
pub fn attention_merge(op: &Attention, rows: u32, parts: u32, from: Loc, y: Loc) -> KernelResult {
    let overrides = vec![("V_DIM", op.v_dim as f64), ("SINKS", flag(op.sinks.is_some()))];
    let params = words(&[from, y]).chain([parts]).collect();
    let grid = [op.heads as u32, rows, 1];
    Dispatch { spec: &ATTENTION_MERGE, overrides, params, grid }.checked()
}
