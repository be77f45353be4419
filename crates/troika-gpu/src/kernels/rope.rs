//! Rotary position embedding.

use troika_graph::{Rope, RopeStyle};

use super::Binding::{Value, Weight};
use super::attention::{BatchWords, CacheFormat};
use super::spec::{Dispatch, KernelError, KernelSpec, Loc, MAX_GROUPS, unsupported};

static ROPE: KernelSpec = KernelSpec {
    name: "rope",
    source: concat!(include_str!("wgsl/cos_sin.wgsl"), include_str!("wgsl/rope.wgsl")),
    bindings: &[Weight, Value, Value, Value],
    workgroup_bytes: 0,
};

/// Rotates the heads of `rows` rows of `heads` heads. `factor` is that of the frequencies that are
/// bound ([`troika_graph::RopeFreqs::factor`]): the host chooses between the short and the long
/// ones, and runs rows of different choice by dispatches of their own.
///
/// Bindings: inverse frequencies (`rotary_dim / 2`, f32); x; positions (i32; `at[1]`, one a row);
/// results (`at[2]`), which may be the rows of x themselves.
///
/// # Errors
/// More heads than a dispatch may have.
pub fn rope(
    op: &Rope,
    factor: f32,
    [rows, heads]: [u32; 2],
    at: [Loc; 3],
) -> Result<Dispatch, KernelError> {
    let [x, positions, y] = at;
    // A thread has a pair of rotated elements, or two of the rest.
    let pairs = (op.head_dim as u32).div_ceil(2) * heads;
    Dispatch {
        spec: &ROPE,
        overrides: vec![("INTERLEAVED", f64::from(u8::from(op.style == RopeStyle::Interleaved)))],
        params: vec![
            x.offset,
            x.stride,
            positions.offset,
            positions.stride,
            y.offset,
            y.stride,
            rows,
            heads,
            op.head_dim as u32,
            op.offset as u32,
            op.rotary_dim as u32,
            factor.to_bits(),
        ],
        grid: [pairs.div_ceil(64), rows.min(MAX_GROUPS), 1],
    }
    .checked()
}

static ROPE_APPEND: KernelSpec = KernelSpec {
    name: "rope_append",
    source: concat!(
        include_str!("wgsl/rounding.wgsl"),
        include_str!("wgsl/cos_sin.wgsl"),
        include_str!("wgsl/rope_append.wgsl")
    ),
    bindings: &[Weight, Weight, Value, Value, Value, Value, Value, Value],
    workgroup_bytes: 9 * 1024,
};

/// What happens to queries, keys and values between their products and an attention.
#[derive(Clone, Copy, Debug)]
pub struct RopeAppend<'a> {
    /// The rotation of queries and of keys.
    pub rope: &'a Rope,
    /// The factor of the frequencies that are bound.
    pub factor: f32,
    /// Heads of queries.
    pub q_heads: u32,
    /// Heads of keys.
    pub k_heads: u32,
    /// Columns of values.
    pub v_width: u32,
    /// If heads of queries and keys are normalised before: what is added to the mean square and to
    /// the weights.
    pub norm: Option<(f32, f32)>,
    /// The batch; its positions are those that rotations take.
    pub batch: BatchWords,
    /// Format of the key cache.
    pub keys: CacheFormat,
    /// Format of the value cache.
    pub values: CacheFormat,
}

/// Rotates queries; rotates keys and appends them to their cache; appends values to theirs. `norms`
/// are the words from the weights for queries to those for keys.
///
/// Bindings: inverse frequencies (`rotary_dim / 2`, f32); the norms' weights (f32: those for
/// queries, then those for keys; a spare weight if there are none); queries, of which `at[3]` may
/// be the rows of `at[0]` themselves and lies in the same binding; keys; values; the batch's words;
/// the key cache; the value cache. `at` has queries, keys, values and rotated queries.
///
/// # Errors
/// Heads of more than 1024 elements; odd widths in caches of two-byte elements.
pub fn rope_append(of: &RopeAppend<'_>, norms: u32, at: [Loc; 4]) -> Result<Dispatch, KernelError> {
    let (rope, batch) = (of.rope, of.batch);
    let dim = rope.head_dim as u32;
    let odd = |format, width: u32| format != CacheFormat::F32 && !width.is_multiple_of(2);
    if dim == 0
        || dim > 1024
        || odd(of.keys, dim)
        || odd(of.values, of.v_width)
        || odd(of.values, dim)
    {
        return unsupported(format!("rotated heads of {dim} elements and {} values", of.v_width));
    }
    let (eps, offset) = of.norm.unwrap_or((0.0, 0.0));
    let mut params: Vec<u32> = at.iter().flat_map(|l| [l.offset, l.stride]).collect();
    params.extend([
        batch.rows,
        batch.page_len.trailing_zeros(),
        batch.flag,
        of.q_heads,
        of.k_heads,
        dim,
        of.v_width,
        rope.offset as u32,
        rope.rotary_dim as u32,
        of.factor.to_bits(),
        eps.to_bits(),
        offset.to_bits(),
        norms,
    ]);
    Dispatch {
        spec: &ROPE_APPEND,
        overrides: vec![
            ("INTERLEAVED", f64::from(u8::from(rope.style == RopeStyle::Interleaved))),
            ("NORM", f64::from(u8::from(of.norm.is_some()))),
            ("KEYS", f64::from(of.keys.code())),
            ("VALUES", f64::from(of.values.code())),
        ],
        params,
        grid: [of.q_heads + of.k_heads + of.v_width.div_ceil(dim), batch.count, 1],
    }
    .checked()
}
