//! Rotary position embedding.

pub mod scalar;

use troika_device::{SeqRows, Step};
use troika_graph::{Rope, RopeFreqs, RopeStyle};

use crate::SharedMut;
use crate::kernels::{Context, KernelError, rows_per_part};

/// The frequencies for a row.
pub(crate) fn freqs_of<'a>(rope: &'a Rope, step: &Step, row: usize) -> &'a RopeFreqs {
    match &rope.long {
        Some((long, limit)) => {
            let seq = step.seqs.iter().find(|s: &&SeqRows| s.rows.contains(&row));
            if seq.is_some_and(|s| s.known_len > *limit) { long } else { &rope.freqs }
        }
        None => &rope.freqs,
    }
}

/// Scratch floats a worker needs: cosines and sines of a row.
pub fn worker_floats(rope: &Rope) -> usize {
    rope.rotary_dim
}

/// Rotates the heads of rows of `cols` elements; `positions` has one per row.
///
/// # Errors
/// A panic of a part.
pub fn rope(
    cx: &mut Context<'_>,
    rope: &Rope,
    step: &Step,
    (x, positions): (&[f32], &[i32]),
    (y, cols): (&mut [f32], usize),
) -> Result<(), KernelError> {
    assert!(cols > 0 && x.len() == y.len(), "lengths of a rope's operands");
    assert!(positions.len() == y.len() / cols, "a position per row");
    let (rows, part_rows, scratch) = (positions.len(), rows_per_part(cols * 2), cx.scratch);
    let out = SharedMut::new(y);
    cx.pool.run(rows.div_ceil(part_rows), &|worker, part| {
        // SAFETY: each worker asks for its own scratch once per part.
        let table = unsafe { scratch.get(worker) };
        let (cos, sin) = table[..rope.rotary_dim].split_at_mut(rope.rotary_dim / 2);
        for row in part * part_rows..((part + 1) * part_rows).min(rows) {
            let freqs = freqs_of(rope, step, row);
            let pos = positions[row] as f32;
            for (i, f) in freqs.inv_freq.iter().enumerate() {
                let (s, c) = (pos * f).sin_cos();
                (sin[i], cos[i]) = (s * freqs.factor, c * freqs.factor);
            }
            // SAFETY: each row belongs to one part.
            let y = unsafe { out.slice(row * cols..(row + 1) * cols) };
            let x = &x[row * cols..(row + 1) * cols];
            for (x, y) in x.chunks_exact(rope.head_dim).zip(y.chunks_exact_mut(rope.head_dim)) {
                head(rope, x, y, cos, sin);
            }
        }
    })?;
    Ok(())
}

fn head(rope: &Rope, x: &[f32], y: &mut [f32], cos: &[f32], sin: &[f32]) {
    y.copy_from_slice(x);
    let half = rope.rotary_dim / 2;
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
