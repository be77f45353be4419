//! Binds tasks by name to memory: named buffers to views, graphs to loaded weights.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{
    Bindings, Buffer, CopyRows, Device, DeviceError, ForwardBatch, Run, View, Weights, Work,
};
use troika_plan::Plan;
use troika_program::{
    BufferName, NamedCopy, NamedRun, NamedTask, NamedView, NamedWork, Program, SlotMemory, Slots,
};

use crate::error::EngineError;
use crate::memory::allocate;
use crate::pool::EdgePool;
use crate::schedule::Task;

/// A lowered model on its devices, with the memory of its states.
pub(crate) struct PlacedModel {
    pub program: Program,
    /// The plan's devices, in its order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Code with weights, by the index of the program's graph.
    pub loaded: Vec<Arc<Weights>>,
    pub plan: Plan,
    /// For each state, the memory of its instances.
    pub states: Vec<Vec<Buffer>>,
    pub slots: Arc<Slots>,
}

/// Ids and positions of a chunk.
pub(crate) struct InputSlot {
    pub ids: Buffer,
    pub positions: Buffer,
}

/// The memory behind the names of a slot's tasks.
pub(crate) struct Binder<'a> {
    pub model: &'a PlacedModel,
    pub pools: &'a mut [EdgePool],
    pub inputs: &'a [InputSlot],
    pub logits: &'a Buffer,
    /// Memory for copies between two devices, by number.
    pub staging: HashMap<usize, Buffer>,
}

impl Binder<'_> {
    /// A task of a forward batch.
    ///
    /// # Errors
    /// There is not enough memory for a value that is bound for the first time.
    pub fn task(
        &mut self,
        named: &NamedTask,
        forward: &Arc<ForwardBatch>,
    ) -> Result<Task, EngineError> {
        let work = match &named.work {
            NamedWork::Run(run) => Work::Run(Run {
                weights: self.model.loaded[run.graph].clone(),
                bindings: Arc::new(self.bindings(run)?),
                rows: named.rows.len(),
                forward: forward.slice(&named.rows),
            }),
            NamedWork::Copy(NamedCopy { from, to }) => {
                Work::Copy(CopyRows { from: self.view(from)?, to: self.view(to)? })
            }
        };
        let NamedTask { device, name, chunk, rows, .. } = named;
        let (name, rows) = (name.clone(), rows.clone());
        Ok(Task { device: *device, name, chunk: *chunk, rows, work })
    }

    fn bindings(&mut self, run: &NamedRun) -> Result<Bindings, EngineError> {
        let mut bound = Bindings::default();
        for view in &run.inputs {
            bound.inputs.push(self.view(view)?);
        }
        for part in &run.states {
            bound.states.push(View::whole(&self.model.states[part.state][part.instance]));
        }
        for view in &run.outputs {
            bound.outputs.push(self.view(view)?);
        }
        Ok(bound)
    }

    fn view(&mut self, named: &NamedView) -> Result<View, EngineError> {
        let NamedView { offset, rows, row_bytes, stride, .. } = *named;
        let buffer = self.buffer(named)?;
        Ok(View::new(&buffer, offset, (rows, row_bytes), stride).map_err(DeviceError::View)?)
    }

    fn buffer(&mut self, named: &NamedView) -> Result<Buffer, EngineError> {
        Ok(match &named.buffer {
            BufferName::Ids(chunk) => self.inputs[*chunk as usize].ids.clone(),
            BufferName::Positions(chunk) => self.inputs[*chunk as usize].positions.clone(),
            BufferName::Logits => self.logits.clone(),
            BufferName::Value { set, memory } => self.value(*set, memory)?,
            BufferName::State(part) => self.model.states[part.state][part.instance].clone(),
            BufferName::Staging(number) => match self.staging.get(number) {
                Some(known) => known.clone(),
                None => {
                    let bytes = named.rows.checked_mul(named.row_bytes);
                    let buffer = allocate(bytes, "a cache on its way to another device")?;
                    self.staging.insert(*number, buffer.clone());
                    buffer
                }
            },
        })
    }

    fn value(&mut self, set: usize, memory: &SlotMemory) -> Result<Buffer, EngineError> {
        self.pools[set].buffer(memory, &self.model.devices)
    }
}
