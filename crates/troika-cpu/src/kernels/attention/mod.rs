//! Attention over the paged cache, by online softmax (FlashAttention-2, algorithm 1) over blocks
//! of [`KEY_BLOCK`] positions.
//!
//! Blocks are aligned to absolute positions and a query's sums follow from its own position
//! alone, so its result has the same bits however the prompt was cut into steps.

mod lines;
pub mod scalar;

use troika_device::{SeqRows, Step};
use troika_graph::Attention;

use crate::SharedMut;
use crate::kernels::kv::{CacheRef, operand};
use crate::kernels::linear::{F16Row, F32Row};
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, dispatch};
use crate::kernels::{Context, KernelError};
use crate::select;

/// Positions per block of the online softmax.
pub const KEY_BLOCK: usize = 64;

/// Operands of an attention.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// The op.
    pub op: &'a Attention,
    /// A logit per head, if the op has sinks.
    pub sinks: Option<&'a [f32]>,
    /// Queries.
    pub q: &'a [f32],
    /// Key cache.
    pub keys: CacheRef<'a>,
    /// Value cache; the key cache when the value is in the key.
    pub values: CacheRef<'a>,
    /// Whose rows.
    pub step: &'a Step,
}

impl Operands<'_> {
    /// Positions a row at `pos` sees.
    #[inline(always)]
    fn visible(&self, pos: usize) -> std::ops::Range<usize> {
        self.op.window.map_or(0, |w| (pos + 1).saturating_sub(w))..pos + 1
    }

    /// Elements of a row of the value cache.
    fn value_width(&self) -> usize {
        let o = self.op;
        o.kv_heads * if o.value_in_key { o.k_dim } else { o.v_dim }
    }

    /// Checks lengths, and that every visible position is kept.
    fn check(&self, out: usize) -> Result<(), KernelError> {
        let (o, rows) = (self.op, self.step.rows());
        assert!(!o.value_in_key || o.v_dim <= o.k_dim, "a value wider than its key");
        assert!(self.q.len() == rows * o.heads * o.k_dim, "length of queries");
        assert!(out == rows * o.heads * o.v_dim, "length of attention's result");
        assert!(self.sinks.is_none_or(|s| s.len() == o.heads), "length of sinks");
        let keys = self.keys.len() / (o.kv_heads * o.k_dim).max(1);
        let cached = keys.min(self.values.len() / self.value_width().max(1));
        for s in self.step.seqs.iter().filter(|s| !s.rows.is_empty()) {
            let table = &s.tables[o.group];
            let last = s.pos + s.rows.len() - 1;
            let mut pos = self.visible(s.pos).start;
            while pos <= last {
                // A page's rows are neighbours: its last position stands for it.
                let end = (pos / table.page_len + 1) * table.page_len - 1;
                match table.row(end.min(last)) {
                    Some(row) if row < cached => {}
                    _ => return Err(operand(format!("position {pos} is visible but not kept"))),
                }
                pos = end + 1;
            }
        }
        Ok(())
    }
}

/// Some rows and heads of one sequence that share a key/value head.
struct Part<'a> {
    x: Operands<'a>,
    seq: &'a SeqRows,
    /// Rows, counted within the sequence.
    rows: std::ops::Range<usize>,
    kv_head: usize,
    /// Query heads.
    heads: std::ops::Range<usize>,
    out: SharedMut<'a, f32>,
    scratch: &'a mut [f32],
}

/// Scratch floats a worker needs: accumulators, scores, maxima and sums of a part's lines.
pub fn worker_floats(op: &Attention) -> usize {
    let cut = select::attention(op.heads / op.kv_heads.max(1));
    cut.rows * cut.heads * (op.v_dim.next_multiple_of(MAX_LANES) + KEY_BLOCK + 2)
}

/// Attends for all rows of the step.
///
/// # Errors
/// A visible position that is not in the cache; a panic of a part.
pub fn attention(
    cx: &mut Context<'_>,
    x: Operands<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    x.check(out.len())?;
    let group = x.op.heads / x.op.kv_heads;
    let cut = select::attention(group);
    let head_parts = group.div_ceil(cut.heads);
    let blocks = |s: &SeqRows| s.rows.len().div_ceil(cut.rows);
    let total: usize = x.step.seqs.iter().map(blocks).sum();
    let per_block = x.op.kv_heads * head_parts;
    let out = SharedMut::new(out);
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(total * per_block, &|worker, part| {
        // Late rows see most: they go first, so that no long part is left for the end.
        let (mut block, rest) = (total - 1 - part / per_block, part % per_block);
        let (kv_head, head_part) = (rest / head_parts, rest % head_parts);
        for seq in &x.step.seqs {
            if block >= blocks(seq) {
                block -= blocks(seq);
                continue;
            }
            let rows = block * cut.rows..((block + 1) * cut.rows).min(seq.rows.len());
            let first = head_part * cut.heads;
            let heads = kv_head * group + first..kv_head * group + (first + cut.heads).min(group);
            // SAFETY: each worker asks for its own scratch once per part.
            let scratch = unsafe { scratch.get(worker) };
            dispatch(isa, Part { x, seq, rows, kv_head, heads, out, scratch });
            return;
        }
    })?;
    Ok(())
}

impl Kernel for Part<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: features by the caller; the operands were checked.
        unsafe {
            match (self.x.keys, self.x.values) {
                (CacheRef::F32(k), CacheRef::F32(v)) => {
                    let caches = lines::Caches::new(k, v);
                    lines::run::<V, F32Row>(self, caches);
                }
                (CacheRef::F16(k), CacheRef::F16(v)) => {
                    let caches = lines::Caches::new(k, v);
                    lines::run::<V, F16Row>(self, caches);
                }
                _ => unreachable!("caches of two types are refused when compiled"),
            }
        }
    }
}
