//! Short causal convolutions of each column by itself.

use std::ops::Range;

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::ShortConv;

use super::check;
use crate::SharedMut;
use crate::kernels::kv::CacheRows;
use crate::kernels::simd::{Kernel, Lanes, dispatch, part_of, put_part, swish};
use crate::kernels::{Context, ELEMENTS_PER_PART, KernelError};

/// Columns computed together: their last inputs stay in the first-level cache.
const BLOCK: usize = 64;

/// The operands of a convolution.
pub struct Operands<'a> {
    /// The op.
    pub op: &'a ShortConv,
    /// The taps of all columns, one tap after another, the oldest first.
    pub weight: &'a [f32],
    /// A number for each column.
    pub bias: Option<&'a [f32]>,
    /// Sequences.
    pub forward: &'a ForwardBatch,
    /// The last inputs.
    pub state: CacheRows<'a, f32>,
    /// Rows.
    pub x: &'a [f32],
}

/// Scratch floats a worker needs: the last inputs of a block.
pub fn worker_floats(op: &ShortConv) -> usize {
    op.taps.saturating_mul(BLOCK)
}

/// See [`ShortConv`]; the last inputs at the ends of pages and behind the last row are kept.
///
/// # Errors
/// A position without a page or outside of the state; a panic of a part.
pub fn short_conv(
    cx: &mut Context<'_>,
    operands: Operands<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let Operands { op, forward, .. } = operands;
    let row = op.state().unwrap_or(0);
    if row == 0 {
        return Ok(());
    }
    check(forward, op.page_group, operands.state.0.len() / row)?;
    let parts = operands.x.len().div_ceil(ELEMENTS_PER_PART).max(1);
    let (isa, cols) = (cx.isa, op.width.div_ceil(parts).next_multiple_of(BLOCK));
    let (y, operands) = (SharedMut::new(y), &operands);
    cx.run(op.width.div_ceil(cols), &|window, part| {
        let cols = part * cols..((part + 1) * cols).min(op.width);
        dispatch(isa, ConvColumns { of: operands, y: &y, window, cols });
    })
}

/// Some columns of all rows.
struct ConvColumns<'a> {
    of: &'a Operands<'a>,
    y: &'a SharedMut<'a, f32>,
    /// The last inputs of a block, a ring of as many rows as there are taps.
    window: &'a mut [f32],
    cols: Range<usize>,
}

impl Kernel for ConvColumns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        for first in self.cols.clone().step_by(BLOCK) {
            let cols = first..(first + BLOCK).min(self.cols.end);
            for s in &self.of.forward.seqs {
                self.sequence::<V>(s, cols.clone());
            }
        }
    }
}

impl ConvColumns<'_> {
    #[inline(always)]
    fn sequence<V: Lanes>(&mut self, s: &SeqRows, cols: Range<usize>) {
        let Operands { op, state, x, .. } = self.of;
        let (width, keep, table) = (op.width, op.taps - 1, &s.tables[op.page_group]);
        // SAFETY: these columns belong to this part, and `CacheRows` promises the rows of the state.
        let kept = |row: usize, at: usize| unsafe {
            let first = (row * keep + at) * width;
            state.0.slice(first + cols.start..first + cols.end)
        };
        let before = s.pos.checked_sub(1).and_then(|last| table.row(last));
        for (at, slot) in self.window.chunks_exact_mut(BLOCK).take(keep).enumerate() {
            match before {
                Some(row) => slot[..cols.len()].copy_from_slice(kept(row, at)),
                None => slot.fill(0.0),
            }
        }
        let wide = if op.gated { 3 * width } else { width };
        for (i, row) in s.rows.clone().enumerate() {
            let pos = s.pos + i;
            let x = &x[row * wide..][..wide];
            let group = |g: usize| &x[g * width..][cols.clone()];
            let slot = &mut self.window[(i + keep) % op.taps * BLOCK..][..cols.len()];
            slot.copy_from_slice(group(if op.gated { 2 } else { 0 }));
            if op.gated {
                slot.iter_mut().zip(group(0)).for_each(|(slot, gate)| *slot *= gate);
            }
            self.row::<V>(row, i, &cols, op.gated.then(|| group(1)));
            if (pos + 1).is_multiple_of(table.page_len) || row + 1 == s.rows.end {
                let Some(row) = table.row(pos) else { continue };
                for at in 0..keep {
                    let slot = &self.window[(i + 1 + at) % op.taps * BLOCK..][..cols.len()];
                    kept(row, at).copy_from_slice(slot);
                }
            }
        }
    }

    /// Computes a row, the `i`th of its sequence.
    #[inline(always)]
    fn row<V: Lanes>(&self, row: usize, i: usize, cols: &Range<usize>, gate: Option<&[f32]>) {
        let Operands { op, weight, bias, .. } = self.of;
        let (n, width) = (cols.len(), op.width);
        // SAFETY: these columns belong to this part.
        let y = unsafe { self.y.slice(row * width + cols.start..row * width + cols.end) };
        for c in (0..n).step_by(V::N) {
            let read = |x: &[f32]| part_of::<V>(&x[c..n]);
            let mut sum = bias.map_or(V::splat(0.0), |b| read(&b[cols.clone()]));
            for tap in 0..op.taps {
                let slot = &self.window[(i + tap) % op.taps * BLOCK..][..n];
                let w = &weight[tap * width..][cols.clone()];
                sum = read(w).fma(read(slot), sum);
            }
            if op.silu {
                sum = swish(sum, V::splat(1.0));
            }
            if let Some(gate) = gate {
                sum = sum.mul(read(gate));
            }
            put_part(sum, &mut y[c..]);
        }
    }
}
