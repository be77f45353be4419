//! Memory for the values between segments of a chunk in flight.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Device};
use troika_program::{SlotMemory, Slots};

use crate::error::EngineError;
use crate::memory::allocate_in;

/// Memory for the values of a chunk in flight. A buffer is allocated when a task first needs it, so
/// placements that never run take no memory.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Arc<Slots>,
    buffers: HashMap<SlotMemory, Buffer>,
    /// Rows of buffers of logits.
    logits_rows: usize,
}

impl EdgePool {
    /// A pool without buffers.
    pub fn new(slots: &Arc<Slots>) -> EdgePool {
        EdgePool { slots: slots.clone(), buffers: HashMap::new(), logits_rows: 0 }
    }

    /// Makes room for `rows` rows of logits. What is bound to smaller buffers keeps them.
    pub fn reserve_logits(&mut self, rows: usize) {
        if rows > self.logits_rows {
            self.logits_rows = rows;
            self.buffers.retain(|memory, _| !self.slots.is_for_logits(memory));
        }
    }

    /// The buffer of a slot's memory. The device that owns it allocates it when it is first needed.
    pub fn buffer(
        &mut self,
        memory: &SlotMemory,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        if let Some(known) = self.buffers.get(memory) {
            return Ok(known.clone());
        }
        let bytes = self.slots.bytes(memory, self.logits_rows);
        let buffer = allocate_in(memory.space, bytes, "activations", devices)?;
        self.buffers.insert(memory.clone(), buffer.clone());
        Ok(buffer)
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(|b| b.len() as u64).sum()
    }
}
