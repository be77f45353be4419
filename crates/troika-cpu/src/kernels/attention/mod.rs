//! Attention over the paged cache, by online softmax (FlashAttention-2, algorithm 1) over blocks
//! of [`KEY_BLOCK`] positions; every [`SPLIT`] positions it starts anew, and the results of the
//! splits are merged in order (as Flash-Decoding does).
//!
//! Blocks and splits are aligned to absolute positions and a query's sums follow from its own
//! position alone, so its result has the same bits however the prompt was cut into forward batches,
//! and whether its splits were computed by one thread or by several.

mod block;
mod large_q;
mod part;
mod run;
mod small_q;
mod softmax;

use std::ops::Range;

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Attention;

use crate::SharedMut;
use crate::kernels::kv::{CacheRef, operand};
use crate::kernels::linear::{Float, dispatch_pairs};
use crate::kernels::select::{self, AttentionChoice, AttentionShape};
use crate::kernels::simd::{Kernel, Lanes, Mac, PairsKernel, dispatch};
use crate::kernels::{Context, KernelError};
use part::{AttentionPart, PartLines, PartialShape, SMALL_Q_LINES, Target};
use softmax::Total;

pub use run::worker_floats;

/// Positions per block of the online softmax.
pub const KEY_BLOCK: usize = 64;
/// Positions whose results are merged: whole blocks.
pub const SPLIT: usize = 256;

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
    pub forward: &'a ForwardBatch,
    /// Whether it multiplies pairs of bf16, with queries and weights rounded; caches must be of
    /// bf16.
    pub pairs: bool,
}

