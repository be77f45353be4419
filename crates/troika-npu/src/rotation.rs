//! Cosines and sines of positions. The host computes them: halves, in which some processors compute,
//! do not tell the angles of large positions apart, and which frequencies a row has follows from the
//! length of its sequence.

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Rope;

/// Two inputs of a model, `[rows, rotary_dim / 2]` each: cosines, then sines.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    /// The graph's input with the positions.
    pub positions: usize,
    pub rope: Rope,
}

impl Rotation {
    /// Fills the inputs' rows for these positions.
    pub fn fill(
        &self,
        positions: impl Iterator<Item = i32>,
        forward: &ForwardBatch,
        cos: &mut [f32],
        sin: &mut [f32],
    ) {
        let half = (self.rope.rotary_dim / 2).max(1);
        let rows = cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half));
        for (row, (position, (cos, sin))) in positions.zip(rows).enumerate() {
            let holds = |s: &&SeqRows| s.rows.contains(&row);
            let known = forward.seqs.iter().find(holds).map_or(0, |s| s.known_len);
            let freqs = match &self.rope.long {
                Some((long, limit)) if known > *limit => long,
                _ => &self.rope.freqs,
            };
            let factor = freqs.factor_at(position as f32);
            for ((frequency, cos), sin) in freqs.inv_freq.iter().zip(cos).zip(sin) {
                let (s, c) = f64::from(position as f32 * frequency).sin_cos();
                (*cos, *sin) = (c as f32 * factor, s as f32 * factor);
            }
        }
    }
}
