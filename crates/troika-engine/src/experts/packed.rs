//! Memory for rows on their way through divided experts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use troika_device::{Buffer, Device};
use troika_program::{
    DividedExperts, ExpertBuffer, ExpertMemory, ExpertRows, NamedView, PackedSet,
};

use super::Routing;
use crate::error::EngineError;
use crate::memory::allocate_in;

/// Packed buffers by name, allocated when a task first needs them, and what is routed to them.
#[derive(Debug, Default)]
pub(crate) struct PackedBuffers {
    buffers: HashMap<ExpertMemory, Buffer>,
    /// By set of buffers and index of the experts.
    routings: HashMap<(PackedSet, usize), Arc<Mutex<Routing>>>,
}

impl PackedBuffers {
    /// The buffer that a view is of.
    pub fn buffer(
        &mut self,
        memory: &ExpertMemory,
        view: &NamedView,
        devices: &[Arc<dyn Device>],
    ) -> Result<Buffer, EngineError> {
        if let Some(known) = self.buffers.get(memory) {
            return Ok(known.clone());
        }
        let bytes = view.rows.checked_mul(view.stride);
        let buffer = allocate_in(memory.space, bytes, "rows of experts", devices)?;
        if memory.buffer == ExpertBuffer::Ones {
            buffer.write()?.as_mut_slice::<f32>().fill(1.0);
        }
        self.buffers.insert(memory.clone(), buffer.clone());
        Ok(buffer)
    }

    /// What is routed to a set of buffers for some experts.
    pub fn routing(
        &mut self,
        set: PackedSet,
        number: usize,
        experts: &DividedExperts,
    ) -> Arc<Mutex<Routing>> {
        let new = || {
            let rows = ExpertRows::new(&experts.split, experts.shape.clone());
            Arc::new(Mutex::new(Routing::new(rows)))
        };
        self.routings.entry((set, number)).or_insert_with(new).clone()
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.values().map(|b| b.len() as u64).sum()
    }
}