impl Operands<'_> {
    /// Positions a row at `pos` sees.
    #[inline(always)]
    fn visible(&self, pos: usize) -> Range<usize> {
        self.op.window.map_or(0, |w| (pos + 1).saturating_sub(w))..pos + 1
    }

    /// Splits a row at `pos` sees something of.
    #[inline(always)]
    fn splits(&self, pos: usize) -> Range<usize> {
        let v = self.visible(pos);
        v.start / SPLIT..v.end.div_ceil(SPLIT)
    }

    /// Splits the rows of a sequence see something of.
    fn splits_of(&self, seq: &SeqRows, rows: &Range<usize>) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        self.splits(seq.pos + rows.start).start..self.splits(seq.pos + rows.end - 1).end
    }

    /// Elements of a row of the value cache.
    fn value_width(&self) -> usize {
        let o = self.op;
        o.kv_heads * if o.value_in_key { o.k_dim } else { o.v_dim }
    }

    /// Checks lengths, and that every visible position is kept.
    fn check(&self, out: usize) -> Result<(), KernelError> {
        let (o, rows) = (self.op, self.forward.rows());
        let wide = |heads: usize, dim: usize| heads.checked_mul(dim)?.checked_mul(rows.max(1));
        let fits =
            |len: usize, dim: usize| wide(o.heads, dim) == Some(len) || rows == 0 && len == 0;
        let cache = wide(o.kv_heads, o.k_dim.max(o.v_dim)).and_then(|n| n.checked_mul(4));
        assert!(cache.is_some() && o.kv_heads > 0, "heads of an attention");
        assert!(self.forward.is_whole(), "sequences of a step");
        assert!(!self.pairs || matches!(self.keys, CacheRef::BF16(_)), "pairs of other than bf16");
        assert!(!o.value_in_key || o.v_dim <= o.k_dim, "a value wider than its key");
        assert!(fits(self.q.len(), o.k_dim), "length of queries");
        assert!(fits(out, o.v_dim), "length of attention's result");
        assert!(self.sinks.is_none_or(|s| s.len() == o.heads), "length of sinks");
        let keys = self.keys.len() / (o.kv_heads * o.k_dim).max(1);
        let cached = keys.min(self.values.len() / self.value_width().max(1));
        for s in self.forward.seqs.iter().filter(|s| !s.rows.is_empty()) {
            let table = &s.tables[o.page_group];
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

/// How the rows of a forward batch are cut, and the most splits one of them sees.
fn cut(op: &Attention, forward: &ForwardBatch, threads: usize) -> (AttentionChoice, usize) {
    let x = |s: &SeqRows| {
        let first = op.window.map_or(0, |w| (s.pos + 1).saturating_sub(w));
        (s.pos + s.rows.len()).div_ceil(SPLIT) - first / SPLIT
    };
    let (k_pad, v_pad) = run::padded(op);
    let seqs = || forward.seqs.iter().filter(|s| !s.rows.is_empty());
    let splits = seqs().map(x).max().unwrap_or(0);
    let shape = AttentionShape {
        rows: forward.rows(),
        longest: seqs().map(|s| s.rows.len()).max().unwrap_or(0),
        seqs: seqs().count(),
        group: op.heads / op.kv_heads.max(1),
        kv_heads: op.kv_heads,
        floats: k_pad + 2 * v_pad,
        splits,
        small_q: SMALL_Q_LINES,
    };
    (select::attention(shape, threads), splits)
}

/// Floats the results of splits need.
pub fn partial_floats(op: &Attention, forward: &ForwardBatch, threads: usize) -> usize {
    let (cut, splits) = cut(op, forward, threads);
    let (_, v_pad) = run::padded(op);
    let lines = forward.rows().saturating_mul(op.heads);
    if cut.split { lines.saturating_mul(splits).saturating_mul(v_pad + 2) } else { 0 }
}

/// Attends for all rows of the forward batch; `partials` has at least [`partial_floats`].
///
/// # Errors
/// A visible position that is not in the cache; a panic of a part.
pub fn attention(
    cx: &mut Context<'_>,
    x: Operands<'_>,
    partials: &mut [f32],
    out: &mut [f32],
) -> Result<(), KernelError> {
    x.check(out.len())?;
    let (cut, splits) = cut(x.op, x.forward, cx.pool.threads());
    let group = x.op.heads / x.op.kv_heads;
    let (head_parts, kv_parts) = (group.div_ceil(cut.heads), x.op.kv_heads.div_ceil(cut.kv_heads));
    let blocks = |s: &SeqRows| s.rows.len().div_ceil(cut.rows);
    let total: usize = x.forward.seqs.iter().map(blocks).sum();
    let split_parts = if cut.split { splits } else { 1 };
    let per_block = kv_parts * head_parts * split_parts;
    let (_, v_pad) = run::padded(x.op);
    let shape = PartialShape { splits, heads: x.op.heads, v_pad };
    let (floats, results) = (SharedMut::new(&mut *partials), SharedMut::new(&mut *out));
    let isa = cx.isa;
    cx.run(total * per_block, &|scratch, part| {
        // Late rows see most: they go first, so that no long part is left for the end.
        let (mut block, rest) = (total - 1 - part / per_block, part % per_block);
        let (rest, split) = (rest / split_parts, rest % split_parts);
        let (kv_part, head_part) = (rest / head_parts, rest % head_parts);
        for seq in &x.forward.seqs {
            if block >= blocks(seq) {
                block -= blocks(seq);
                continue;
            }
            let rows = piece(block, cut.rows, seq.rows.len());
            let mut splits = x.splits_of(seq, &rows);
            if cut.split {
                splits = splits.start + split..(splits.start + split + 1).min(splits.end);
            }
            if splits.is_empty() {
                return;
            }
            let (kv_heads, heads) =
                (piece(kv_part, cut.kv_heads, x.op.kv_heads), piece(head_part, cut.heads, group));
            let lines = PartLines { rows, kv_heads, heads, splits };
            let to = match cut.split {
                true => Target::Partials { floats, shape },
                false => Target::Out(results),
            };
            // SAFETY: checked above; no two parts have the same split of a line.
            let part = unsafe { AttentionPart::new(x, seq, lines, to, scratch) };
            if x.pairs {
                dispatch_pairs(isa, part)
            } else {
                dispatch(isa, part)
            }
            return;
        }
    })?;
    if cut.split { merge(cx, x, partials, shape, out) } else { Ok(()) }
}

/// Piece `i` of `len` things, `each` at a time.
fn piece(i: usize, each: usize, len: usize) -> Range<usize> {
    i * each..((i + 1) * each).min(len)
}

/// Merges the results of splits, in order.
fn merge(
    cx: &mut Context<'_>,
    x: Operands<'_>,
    partials: &[f32],
    shape: PartialShape,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let (isa, heads, v_dim) = (cx.isa, x.op.heads, x.op.v_dim);
    let out = SharedMut::new(out);
    let each = select::merged_heads(heads, x.forward.rows(), cx.pool.threads());
    let per_row = heads.div_ceil(each);
    cx.run(x.forward.rows() * per_row, &|scratch, part| {
        let (row, heads) = (part / per_row, piece(part % per_row, each, heads));
        let Some(seq) = x.forward.seqs.iter().find(|s| s.rows.contains(&row)) else { return };
        let at = |head: usize| (row * x.op.heads + head) * v_dim;
        // SAFETY: each head of a row belongs to one part.
        let out = unsafe { out.slice(at(heads.start)..at(heads.end)) };
        let merge = Merge { x, seq, row, heads, partials, shape, out, scratch };
        if x.pairs { dispatch_pairs(isa, merge) } else { dispatch(isa, merge) }
    })
}

/// The merging of some heads of a row.
struct Merge<'a> {
    x: Operands<'a>,
    seq: &'a SeqRows,
    row: usize,
    heads: Range<usize>,
    partials: &'a [f32],
    shape: PartialShape,
    /// The results of these heads.
    out: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl PairsKernel for Merge<'_> {
    #[inline(always)]
    fn run<A: Mac>(self) {
        // The lanes of the part whose results are merged: sums are fused there or not.
        Kernel::run::<A::V>(self)
    }
}

impl Kernel for Merge<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Merge { x, seq, row, heads, partials, shape, out, scratch } = self;
        let acc = &mut scratch[..shape.v_pad];
        let splits = x.splits(seq.pos + row - seq.rows.start);
        for (head, out) in heads.zip(out.chunks_exact_mut(x.op.v_dim.max(1))) {
            acc.fill(0.0);
            let mut total = Total::NONE;
            for i in 0..splits.len() {
                let (from, rest) = partials[shape.at(row, head, i)].split_at(shape.v_pad);
                let part = Total { max: rest[0], sum: rest[1] };
                softmax::merge::<V>(acc, &mut total, from, part);
            }
            let scale = total.finish(x.sinks.map(|s| s[head]));
            out.iter_mut().zip(&*acc).for_each(|(o, a)| *o = a * scale);
        }
    }
}

impl Kernel for AttentionPart<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        run::run::<Float<V>>(self)
    }
}

impl PairsKernel for AttentionPart<'_> {
    #[inline(always)]
    fn run<A: Mac>(self) {
        run::run::<A>(self)
    }
}
