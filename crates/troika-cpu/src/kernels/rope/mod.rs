//! Rotary position embedding.

mod angles;

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::{Rope, RopeFreqs, RopeStyle};

use crate::kernels::simd::{Kernel, Lanes, dispatch};
use crate::kernels::{Context, KernelError, rows_per_part};

/// The frequencies for a row.
pub(crate) fn freqs_of<'a>(rope: &'a Rope, forward: &ForwardBatch, row: usize) -> &'a RopeFreqs {
    match &rope.long {
        Some((long, limit)) => {
            let seq = forward.seqs.iter().find(|s: &&SeqRows| s.rows.contains(&row));
            if seq.is_some_and(|s| s.known_len > *limit) { long } else { &rope.freqs }
        }
        None => &rope.freqs,
    }
}

/// Scratch floats a worker needs: cosines and sines of a row.
pub fn worker_floats(rope: &Rope) -> usize {
    rope.rotary_dim
}

/// Rotates the heads of rows; `positions` has one per row.
///
/// # Errors
/// A panic of a part.
pub fn rope(
    cx: &mut Context<'_>,
    rope: &Rope,
    forward: &ForwardBatch,
    x: &[f32],
    positions: &[i32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    assert!(x.len() == y.len(), "lengths of a rope's operands");
    if y.is_empty() {
        return Ok(());
    }
    assert!(!positions.is_empty() && y.len().is_multiple_of(positions.len()), "a position per row");
    let cols = y.len() / positions.len();
    let isa = cx.isa;
    cx.run_rows(y, cols, rows_per_part(cols * 2), |table, rows, y| {
        let x = &x[rows.start * cols..rows.end * cols];
        dispatch(isa, RopePart { rope, forward, positions, rows, x, y, cols, table });
    })
}

/// Some rows; the compiler finds the lanes by itself.
struct RopePart<'a> {
    rope: &'a Rope,
    forward: &'a ForwardBatch,
    positions: &'a [i32],
    rows: std::ops::Range<usize>,
    /// The rows' elements, `cols` each.
    x: &'a [f32],
    y: &'a mut [f32],
    cols: usize,
    table: &'a mut [f32],
}

impl Kernel for RopePart<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let RopePart { rope, forward, positions, rows, x, y, cols, table } = self;
        let (cos, sin) = table[..rope.rotary_dim].split_at_mut(rope.rotary_dim / 2);
        let lines = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for (row, (x, y)) in rows.zip(lines) {
            angles::fill(freqs_of(rope, forward, row), positions[row] as f32, cos, sin);
            for (x, y) in x.chunks_exact(rope.head_dim).zip(y.chunks_exact_mut(rope.head_dim)) {
                head(rope, x, y, cos, sin);
            }
        }
    }
}

#[inline(always)]
fn head(rope: &Rope, x: &[f32], y: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (half, end) = (rope.rotary_dim / 2, rope.offset + rope.rotary_dim);
    y[..rope.offset].copy_from_slice(&x[..rope.offset]);
    y[end..].copy_from_slice(&x[end..]);
    let x = &x[rope.offset..][..rope.rotary_dim];
    let y = &mut y[rope.offset..][..rope.rotary_dim];
    match rope.style {
        RopeStyle::Half => {
            let (x1, x2) = x.split_at(half);
            let (y1, y2) = y.split_at_mut(half);
            for i in 0..half {
                y1[i] = x1[i] * cos[i] - x2[i] * sin[i];
                y2[i] = x2[i] * cos[i] + x1[i] * sin[i];
            }
        }
        RopeStyle::Interleaved => {
            for (i, (x, y)) in x.chunks_exact(2).zip(y.chunks_exact_mut(2)).enumerate() {
                y[0] = x[0] * cos[i] - x[1] * sin[i];
                y[1] = x[1] * cos[i] + x[0] * sin[i];
            }
        }
    }
}
