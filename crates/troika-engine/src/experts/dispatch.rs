//! The tasks that become known by routing: runs of groups and of other experts on packed rows, and
//! loads of groups that come and go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use troika_device::{
    Bindings, Buffer, CopyRows, DeviceError, HostData, HostTask, Run, SpaceId, View, Weights, Work,
    lock,
};
use troika_program::{
    ExpertBuffer, ExpertCounts, Growing, GrownTask, GrownWork, LayerCounts, PackedView, SlotLoad,
    SlotOf,
};
use troika_trace::{ExpertRows, Span, Tracer};

use super::cache::DeviceExperts;
use super::route::OfChunk;
use crate::error::EngineError;
use crate::schedule::{Growth, Task, TaskGraph};

/// What is needed to run what a chunk's routing made ready.
pub(crate) struct Dispatcher {
    pub of: OfChunk,
    pub chunk: u32,
    pub growing: Growing,
    /// Code with weights of the experts that stay, by the index of their graph.
    pub weights: HashMap<usize, Arc<Weights>>,
    /// All caches of the program.
    pub caches: Vec<Arc<DeviceExperts>>,
    /// Packed buffers, by memory space.
    pub buffers: HashMap<(SpaceId, ExpertBuffer), Buffer>,
    pub tracer: Tracer,
    /// The name of the rule's device, in traces.
    pub lane: Arc<str>,
}

/// What becomes known by tasks, by their number.
pub(crate) type Dispatchers = HashMap<u32, Arc<Dispatcher>>;

/// The growth of a graph in which some tasks dispatch experts.
pub(crate) fn growth(dispatchers: Dispatchers) -> Growth {
    Arc::new(move |task, result| match dispatchers.get(&task) {
        Some(dispatcher) => dispatcher.tasks(result.is_some()),
        None => Ok(Arc::default()),
    })
}

impl Dispatcher {
    /// The tasks. Where functions of the host are not computed, rows choose experts as the plan expects.
    fn tasks(self: &Arc<Self>, routed: bool) -> Result<Arc<TaskGraph>, EngineError> {
        let OfChunk { place, rows, layer, stats, .. } = &self.of;
        let mut routing = lock(&self.of.routing);
        if !routed {
            let mut counts = LayerCounts::default();
            let assumed = routing.rows.assume(*place, *rows, &mut counts);
            let why = |why| self.refused(why);
            routing.note(place.0, assumed.map_err(why)?, counts);
        }
        let (runs, mut counts) = routing.take(place.0);
        if !runs.is_empty() {
            let now = self.of.clock.now();
            routing.began.get_or_insert(now);
        }
        let (named, packed) = (std::mem::take(&mut routing.named), routing.packed.take());
        let grown = self.growing.dispatched(runs, &routing.rows, &mut counts, |cache, chosen| {
            let cache = &self.caches[cache];
            let of = |(layer, expert): &(usize, usize)| cache.of.groups_of(*layer, *expert);
            let named: Vec<u32> = named.iter().flat_map(of).copied().collect();
            cache.slots().place(chosen, *rows, &named)
        });
        drop(routing);
        stats.with(|stats| stats.layers.entry(*layer).or_default().add(&counts));
        self.trace(&counts, packed);
        let mut graph = self.graph(&grown.tasks, None)?;
        let ahead = self.growing.ahead(&grown);
        if !ahead.is_empty() {
            graph.beside = Some(Arc::new(self.graph(&ahead, None)?));
        }
        Ok(Arc::new(graph))
    }

    /// Binds tasks to memory. Loads make others known, which use what was `loaded`: the slot may serve
    /// another group by then.
    fn graph(
        self: &Arc<Self>,
        grown: &[GrownTask],
        loaded: Option<&Arc<Weights>>,
    ) -> Result<TaskGraph, EngineError> {
        let tasks = grown.iter().map(|task| self.task(task, loaded));
        let tasks: Result<Vec<Task>, _> = tasks.collect();
        let graph = TaskGraph::new(tasks?);
        let load = |(number, task): (u32, &GrownTask)| match &task.work {
            GrownWork::Load(load) => Some((number, load.clone())),
            GrownWork::Copy(..) | GrownWork::Run { .. } => None,
        };
        let loads: HashMap<u32, SlotLoad> = (0..).zip(grown).filter_map(load).collect();
        if loads.is_empty() {
            return Ok(graph);
        }
        let (numbers, of): (Vec<u32>, _) = (loads.keys().copied().collect(), self.clone());
        let arrived = move |task, weights: Option<HostData>| {
            let Some(load) = loads.get(&task) else { return Ok(Arc::default()) };
            of.caches[load.at.cache].slots().arrived(load.at.group, load.at.slot);
            let weights = weights.and_then(|weights| weights.downcast::<Arc<Weights>>().ok());
            let runs = of.growing.loaded(load);
            Ok(Arc::new(of.graph(&runs, weights.map(|weights| *weights).as_ref())?))
        };
        Ok(graph.growing(&numbers, Arc::new(arrived)))
    }

