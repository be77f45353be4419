//! The tasks of several chunks in program order.

use crate::error::ProgramError;
use crate::experts::PackedSet;
use crate::program::Program;
use crate::slots::Slots;
use crate::tasks::{BatchShape, ChunkMade, ChunkTasks, NamedTask};

/// How many of `in_flight` chunks are a window, which fills the same buffers of experts; `filling` chunks
/// fill them once. A window's results are there when the last of its experts have run. So there are two
/// windows, if each has enough rows: one is routed while the other one's experts run.
pub fn chunks_of_window(in_flight: usize, filling: usize) -> usize {
    in_flight.div_ceil((in_flight / filling.max(1)).clamp(1, 2))
}

impl Program {
    /// The tasks of several forward batches: chunk by chunk, or layer by layer where the chunks of a
    /// window share buffers of experts. The logits of all wanted rows follow each other.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn tasks(
        &self,
        slots: &Slots,
        batches: &[BatchShape],
    ) -> Result<Vec<NamedTask>, ProgramError> {
        let (mut tasks, mut logits_row) = (Vec::new(), 0);
        let sets = batches.iter().map(|b| b.set + 1).max().unwrap_or(1);
        let number = |b: &BatchShape| b.set / chunks_of_window(sets, self.filling);
        for window in batches.chunk_by(|a, b| a.set < b.set && number(a) == number(b)) {
            let mut chunks = Vec::new();
            for (at, batch) in window.iter().enumerate() {
                let place = |segment| match self.place_in(window, at, segment) {
                    Some(place) => (PackedSet::Window(number(batch)), place),
                    None => (PackedSet::Chunk(batch.set), (0, true)),
                };
                chunks.push(ChunkTasks::new(self, slots, batch, &place).make(&mut logits_row)?);
            }
            merge(chunks, &mut tasks);
        }
        Ok(tasks)
    }

    /// The place of a chunk among the chunks of a window that share the experts of a segment, and
    /// whether it is the last of them. `None`: each chunk has buffers of its own.
    fn place_in(&self, window: &[BatchShape], at: usize, segment: usize) -> Option<(usize, bool)> {
        let placed = |b: &BatchShape| self.placed(b.phase, b.rows, segment);
        let own = placed(&window[at]);
        own.segment.experts.as_ref().filter(|experts| experts.is_layer_major())?;
        let shares = |b: &&BatchShape| placed(b).experts == own.experts;
        let before = window[..at].iter().filter(shares).count();
        Some((before, !window[at + 1..].iter().any(|b| shares(&b))))
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

#[cfg(test)]
mod tests {
    #[test]
    fn there_are_two_windows_where_each_fills_its_buffers() {
        let all = [(1, 1), (2, 1), (4, 2), (5, 2), (3, 2), (16, 4), (7, 4), (16, 9), (4, 0)];
        let windows = all.map(|(in_flight, filling)| super::chunks_of_window(in_flight, filling));
        assert_eq!(windows, [1, 1, 2, 3, 3, 8, 7, 16, 2]);
    }
}
