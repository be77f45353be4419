//! Which variant of a kernel runs, and how its work is cut: pure functions from shapes and device
//! facts. Cutting never changes results.

use troika_graph::DType;

use crate::Isa;

/// Most weight rows of a part.
pub(crate) const MAX_PANEL: usize = 96;
/// Fewest activation rows worth a part of their own.
const MIN_ROW_BLOCK: usize = 32;
/// Parts per thread that even out differences between threads.
const PARTS_PER_THREAD: usize = 4;
/// Weight bytes of a part of a product with one row: long enough to stream.
const DIRECT_BYTES: usize = 96 << 10;

/// Most rows with which a product waits for memory, so that its weights are prefetched.
pub(crate) const PREFETCH_MAX_ROWS: usize = 4;
/// Weight bytes prefetched: about what memory gives in the time between two products, and
/// less than a core's second-level cache.
pub(crate) const PREFETCH_BYTES: usize = 512 << 10;

/// Shape of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearShape {
    /// Activation rows.
    pub rows: usize,
    /// Weight rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Type of the weight.
    pub dtype: DType,
    /// Products of this shape that run at once.
    pub count: usize,
}

/// How a matrix product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearChoice {
    /// Weight rows of a part.
    pub panel: usize,
    /// Activation rows of a part.
    pub row_block: usize,
}

/// Cuts a matrix product for `threads` threads.
pub(crate) fn linear(isa: Isa, shape: LinearShape, threads: usize) -> LinearChoice {
    // Weight rows that fill the registers of a tile, or of a row alone.
    let step = match isa {
        _ if shape.rows == 1 => 16,
        Isa::Scalar | Isa::Avx2 | Isa::AvxVnni | Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => 16,
        // Two tiles.
        Isa::Amx(_) if shape.dtype == DType::BF16 => 32,
        _ => 48,
    };
    let wanted = threads * PARTS_PER_THREAD;
    let most = match shape.rows {
        1 => {
            let row = shape.dtype.row_bytes(shape.k).unwrap_or(1).max(1);
            (DIRECT_BYTES / row).clamp(step, MAX_PANEL)
        }
        _ => MAX_PANEL,
    };
    let fair = (shape.n * shape.count).div_ceil(wanted);
    let panel = fair.next_multiple_of(step).min(most / step * step).max(step);
    let parts = shape.n.div_ceil(panel) * shape.count;
    let blocks = wanted.div_ceil(parts.max(1)).min(shape.rows.div_ceil(MIN_ROW_BLOCK)).max(1);
    // A multiple of the rows of a tile (8, 6).
    let row_block = shape.rows.div_ceil(blocks).next_multiple_of(24);
    LinearChoice { panel, row_block: if shape.rows == 1 { 1 } else { row_block } }
}

/// Most lines - rows times heads - of a part of an attention: enough to pay for packing keys and
/// values; a multiple of the tiles' lines (12, 6).
const ATTENTION_LINES: usize = 192;
/// Floats the lines of a part should stay below, to share the second-level cache with a block.
const ATTENTION_FLOATS: usize = 80 << 10;
/// Fewest lines worth a part of their own, once keys are packed.
const ATTENTION_MIN_LINES: usize = 24;

/// Shape of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    /// Rows of the forward batch.
    pub rows: usize,
    /// Most rows of a sequence.
    pub longest: usize,
    /// Sequences.
    pub seqs: usize,
    /// Query heads per key/value head.
    pub group: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Floats of a line.
    pub floats: usize,
    /// Most splits of a line.
    pub splits: usize,
    /// Most lines for which keys are not packed.
    pub small_q: usize,
}

/// How attention is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionChoice {
    /// Rows of a part.
    pub rows: usize,
    /// Query heads of a part, of each key/value head.
    pub heads: usize,
    /// Key/value heads of a part.
    pub kv_heads: usize,
    /// Whether each split is a part.
    pub split: bool,
}

/// Cuts an attention for `threads` threads.
pub(crate) fn attention(s: AttentionShape, threads: usize) -> AttentionChoice {
    let wanted = threads * PARTS_PER_THREAD;
    let most = (ATTENTION_FLOATS / s.floats.max(1)).clamp(ATTENTION_LINES / 2, ATTENTION_LINES);
    let heads = s.group.clamp(1, most);
    let head_parts = s.group.div_ceil(heads).max(1);
    let blocks = wanted.div_ceil(s.kv_heads * head_parts);
    let fair = s.rows.div_ceil(blocks).max(ATTENTION_MIN_LINES / heads);
    let rows = fair.min(most / heads).max(1);
    let blocks = s.rows.div_ceil(rows).max(s.seqs) * head_parts;
    let lines = rows.min(s.longest) * heads;
    if lines > s.small_q {
        let split = blocks * s.kv_heads < wanted && s.splits > 1;
        return AttentionChoice { rows, heads, kv_heads: 1, split };
    }
    // Neighbouring heads lie side by side: a part with all of them streams through the cache.
    let split = blocks < 2 * wanted && s.splits > 1;
    let parts = blocks * if split { s.splits } else { 1 };
    let kv_parts = (2 * wanted).div_ceil(parts.max(1)).max(1);
    let kv_heads = s.kv_heads.div_ceil(kv_parts).min(most / lines.max(1)).max(1);
    AttentionChoice { rows, heads, kv_heads, split }
}

