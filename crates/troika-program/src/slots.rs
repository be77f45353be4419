//! Memory for the values between segments: slots that layers reuse.

use std::cmp::Reverse;

use troika_device::SpaceId;
use troika_model::lower::{EdgeId, Lowered};

use crate::program::Program;
use crate::residency::Instance;

/// The most bytes of one element: values are f32, i32, f16 or bf16.
pub const ELEMENT: usize = 4;

/// The slot of each value, and the width of each slot. A slot is free again after the last segment
/// that reads its value.
#[derive(Clone, Debug)]
pub struct Slots {
    of_value: Vec<usize>,
    /// The columns of each slot's widest value.
    cols: Vec<usize>,
    /// The rows of each buffer.
    rows: usize,
    logits: usize,
}

/// The memory of a slot in a space, for whole values or for some columns only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotMemory {
    /// The slot.
    pub slot: usize,
    /// The memory space.
    pub space: SpaceId,
    /// First column and number of columns; `None` for whole values, which share the memory.
    pub part: Option<(usize, usize)>,
    /// The row of [`Instance::row`].
    pub row: Option<usize>,
}

impl Slots {
    /// Assigns slots to all values of a program, for forward batches of up to `rows` rows.
    pub fn new(program: &Program, rows: usize) -> Slots {
        let lowered = &*program.lowered;
        let own =
            |v: usize| [Lowered::IDS, Lowered::POSITIONS, lowered.logits()].contains(&EdgeId(v));
        let edges = lowered.edges.len();
        let mut last_use = vec![0; edges];
        for (i, segment) in lowered.segments.iter().enumerate() {
            for e in segment.inputs.iter().chain(&segment.outputs) {
                last_use[e.0] = i;
            }
            program.read_beside(i).for_each(|value| last_use[value] = i);
        }
        let cols = &program.values.cols;
        let of_value = vec![usize::MAX; cols.len()];
        let mut slots = Slots { of_value, cols: Vec::new(), rows, logits: usize::MAX };
        let mut free: Vec<usize> = Vec::new();
        // Ids, positions and logits have host buffers of their own. In other spaces each has a slot
        // that no other value shares.
        for v in (0..edges).filter(|v| own(*v)) {
            slots.of_value[v] = slots.cols.len();
            slots.cols.push(cols[v]);
        }
        slots.logits = slots.of_value[lowered.logits().0];
        for (i, segment) in lowered.segments.iter().enumerate() {
            for v in segment.outputs.iter().map(|e| e.0).filter(|v| !own(*v)) {
                slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
            }
            // Values between pieces of one placement live at the same time. Values of two
            // placements never do.
            for of in program.between.iter().filter(|of| of.segment == i) {
                // Widest first, so that all placements of a segment share the same wide slots.
                let mut between: Vec<usize> = of.values.clone().collect();
                between.sort_by_key(|v| Reverse(cols[*v]));
                for &v in &between {
                    slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
                }
                free.extend(between.iter().map(|v| slots.of_value[*v]));
            }
            let edges = segment.inputs.iter().chain(&segment.outputs).map(|e| e.0);
            let beside = program.read_beside(i);
            for v in edges.chain(beside).filter(|v| last_use[*v] == i && !own(*v)) {
                if !free.contains(&slots.of_value[v]) {
                    free.push(slots.of_value[v]);
                }
            }
        }
        slots
    }

    /// The memory of an instance of a value of `cols` columns.
    pub(crate) fn memory(&self, value: usize, cols: usize, instance: &Instance) -> SlotMemory {
        let part = (instance.cols != (0..cols)).then(|| (instance.cols.start, instance.cols.len()));
        let Instance { space, row, .. } = *instance;
        SlotMemory { slot: self.of_value[value], space, part, row }
    }

    /// Whether a memory is for logits.
    pub fn is_for_logits(&self, memory: &SlotMemory) -> bool {
        memory.slot == self.logits
    }

    /// Bytes of a memory; `None` on overflow. The memory of logits has `logits_rows` rows, since
    /// few logits are wanted. Other memory has room for every batch.
    pub fn bytes(&self, memory: &SlotMemory, logits_rows: usize) -> Option<usize> {
        let cols = memory.part.map_or(self.cols[memory.slot], |(_, cols)| cols);
        let rows = if self.is_for_logits(memory) { logits_rows } else { self.rows };
        cols.checked_mul(ELEMENT)?.checked_mul(rows)
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
