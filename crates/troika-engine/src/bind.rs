//! Binds tasks by name to memory: named buffers to views, graphs to loaded weights.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{
    Bindings, Buffer, Clock, CopyRows, Device, DeviceError, ForwardBatch, Run, SpaceId, View,
    Weights, Work,
};
use troika_plan::Plan;
use troika_program::{
    BufferName, DividedExperts, ExpertBuffer, ExpertMemory, ExpertStep, NamedCopy, NamedHost,
    NamedRun, NamedTask, NamedView, NamedWork, Program, Slots,
};
use troika_trace::Tracer;

use crate::error::EngineError;
use crate::experts::{
    DeviceExperts, Dispatcher, Dispatchers, OfChunk, PackedBuffers, SharedStats, host_task,
};
use crate::memory::allocate;
use crate::pool::EdgePool;
use crate::schedule::Task;

/// A lowered model on its devices, with the memory of its states.
pub(crate) struct PlacedModel {
    pub program: Program,
    /// The plan's devices, in its order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Code with weights, by the index of the program's graph; `None`: they come and go.
    pub loaded: Vec<Option<Arc<Weights>>>,
    /// Experts that come and go, in the order of the program's caches.
    pub caches: Vec<Arc<DeviceExperts>>,
    pub plan: Plan,
    /// For each state, the memory of its instances.
    pub states: Vec<Vec<Buffer>>,
    pub slots: Arc<Slots>,
    pub clock: Arc<dyn Clock>,
    pub group_stats: SharedStats,
    pub tracer: Tracer,
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
    /// Rows on their way through divided experts.
    pub packed: &'a mut PackedBuffers,
    /// What becomes known by tasks, by their number.
    pub dispatchers: Dispatchers,
}

impl Binder<'_> {
    /// A task of a forward batch, by its number in the graph.
    pub fn task(
        &mut self,
        number: u32,
        named: &NamedTask,
        forward: &Arc<ForwardBatch>,
    ) -> Result<Task, EngineError> {
        let lacks = || DeviceError::Submission {
            task: named.name.to_string(),
            why: "its weights are not loaded".into(),
        };
        let work = match &named.work {
            NamedWork::Run(run) => Work::Run(Run {
                weights: self.model.loaded[run.graph].clone().ok_or_else(lacks)?,
                bindings: Arc::new(self.bindings(run)?),
                rows: named.rows.len(),
                forward: forward.slice(&named.rows),
            }),
            NamedWork::Copy(NamedCopy { from, to, top_k }) => {
                Work::Copy(CopyRows { from: self.view(from)?, to: self.view(to)?, top_k: *top_k })
            }
            NamedWork::Host(host) => self.host(number, named, host)?,
        };
        let NamedTask { device, name, chunk, rows, .. } = named;
        let (name, rows) = (name.clone(), rows.clone());
        Ok(Task { device: *device, name, chunk: *chunk, rows, work })
    }

    /// A step of a chunk through divided experts.
    fn host(
        &mut self,
        number: u32,
        named: &NamedTask,
        host: &NamedHost,
    ) -> Result<Work, EngineError> {
        let mut views = |list: &[NamedView]| -> Result<Vec<View>, EngineError> {
            list.iter().map(|view| self.view(view)).collect()
        };
        let [reads, writes, mut parts] =
            [views(&host.reads)?, views(&host.writes)?, views(&host.parts)?];
        let experts = &self.model.program.experts[host.experts];
        let of = OfChunk {
            routing: self.packed.routing(host.set, host.experts, experts),
            place: host.place,
            layer: experts.layer,
            rows: named.rows.len(),
            top_k: experts.shape.top_k,
            stats: self.model.group_stats.clone(),
            clock: self.model.clock.clone(),
            forecast: experts.caches().find_map(|cache| self.model.caches[cache].forecast()),
        };
        if host.step == ExpertStep::Dispatch {
            // What becomes known uses slots of caches.
            parts.extend(experts.caches().map(|cache| self.model.caches[cache].marks()));
            let dispatcher = self.dispatcher(named.chunk, host, of.clone())?;
            self.dispatchers.insert(number, Arc::new(dispatcher));
        }
        let moves = experts.bytes(host.step, of.rows, self.model.program.packed.cols);
        let task = host_task(&named.name, host.step, reads, writes, parts, of)?;
        Ok(Work::Host(Arc::new(task.moving(moves))))
    }

    /// What runs the rows of a chunk.
    fn dispatcher(
        &mut self,
        chunk: u32,
        host: &NamedHost,
        of: OfChunk,
    ) -> Result<Dispatcher, EngineError> {
        let growing = self.model.program.growing(host.experts);
        let DividedExperts { groups, rest, .. } = &*growing.experts;
        let graphs = groups.iter().flatten().chain([rest]).map(|of| of.graph);
        let weights = graphs.filter_map(|at| Some((at, self.model.loaded[at].clone()?))).collect();
        let mut buffers: HashMap<(SpaceId, ExpertBuffer), Buffer> = HashMap::new();
        for view in host.reads.iter().chain(&host.parts) {
            if let BufferName::Experts(ExpertMemory { space, buffer, .. }) = view.buffer {
                buffers.insert((space, buffer), self.buffer(view)?);
            }
        }
        let (tracer, lane) = (self.model.tracer.clone(), self.model.devices[rest.device].name());
        let (lane, caches) = (lane.into(), self.model.caches.clone());
        Ok(Dispatcher { of, chunk, growing, weights, caches, buffers, tracer, lane })
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
            BufferName::Value { set, memory } => {
                self.pools[*set].buffer(memory, &self.model.devices)?
            }
            BufferName::State(part) => self.model.states[part.state][part.instance].clone(),
            BufferName::Experts(memory) => {
                self.packed.buffer(memory, named, &self.model.devices)?
            }
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
}
