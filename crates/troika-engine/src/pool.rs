//! Memory for the values between segments: slots that layers reuse.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Device};
use troika_model::lower::{EdgeId, Lowered};

use crate::error::EngineError;
use crate::memory::allocate_in;
use crate::program::Program;
use crate::residency::Instance;

/// The slot of each value, and the width of each slot. A slot is free again after the last segment
/// that reads its value.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The slot of each value.
    of_value: Vec<usize>,
    /// The columns of each slot's widest value.
    cols: Vec<usize>,
    /// The rows of each buffer.
    rows: usize,
}

/// Memory for the values of a chunk in flight. A buffer is allocated when a task first needs it, so
/// placements that never run take no memory.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Arc<Slots>,
    /// By slot: instances in the memory spaces that they are used in, whole or of some columns.
    buffers: HashMap<(usize, Instance), Buffer>,
}

/// The most bytes of one element: values are f32, i32, f16 or bf16.
pub(crate) const ELEMENT: usize = 4;

impl Slots {
    /// Assigns slots to all values of a program, for forward batches of up to `rows` rows.
    pub fn new(lowered: &Lowered, program: &Program, rows: usize) -> Slots {
        let own =
            |v: usize| [Lowered::IDS, Lowered::POSITIONS, lowered.logits()].contains(&EdgeId(v));
        let edges = lowered.edges.len();
        let mut last_use = vec![0; edges];
        for (i, segment) in lowered.segments.iter().enumerate() {
            for e in segment.inputs.iter().chain(&segment.outputs) {
                last_use[e.0] = i;
            }
        }
        let cols = &program.values.cols;
        let mut slots = Slots { of_value: vec![usize::MAX; cols.len()], cols: Vec::new(), rows };
        let mut free: Vec<usize> = Vec::new();
        // Ids, positions and logits have host buffers of their own. In other spaces each has a slot
        // that no other value shares.
        for v in (0..edges).filter(|v| own(*v)) {
            slots.of_value[v] = slots.cols.len();
            slots.cols.push(cols[v]);
        }
        for (i, segment) in lowered.segments.iter().enumerate() {
            for v in segment.outputs.iter().map(|e| e.0).filter(|v| !own(*v)) {
                slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
            }
            // Values between pieces of one placement live at the same time; those of two never do.
            let placements = program.placement_of.chunk_by(|a, b| a == b);
            let mut end = edges;
            for of in placements {
                let mut between: Vec<usize> = (end..end + of.len()).collect();
                end += of.len();
                if of[0].0 != i {
                    continue;
                }
                // Widest first, so that all placements of a segment share the same wide slots.
                between.sort_by_key(|v| Reverse(cols[*v]));
                for &v in &between {
                    slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
                }
                free.extend(between.iter().map(|v| slots.of_value[*v]));
            }
            let edges = segment.inputs.iter().chain(&segment.outputs).map(|e| e.0);
            for v in edges.filter(|v| last_use[*v] == i && !own(*v)) {
                if !free.contains(&slots.of_value[v]) {
                    free.push(slots.of_value[v]);
                }
            }
        }
        slots
    }
}

impl EdgePool {
    /// A pool without buffers.
    pub fn new(slots: &Arc<Slots>) -> EdgePool {
        EdgePool { slots: slots.clone(), buffers: HashMap::new() }
    }

    /// The buffer of an instance of a value. The device that owns the memory allocates it when it
    /// is first needed.
    ///
    /// # Errors
    /// There is not enough memory for it.
    pub fn buffer(
        &mut self,
        (value, cols): (usize, usize),
        instance: &Instance,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        let slot = self.slots.of_value[value];
        let whole = instance.cols == (0..cols);
        // Whole values of a slot share its memory in a space.
        let width = if whole { self.slots.cols[slot] } else { instance.cols.len() };
        let key = match whole {
            true => Instance { space: instance.space, cols: 0..usize::MAX },
            false => instance.clone(),
        };
        if let Some(known) = self.buffers.get(&(slot, key.clone())) {
            return Ok(known.clone());
        }
        let bytes = self.slots.bytes(width);
        let buffer = allocate_in((instance.space, bytes), "activations", devices)?;
        self.buffers.insert((slot, key), buffer.clone());
        Ok(buffer)
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(|b| b.len() as u64).sum()
    }
}

impl Slots {
    fn bytes(&self, cols: usize) -> Option<usize> {
        cols.checked_mul(ELEMENT)?.checked_mul(self.rows)
    }
}

/// The free slot of nearest width, or a new one. Of equal widths it takes the first, so that all
/// layers use the same slots. Widens the slot if necessary.
fn take_slot(free: &mut Vec<usize>, sizes: &mut Vec<usize>, cols: usize) -> usize {
    let nearest = free.iter().enumerate().min_by_key(|(_, s)| (sizes[**s].abs_diff(cols), **s));
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
