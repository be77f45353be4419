//! One part of an attention: some lines and some of their splits, and where their results go.

use std::ops::Range;

use troika_device::SeqRows;

use super::Operands;
use crate::SharedMut;

/// Most lines of a part, rounded up to whole tiles.
pub(super) const MAX_LINES: usize = 192;
/// Most lines of one key/value head for which keys and values are not packed first. At a depth of
/// 8192, sixteen heads of a key head decode 1.2 times as fast so, and 32 heads 0.8 times.
pub(super) const SMALL_Q_LINES: usize = 16;

/// Some lines - rows and heads of one sequence - and some of their splits.
pub(super) struct AttentionPart<'a> {
    pub x: Operands<'a>,
    pub seq: &'a SeqRows,
    /// Rows, counted within the sequence.
    pub rows: Range<usize>,
    /// Key/value heads; one unless the lines are few.
    pub kv_heads: Range<usize>,
    /// Query heads, counted within their key/value head.
    pub heads: Range<usize>,
    /// Splits, by absolute position.
    pub splits: Range<usize>,
    pub to: Target<'a>,
    pub scratch: &'a mut [f32],
    /// Keeps others from making one but by [`AttentionPart::new`].
    _checked: (),
}

/// Which lines a part has: the fields of [`AttentionPart`].
pub(super) struct PartLines {
    pub rows: Range<usize>,
    pub kv_heads: Range<usize>,
    pub heads: Range<usize>,
    pub splits: Range<usize>,
}

/// Where results go.
pub(super) enum Target<'a> {
    /// All splits are in this part: its lines are finished.
    Out(SharedMut<'a, f32>),
    /// The part has one split: its results are kept for merging.
    Partials { floats: SharedMut<'a, f32>, shape: PartialShape },
}

/// How results of splits lie: per row of the forward batch, head and split an accumulator, its
/// maximum and sum.
#[derive(Clone, Copy)]
pub(super) struct PartialShape {
    /// Most splits of a line.
    pub splits: usize,
    pub heads: usize,
    pub v_pad: usize,
}

impl PartialShape {
    /// Where the result of the `index`-th split of a line is.
    pub fn at(&self, row: usize, head: usize, index: usize) -> Range<usize> {
        let len = self.v_pad + 2;
        let start = ((row * self.heads + head) * self.splits + index) * len;
        start..start + len
    }
}

impl<'a> AttentionPart<'a> {
    /// A part of an attention.
    ///
    /// # Safety
    /// The operands were checked, and have the lines. While the part is there, nobody else accesses
    /// the results of its lines.
    pub unsafe fn new(
        x: Operands<'a>,
        seq: &'a SeqRows,
        lines: PartLines,
        to: Target<'a>,
        scratch: &'a mut [f32],
    ) -> AttentionPart<'a> {
        let PartLines { rows, kv_heads, heads, splits } = lines;
        AttentionPart { x, seq, rows, kv_heads, heads, splits, to, scratch, _checked: () }
    }

    /// Lines of a key/value head.
    #[inline]
    pub fn per_head(&self) -> usize {
        self.rows.len() * self.heads.len()
    }

    /// The row, counted within the sequence, and the head of a line.
    #[inline]
    pub fn line(&self, line: usize) -> (usize, usize) {
        let (kv, rest) = (line / self.per_head(), line % self.per_head());
        let group = self.x.op.heads / self.x.op.kv_heads;
        let head = (self.kv_heads.start + kv) * group + self.heads.start;
        (self.rows.start + rest / self.heads.len(), head + rest % self.heads.len())
    }

    /// Positions the lines see in a range.
    #[inline]
    pub fn seen(&self, within: Range<usize>) -> Range<usize> {
        let first = self.x.visible(self.seq.pos + self.rows.start).start;
        let end = self.seq.pos + self.rows.end;
        first.max(within.start)..end.min(within.end)
    }
}
