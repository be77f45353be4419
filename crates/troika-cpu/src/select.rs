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

/// Most rows with which a product waits for memory, so that its weights are asked for ahead.
pub(crate) const AHEAD_ROWS: usize = 4;
/// Weight bytes asked for ahead: about what memory gives in the time between two products, and
/// less than a core's second-level cache.
pub(crate) const AHEAD_BYTES: usize = 512 << 10;

/// Shape of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
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
pub struct LinearChoice {
    /// Weight rows of a part.
    pub panel: usize,
    /// Activation rows of a part.
    pub row_block: usize,
}

/// Cuts a matrix product for `threads` threads.
pub fn linear(isa: Isa, shape: LinearShape, threads: usize) -> LinearChoice {
    // Weight rows that fill the registers of a tile, or of a row alone.
    let step = match isa {
        _ if shape.rows == 1 => 16,
        Isa::Scalar | Isa::Avx2 | Isa::AvxVnni => 16,
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

/// Queries of a part of an attention: enough to reuse keys, few enough to stay in cache.
const ATTENTION_LINES: usize = 32;
/// Most heads of a part.
const ATTENTION_HEADS: usize = 8;

/// How attention is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionChoice {
    /// Rows of a part.
    pub rows: usize,
    /// Query heads of a part.
    pub heads: usize,
}

/// Cuts an attention with `group` query heads per key/value head.
pub(crate) fn attention(group: usize) -> AttentionChoice {
    let heads = group.clamp(1, ATTENTION_HEADS);
    AttentionChoice { rows: (ATTENTION_LINES / heads).max(1), heads }
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
