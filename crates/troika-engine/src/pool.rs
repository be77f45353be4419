//! Memory for the values between segments of a chunk in flight.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Device};
use troika_program::{NamedView, SlotMemory, Slots};

use crate::error::EngineError;
use crate::memory::allocate_in;

/// Memory for the values of a chunk in flight. A buffer is allocated when a task first needs it, so
/// placements that never run take no memory.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Arc<Slots>,
    buffers: HashMap<SlotMemory, Buffer>,
}

impl EdgePool {
    /// A pool without buffers.
    pub fn new(slots: &Arc<Slots>) -> EdgePool {
        EdgePool { slots: slots.clone(), buffers: HashMap::new() }
    }

    /// The buffer of a slot's memory, for a view. The device that owns it allocates it when it is
    /// first needed, or has to be longer.
    ///
    /// # Errors
    /// There is not enough memory for it.
    pub fn buffer(
        &mut self,
        memory: &SlotMemory,
        view: &NamedView,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        let bytes = self.slots.bytes(memory, view.rect().span().end);
        if let Some(known) = self.buffers.get(memory)
            && bytes.is_some_and(|bytes| bytes <= known.len())
        {
            return Ok(known.clone());
        }
        let buffer = allocate_in(memory.space, bytes, "activations", devices)?;
        self.buffers.insert(memory.clone(), buffer.clone());
        Ok(buffer)
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(|b| b.len() as u64).sum()
    }
}
