//! Recurrences: one row of state for each sequence, which every position changes.

pub mod delta;
pub mod mamba2;
pub mod short_conv;

use troika_device::ForwardBatch;
use troika_graph::DecayingSum;

use crate::kernels::kv::{CacheRows, operand};
use crate::kernels::{Context, ELEMENTS_PER_PART, KernelError};
use crate::runtime::SharedMut;

/// `s = decay * s + x`, `y = s` for each row of `x` in turn, `width` elements each. A sequence goes
/// on with the sum behind its last position; the sums at the ends of its pages and behind its last
/// row are kept.
///
/// # Errors
/// A position without a page or outside of the state; a panic of a part.
pub fn decaying_sum(
    cx: &mut Context<'_>,
    forward: &ForwardBatch,
    op: &DecayingSum,
    state: CacheRows<'_, f32>,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    let (width, decay, state) = (op.width, op.decay, state.0);
    if width == 0 {
        return Ok(());
    }
    check(forward, op.page_group, state.len() / width)?;
    let parts = x.len().div_ceil(ELEMENTS_PER_PART).max(1);
    let cols = width.div_ceil(parts).next_multiple_of(64);
    let y = SharedMut::new(y);
    cx.run(width.div_ceil(cols), &|_, part| {
        let c = part * cols..((part + 1) * cols).min(width);
        // SAFETY: these columns belong to this part, and `CacheRows` promises the rows of the
        // state; no two of the slices that live together are of one row.
        let kept = |row: usize| unsafe { state.slice(row * width + c.start..row * width + c.end) };
        // SAFETY: as above.
        let sums = |row: usize| unsafe { y.slice(row * width + c.start..row * width + c.end) };
        for s in &forward.seqs {
            let table = &s.tables[op.page_group];
            for (i, row) in s.rows.clone().enumerate() {
                let (pos, x) = (s.pos + i, &x[row * width..][c.clone()]);
                let sum = sums(row);
                sum.copy_from_slice(x);
                let before = match i {
                    0 => pos.checked_sub(1).and_then(|last| table.row(last)).map(kept),
                    _ => Some(sums(row - 1)),
                };
                for (sum, before) in sum.iter_mut().zip(before.into_iter().flatten()) {
                    *sum += decay * *before;
                }
                if (pos + 1).is_multiple_of(table.page_len) || row + 1 == s.rows.end {
                    table.row(pos).into_iter().for_each(|row| kept(row).copy_from_slice(sum));
                }
            }
        }
    })?;
    Ok(())
}

/// Checks that a state of some rows has the pages of all positions.
fn check(forward: &ForwardBatch, page_group: usize, rows: usize) -> Result<(), KernelError> {
    if !forward.is_whole() {
        return Err(operand("the rows of sequences have gaps".into()));
    }
    for s in &forward.seqs {
        let table = &s.tables[page_group];
        for pos in s.pos.saturating_sub(1)..s.pos + s.rows.len() {
            if !table.fixed || table.row(pos).is_none_or(|row| row >= rows) {
                return Err(operand(format!("position {pos} has no row in the state")));
            }
        }
    }
    Ok(())
}

/// `ln(1 + exp(x))`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
