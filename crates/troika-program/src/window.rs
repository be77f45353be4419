//! The tasks of several chunks in program order.

use crate::error::ProgramError;
use crate::placed::PlacedExperts;
use crate::program::Program;
use crate::slots::Slots;
use crate::tasks::{BatchShape, ChunkMade, ChunkTasks, NamedTask};

impl Program {
    /// The tasks of several forward batches: chunk by chunk, or layer by layer where chunks in
    /// flight share buffers of experts. The logits of all wanted rows follow each other.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn tasks(
        &self,
        slots: &Slots,
        batches: &[BatchShape],
    ) -> Result<Vec<NamedTask>, ProgramError> {
        let (mut tasks, mut logits_row) = (Vec::new(), 0);
        for window in batches.chunk_by(|a, b| a.set < b.set) {
            let mut chunks = Vec::new();
            for (at, batch) in window.iter().enumerate() {
                let place = |segment| self.place_among(window, at, segment);
                chunks.push(ChunkTasks::new(self, slots, batch, &place).make(&mut logits_row)?);
            }
            merge(chunks, &mut tasks);
        }
        Ok(tasks)
    }

    /// The place of a chunk among the chunks of a window that share the experts of a segment, and
    /// whether it is the last of them.
    fn place_among(&self, window: &[BatchShape], at: usize, segment: usize) -> (usize, bool) {
        let placed = |b: &BatchShape| self.placed(b.phase, b.rows, segment);
        let own = placed(&window[at]);
        let layer_major = own.segment.experts.as_ref().is_some_and(PlacedExperts::is_layer_major);
        if !layer_major {
            return (0, true);
        }
        let shares = |b: &&BatchShape| placed(b).experts == own.experts;
        let before = window[..at].iter().filter(shares).count();
        (before, !window[at + 1..].iter().any(|b| shares(&b)))
    }
}

/// Puts the tasks of chunks into program order: chunk by chunk, up to each segment whose experts
/// they share. There the rows of all chunks are routed first, and all results added up before the
/// next layer's rows take the places of this one's.
fn merge(chunks: Vec<ChunkMade>, all: &mut Vec<NamedTask>) {
    let mut borders: Vec<usize> = chunks.iter().flat_map(|c| c.shared.iter().copied()).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut left: Vec<_> = chunks.into_iter().map(|c| (c.tasks.into_iter(), 0, c.ends)).collect();
    for (border, step) in borders.into_iter().flat_map(|border| [(border, 0), (border, 1)]) {
        for (tasks, taken, ends) in &mut left {
            let upto = ends.get(border).map_or(*taken, |ends| ends[step]);
            all.extend(tasks.take(upto - *taken));
            *taken = upto;
        }
    }
    left.into_iter().for_each(|(tasks, ..)| all.extend(tasks));
}
