//! Memory of the values that flow between segments: slots reused across layers.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Device, SpaceId};
use troika_model::lower::{EdgeId, Lowered};

use crate::error::EngineError;
use crate::memory::{allocate, allocate_in};
use crate::program::Program;
use crate::residency::Instance;

/// Which slot each value lives in, and how wide slots are. A value's slot is free again after the
/// last segment that reads it.
#[derive(Debug)]
pub(crate) struct Slots {
    /// By value.
    of_value: Vec<usize>,
    /// Columns of the widest value of each slot.
    cols: Vec<usize>,
    /// Rows of each buffer.
    rows: usize,
}

/// The values of a chunk in flight: a buffer for each slot in the host's memory, and others where
/// devices want them.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Arc<Slots>,
    host: Vec<Buffer>,
    /// By slot: instances in other spaces, or of some columns only.
    others: HashMap<(usize, Instance), Buffer>,
}

/// Most bytes of one element: values are f32 or i32, or of 16 bits.
pub(crate) const ELEMENT: usize = 4;

impl Slots {
    /// Slots for all values of a program, for forward batches of up to `rows` rows.
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
        // Ids, positions and logits have buffers elsewhere; in other spaces they have their own
        // slots, which no other value takes.
        for v in (0..edges).filter(|v| own(*v)) {
            slots.of_value[v] = slots.cols.len();
            slots.cols.push(cols[v]);
        }
        for (i, segment) in lowered.segments.iter().enumerate() {
            for v in segment.outputs.iter().map(|e| e.0).filter(|v| !own(*v)) {
                slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
            }
            // The values between the pieces of a placement are there at once, those of two never.
            let placements = program.placement_of.chunk_by(|a, b| a == b);
            let mut end = edges;
            for of in placements {
                let between = end..end + of.len();
                end = between.end;
                if of[0].0 != i {
                    continue;
                }
                for v in between.clone() {
                    slots.of_value[v] = take_slot(&mut free, &mut slots.cols, cols[v]);
                }
                free.extend(between.map(|v| slots.of_value[v]));
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
    /// Memory for the values of a chunk.
    ///
    /// # Errors
    /// When the system has no memory for them.
    pub fn new(slots: &Arc<Slots>) -> Result<EdgePool, EngineError> {
        let slot = |cols: &usize| allocate(slots.bytes(*cols), "activations");
        let mut host: Vec<Buffer> =
            slots.cols.iter().skip(3).map(slot).collect::<Result<_, _>>()?;
        let none = allocate(Some(0), "activations")?;
        // In the host's memory, ids, positions and logits are not of the pool.
        host.splice(0..0, std::iter::repeat_n(none, 3.min(slots.cols.len())));
        Ok(EdgePool { slots: slots.clone(), host, others: HashMap::new() })
    }

    /// The buffer of an instance of a value, made if need be by the device whose memory it is in.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn buffer(
        &mut self,
        (value, cols): (usize, usize),
        instance: &Instance,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        let slot = self.slots.of_value[value];
        let whole = instance.cols == (0..cols);
        if whole && instance.space == SpaceId::HOST {
            return Ok(self.host[slot].clone());
        }
        // All values of a slot share its memory in a space.
        let width = if whole { self.slots.cols[slot] } else { instance.cols.len() };
        let key = match whole {
            true => Instance { space: instance.space, cols: 0..usize::MAX },
            false => instance.clone(),
        };
        if let Some(known) = self.others.get(&(slot, key.clone())) {
            return Ok(known.clone());
        }
        let bytes = self.slots.bytes(width);
        let buffer = allocate_in((instance.space, bytes), "activations", devices)?;
        self.others.insert((slot, key), buffer.clone());
        Ok(buffer)
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.host.iter().chain(self.others.values()).map(|b| b.len() as u64).sum()
    }
}

impl Slots {
    fn bytes(&self, cols: usize) -> Option<usize> {
        cols.checked_mul(ELEMENT)?.checked_mul(self.rows)
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
