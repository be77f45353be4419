//! Blocks of weight rows turned into panels: for each word, a register of weight rows.

use std::ops::Range;

use troika_graph::DType;

use super::terms::{Halves, Pairs, RowReader};
use super::weights::{F16Row, F32Row, widen};
use super::{BLOCK, WeightView};
use crate::kernels::simd::{Lanes, MAX_LANES};

/// Bytes of a row before those in use that are asked for: about the latency of memory.
const PREFETCH_DISTANCE: usize = 512;

/// A block of a weight: some rows, some columns.
#[derive(Clone, Copy)]
pub(super) struct WeightBlock<'a> {
    pub weight: WeightView<'a>,
    /// First row.
    pub n: usize,
    /// Rows.
    pub rows: usize,
    /// First column.
    pub at: usize,
    /// Columns.
    pub len: usize,
    /// Whether words are pairs of bf16.
    pub pairs: bool,
}

/// Packs a block: word `k` of all rows at `to[k * width..]`, `width` at least the rows rounded up
/// to whole registers. Types other than plain floats pass through `wide` (a register's rows of
/// `len` floats).
#[inline(always)]
pub(super) fn pack<V: Lanes>(b: WeightBlock<'_>, to: &mut [f32], width: usize, wide: &mut [f32]) {
    let w = &b.weight;
    w.check();
    assert!(b.at.is_multiple_of(BLOCK), "a block begins where another ends");
    assert!(b.pairs <= (w.dtype == DType::BF16), "pairs meet weights of bf16");
    assert!(b.n + b.rows <= w.rows && b.at + b.len <= w.cols, "a block inside of the weight");
    assert!(b.rows.next_multiple_of(V::N) <= width, "width of a panel");
    let words = if b.pairs { b.len.div_ceil(2) } else { b.len };
    assert!(to.len() >= words * width, "memory of a panel");
    let bytes = w.row_bytes();
    // SAFETY: the weight has these rows and columns; there is room for all words of them.
    unsafe {
        let base = w.bytes.as_ptr().add(b.n * bytes);
        let rows = |g: usize| rows::<V>(base.wrapping_add(g * bytes), bytes, b.rows - g);
        for g in (0..b.rows).step_by(V::N) {
            let to = PanelTarget { to: to.as_mut_ptr().add(g), width };
            macro_rules! as_they_lie {
                ($reader:ty) => {
                    columns::<V, $reader>(rows(g), b.at, b.len, to)
                };
            }
            match (b.pairs, w.dtype) {
                (true, _) => as_they_lie!(Pairs),
                (_, DType::BF16) => as_they_lie!(Halves),
                (_, DType::F32) => as_they_lie!(F32Row),
                (_, DType::F16) => as_they_lie!(F16Row),
                _ => {
                    let count = (b.rows - g).min(V::N);
                    for i in 0..count {
                        widen(w, b.n + g + i, b.at, &mut wide[i * b.len..][..b.len]);
                    }
                    let wide = wide.as_ptr().cast::<u8>();
                    let rows = self::rows::<V>(wide, b.len * 4, count);
                    columns::<V, F32Row>(rows, 0, b.len, to);
                }
            }
        }
    }
}

/// Packs all columns of some rows: word `k` of all rows at `to[k * width..]`, `width` at least the
/// rows rounded up to whole registers.
///
/// # Safety
/// `S` reads rows of the weight's type, and the weight has as many rows as it says.
#[inline(always)]
pub(super) unsafe fn pack_lanes<V: Lanes, S: RowReader>(
    w: &WeightView<'_>,
    rows: Range<usize>,
    to: &mut [f32],
    width: usize,
) {
    assert!(rows.start < rows.end && rows.end <= w.rows, "rows of the weight");
    assert!(rows.len().next_multiple_of(V::N) <= width, "width of a panel");
    let words = w.cols.div_ceil(S::COLS);
    assert!(to.len() >= words * width, "memory of a panel");
    let bytes = w.row_bytes();
    // Rows behind the last one repeat it.
    for g in (0..width).step_by(V::N) {
        let first = (rows.start + g).min(rows.end - 1);
        let from = w.bytes[first * bytes..].as_ptr();
        let lanes = self::rows::<V>(from, bytes, rows.end - first);
        // SAFETY: the rows have these columns by the caller, the panel room for them.
        unsafe {
            let to = PanelTarget { to: to.as_mut_ptr().add(g), width };
            columns::<V, S>(lanes, 0, w.cols, to);
        }
    }
}

/// The rows of a register, `stride` bytes apart; behind the last it is repeated.
#[inline(always)]
pub(super) fn rows<V: Lanes>(
    base: *const u8,
    stride: usize,
    count: usize,
) -> [*const u8; MAX_LANES] {
    std::array::from_fn(|i| base.wrapping_add(i.min(V::N - 1).min(count - 1) * stride))
}

/// Asks for what the rows hold behind the bytes from `at` on; where a row ends, for the beginning
/// of the row that takes its place next.
#[inline(always)]
pub(super) fn prefetch_rows<V: Lanes>(rows: &[*const u8], bytes: usize, at: usize, groups: usize) {
    let to = at + PREFETCH_DISTANCE;
    let jump = if to < bytes { to } else { to - bytes + groups * V::N * bytes };
    for r in &rows[..V::N] {
        V::prefetch(r.wrapping_add(jump));
    }
}

/// Where the words of a register's rows go.
struct PanelTarget {
    to: *mut f32,
    width: usize,
}

/// Columns `from..from + len` of a register's rows.
///
/// # Safety
/// The rows have these columns, the panel room for their words.
#[inline(always)]
unsafe fn columns<V: Lanes, S: RowReader>(
    rows: [*const u8; MAX_LANES],
    from: usize,
    len: usize,
    panel: PanelTarget,
) {
    let step = S::COLS * V::N;
    let words = S::words(len);
    let mut i = 0;
    // SAFETY: by the caller.
    unsafe {
        while i < len {
            let whole = i + step <= len;
            let lanes = square::<V, S>(rows, from + i, (len - i).min(step));
            let first = i / S::COLS * S::WORDS;
            for (j, lanes) in lanes.into_iter().take(V::N).enumerate() {
                for w in 0..S::WORDS {
                    let word = first + j * S::WORDS + w;
                    if whole || word < words {
                        S::word(lanes, w).store(panel.to.add(word * panel.width));
                    }
                }
            }
            i += step;
        }
    }
}

/// `N` lanes of `N` rows, turned: each register holds one lane of all rows.
///
/// # Safety
/// The rows have these columns.
#[inline(always)]
pub(super) unsafe fn square<V: Lanes, S: RowReader>(
    rows: [*const u8; MAX_LANES],
    from: usize,
    cols: usize,
) -> [V; MAX_LANES] {
    // SAFETY: by the caller.
    unsafe {
        let mut lanes = [V::splat(0.0); MAX_LANES];
        if cols == S::COLS * V::N {
            for r in 0..V::N {
                lanes[r] = S::load(rows[r], from);
            }
        } else {
            for r in 0..V::N {
                lanes[r] = S::tail(rows[r], from, cols);
            }
        }
        V::transpose(lanes)
    }
}

/// Floats [`pack`] may need besides the panel.
pub(super) const WIDE: usize = MAX_LANES * BLOCK;
