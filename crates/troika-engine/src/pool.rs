//! Memory for the values between segments of a chunk in flight.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Device, SpaceId};
use troika_program::{SlotMemory, Slots};

use crate::error::EngineError;
use crate::memory::{allocate, allocate_in};

/// Memory for the values of a chunk in flight: a buffer per slot in host memory, and more where
/// devices need them.
#[derive(Debug)]
pub(crate) struct EdgePool {
    slots: Arc<Slots>,
    /// By slot.
    host: Vec<Buffer>,
    /// In other memory spaces, or for some columns only.
    others: HashMap<SlotMemory, Buffer>,
}

impl EdgePool {
    /// Allocates the values of a chunk.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(slots: &Arc<Slots>) -> Result<EdgePool, EngineError> {
        let host = |slot: usize| {
            let whole = SlotMemory { slot, space: SpaceId::HOST, part: None };
            let bytes = if slot < Slots::OWN { Some(0) } else { slots.bytes(&whole) };
            allocate(bytes, "activations")
        };
        let host = (0..slots.len()).map(host).collect::<Result<_, _>>()?;
        Ok(EdgePool { slots: slots.clone(), host, others: HashMap::new() })
    }

    /// The buffer of a slot's memory. The device that owns it allocates it when it is first needed.
    ///
    /// # Errors
    /// There is not enough memory for it.
    pub fn buffer(
        &mut self,
        memory: &SlotMemory,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        if memory.part.is_none() && memory.space == SpaceId::HOST {
            return Ok(self.host[memory.slot].clone());
        }
        if let Some(known) = self.others.get(memory) {
            return Ok(known.clone());
        }
        let bytes = self.slots.bytes(memory);
        let buffer = allocate_in((memory.space, bytes), "activations", devices)?;
        self.others.insert(memory.clone(), buffer.clone());
        Ok(buffer)
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.host.iter().chain(self.others.values()).map(|b| b.len() as u64).sum()
    }
}