    /// Records what was routed, and when its rows were packed.
    fn trace(&self, counts: &LayerCounts, packed: Option<(Duration, Duration)>) {
        if !self.tracer.enabled() {
            return;
        }
        let now = self.of.clock.now();
        let sum = |of: fn(&ExpertCounts) -> u64| counts.experts.iter().map(of).sum();
        let rows = ExpertRows {
            layer: self.of.layer,
            rows: counts.experts.iter().map(|e| e.rows).collect(),
            padded: sum(|e| e.padding),
            dropped: sum(|e| e.dropped),
            launches: counts.group_runs + counts.rest_runs,
        };
        let record = |what: &str, (start, end), args| {
            let name = format!("layer {} experts [{what}]", self.of.layer).into();
            self.tracer.record(Span { name, lane: self.lane.clone(), start, end, args });
        };
        packed.into_iter().for_each(|times| record("pack", times, Vec::new()));
        record("rows", (now, now), rows.args());
    }

    fn task(&self, grown: &GrownTask, loaded: Option<&Arc<Weights>>) -> Result<Task, EngineError> {
        let work = match &grown.work {
            GrownWork::Copy(from, to) => {
                Work::Copy(CopyRows::whole(self.view(from)?, self.view(to)?))
            }
            GrownWork::Run { graph, slot, inputs, output } => Work::Run(Run {
                weights: loaded.map_or_else(|| self.weights(*graph, *slot), |w| Ok(w.clone()))?,
                bindings: Arc::new(Bindings {
                    inputs: inputs.iter().map(|v| self.view(v)).collect::<Result<_, _>>()?,
                    states: Vec::new(),
                    outputs: vec![self.view(output)?],
                }),
                rows: grown.rows,
                forward: Arc::default(),
            }),
            GrownWork::Load(load) => {
                let parts = grown.views(&self.growing);
                let parts = parts.iter().map(|view| self.view(view)).collect::<Result<_, _>>()?;
                Work::Host(Arc::new(self.load(load, parts)?))
            }
        };
        let (device, name, rows) = (grown.queue, grown.name.clone(), 0..grown.rows);
        Ok(Task { device, name, chunk: self.chunk, rows, work })
    }

    fn weights(&self, graph: usize, slot: Option<SlotOf>) -> Result<Arc<Weights>, DeviceError> {
        match slot {
            Some(SlotOf { cache, group, slot }) => self.caches[cache].loaded(group, slot),
            None => {
                let lacks = || self.refused("its weights are not loaded".into());
                self.weights.get(&graph).cloned().ok_or_else(lacks)
            }
        }
    }

    /// The function that loads a group. What becomes known by it uses `parts`.
    fn load(&self, load: &SlotLoad, parts: Vec<View>) -> Result<HostTask, DeviceError> {
        let SlotOf { cache, group, slot } = load.at;
        let (cache, marks) = (self.caches[cache].clone(), self.caches[cache].mark(slot)?);
        let is_expected = load.runs.is_empty();
        let bytes = if load.awaited { 0 } else { cache.bytes(group) };
        let task =
            HostTask::new(&format!("load {}", cache.name(group)), (Vec::new(), vec![marks]), {
                move |_, _| match is_expected && !cache.slots().serves(group, slot) {
                    // Another group has the place by now.
                    true => Ok(None),
                    false => {
                        let weights = cache.loaded(group, slot).map_err(|e| e.to_string())?;
                        Ok(Some(Box::new(weights)))
                    }
                }
            });
        Ok(task?.with_parts(parts).moving(bytes))
    }

    fn view(&self, of: &PackedView) -> Result<View, EngineError> {
        let buffer = self.buffers.get(&(of.space, of.buffer));
        let buffer = buffer.ok_or_else(|| self.refused("its packed rows have no memory".into()))?;
        let view = View::new(buffer, of.offset, (of.rows, of.row_bytes), of.stride);
        Ok(view.map_err(DeviceError::View)?)
    }

    fn refused(&self, why: String) -> DeviceError {
        DeviceError::Submission { task: self.growing.experts.rest.name.to_string(), why }
    }
}