/// Heads of a row whose splits one part merges.
pub(crate) fn merged_heads(heads: usize, rows: usize, threads: usize) -> usize {
    heads.div_ceil(threads.div_ceil(rows.max(1))).max(1)
}

/// Shape of a product with a weight packed in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelShape {
    /// Activation rows.
    pub rows: usize,
    /// Panels of the weight.
    pub panels: usize,
    /// Bytes of a panel.
    pub bytes: usize,
    /// Products of this shape that run at once.
    pub count: usize,
}

/// Most panels of a part with several activation rows: three fill the registers of AVX-512.
const PANELS: usize = 3;

/// Cuts a product with a packed weight for `threads` threads; `panel` counts panels.
pub(crate) fn panels(shape: PanelShape, threads: usize) -> LinearChoice {
    let wanted = threads * PARTS_PER_THREAD;
    let fair = (shape.panels * shape.count).div_ceil(wanted);
    let most = if shape.rows == 1 { (DIRECT_BYTES / shape.bytes.max(1)).max(1) } else { PANELS };
    let panel = fair.clamp(1, most);
    let parts = shape.panels.div_ceil(panel) * shape.count;
    let blocks = wanted.div_ceil(parts.max(1)).min(shape.rows.div_ceil(MIN_ROW_BLOCK)).max(1);
    // A multiple of the register block's rows (6, 4).
    let row_block = shape.rows.div_ceil(blocks).next_multiple_of(12);
    LinearChoice { panel, row_block: if shape.rows == 1 { 1 } else { row_block } }
}

/// Bytes of the last parts of a product with few rows: what threads may wait for each other at
/// its end.
const LAST_BYTES: usize = 24 << 10;

/// How the panels of products with few rows are cut: long parts first, which stream from memory,
/// then shorter and shorter ones, so that all threads end together (decoding 0.6b on two cores of
/// a Zen 5: Q8_0 84-90 to 91-97 tokens/s, Q4_0 129-134 to 143, against even parts of 96 KiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    panels: usize,
    /// Panels that are read at a time: all parts but the shortest are a multiple of them.
    together: usize,
    /// Parts of a length.
    each: usize,
    /// Lengths, each half of the one before; the last is there twice.
    lengths: usize,
}

/// Cuts `panels` panels of `bytes` bytes in all for `threads` threads, which read `together` panels
/// at a time.
pub(crate) fn stream(panels: usize, together: usize, bytes: usize, threads: usize) -> Stream {
    let each = (2 * threads).min(2 * bytes / LAST_BYTES).max(1);
    let lengths = (bytes / (each * LAST_BYTES)).max(1).ilog2() as usize;
    Stream { panels, together, each, lengths }
}

impl Stream {
    /// Parts.
    pub fn parts(&self) -> usize {
        self.each * (self.lengths + 1)
    }

    /// The panels of a part; there may be none.
    pub fn part(&self, index: usize) -> std::ops::Range<usize> {
        let (length, i) = (index / self.each, index % self.each);
        let from = |length: usize| {
            let left = if length > self.lengths { 0 } else { self.panels >> length };
            (self.panels - left).next_multiple_of(self.together).min(self.panels)
        };
        let (start, end) = (from(length), from(length + 1));
        let step = if end - start < self.each * self.together { 1 } else { self.together };
        let at =
            |i: usize| (start + ((end - start) * i).div_ceil(self.each * step) * step).min(end);
        at(i)..at(i + 1)
    }

    /// Calls `work` for each product that a part has panels of, with the product's index and these
    /// panels; `panels` has the number of panels of each product. They are cut as if they belonged
    /// to one product.
    pub fn visit(
        &self,
        index: usize,
        panels: impl Iterator<Item = usize>,
        mut work: impl FnMut(usize, std::ops::Range<usize>),
    ) {
        let (part, mut first) = (self.part(index), 0);
        for (i, panels) in panels.enumerate() {
            let (start, end) = (part.start.max(first), part.end.min(first + panels));
            if start < end {
                work(i, start - first..end - first);
            }
            first += panels;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stream;

    #[test]
    fn streams_are_cut_without_gaps_into_shorter_and_shorter_parts() {
        for (panels, together) in
            [0, 1, 2, 7, 12, 64, 257, 9496].into_iter().flat_map(|p| [1, 3, 4].map(|t| (p, t)))
        {
            for threads in 1..=5 {
                let cut = stream(panels, together, panels * 9216, threads);
                let mut next = 0;
                for i in 0..cut.parts() {
                    let part = cut.part(i);
                    assert_eq!(part.start, next);
                    next = part.end;
                }
                assert_eq!(next, panels);
                let len = |i: usize| cut.part(i).len();
                assert!(len(cut.parts() - 1) <= len(0) + 1);
                if len(0) >= 2 * together {
                    assert_eq!(len(0) % together, 0, "{panels} panels, {together} at a time");
                }
            }
        }
    }
}
