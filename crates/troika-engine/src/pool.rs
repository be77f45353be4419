//! Memory of the values that flow between segments: slots reused across layers.

use troika_device::Buffer;
use troika_model::lower::{EdgeId, Lowered};

use crate::engine::allocate;
use crate::error::EngineError;

/// One buffer per slot; which slot each edge lives in.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Vec<Buffer>,
    of_edge: Vec<usize>,
}

/// Bytes of one element; edges are f32 or i32.
const ELEMENT: usize = 4;

impl EdgePool {
    /// Slots for all edges of a model, for forward batches of up to `rows` rows. An edge's slot is
    /// free again after the last segment that reads it. Ids, positions and logits have their own
    /// buffers elsewhere.
    ///
    /// # Errors
    /// When the system has no memory for them.
    pub fn new(lowered: &Lowered, rows: usize) -> Result<EdgePool, EngineError> {
        let own = [Lowered::IDS, Lowered::POSITIONS, lowered.logits()];
        let mut last_use = vec![0; lowered.edges.len()];
        for (i, segment) in lowered.segments.iter().enumerate() {
            for e in segment.inputs.iter().chain(&segment.outputs) {
                last_use[e.0] = i;
            }
        }
        let mut of_edge = vec![usize::MAX; lowered.edges.len()];
        let mut sizes: Vec<usize> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        for (i, segment) in lowered.segments.iter().enumerate() {
            for e in segment.outputs.iter().filter(|e| !own.contains(e)) {
                let cols = lowered.edges[e.0].cols;
                let slot = take_slot(&mut free, &mut sizes, cols);
                of_edge[e.0] = slot;
            }
            for e in segment.inputs.iter().chain(&segment.outputs) {
                let done = last_use[e.0] == i && !own.contains(e);
                if done && !free.contains(&of_edge[e.0]) {
                    free.push(of_edge[e.0]);
                }
            }
        }
        let bytes = |cols: usize| cols.checked_mul(ELEMENT)?.checked_mul(rows);
        let slot = |cols: &usize| allocate(bytes(*cols), "activations");
        Ok(EdgePool { slots: sizes.iter().map(slot).collect::<Result<_, _>>()?, of_edge })
    }

    /// The buffer of an edge; `None` for those with buffers elsewhere.
    pub fn buffer(&self, edge: EdgeId) -> Option<&Buffer> {
        self.slots.get(*self.of_edge.get(edge.0)?)
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|b| b.len() as u64).sum()
    }
}

/// The free slot whose size is nearest, or a new one; grows it when needed.
fn take_slot(free: &mut Vec<usize>, sizes: &mut Vec<usize>, cols: usize) -> usize {
    let nearest = free.iter().enumerate().min_by_key(|(_, s)| sizes[**s].abs_diff(cols));
    match nearest.map(|(i, _)| i) {
        Some(i) => {
            let slot = free.swap_remove(i);
            sizes[slot] = sizes[slot].max(cols);
            slot
        }
        None => {
            sizes.push(cols);
            sizes.len() - 1
        }
    }
}
