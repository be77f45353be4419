//! The tasks that become known by routing: runs of groups and of other experts on packed rows.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use troika_device::{
    Bindings, Buffer, CopyRows, DeviceError, HostTask, Run, SpaceId, View, Weights, Work,
};
use troika_plan::ExpertSplit;
use troika_program::{
    BufferView, ExpertBuffer, ExpertCounts, GroupAt, GroupGraph, LayerCounts, PackedRun,
    PackedSize, PackedStep,
};
use troika_trace::{ExpertRows, Span, Tracer};

use super::cache::DeviceExperts;
use super::route::{OfChunk, locked};
use crate::error::EngineError;
use crate::schedule::{Growth, Task, TaskGraph};

/// A graph of experts with its weights; `None`: they come and go.
#[derive(Clone)]
pub(crate) struct ExpertGraph {
    pub of: GroupGraph,
    pub weights: Option<Arc<Weights>>,
}

/// A group that comes and goes: its number in its cache.
#[derive(Clone)]
pub(crate) struct CachedIn {
    pub cache: Arc<DeviceExperts>,
    pub group: u32,
}

/// What is needed to run what a chunk's routing made ready.
pub(crate) struct Dispatcher {
    pub of: OfChunk,
    pub chunk: u32,
    /// The graphs of each group, in an order in which they can run.
    pub groups: Vec<Vec<ExpertGraph>>,
    /// For each group the cache that it is in.
    pub cached: Vec<Option<CachedIn>>,
    pub split: Arc<ExpertSplit>,
    pub rest: ExpertGraph,
    /// Packed buffers, by memory space.
    pub buffers: HashMap<(SpaceId, ExpertBuffer), Buffer>,
    /// Columns of their rows.
    pub size: PackedSize,
    pub tracer: Tracer,
    /// The name of the rule's device, in traces.
    pub lane: Arc<str>,
}

/// The growth of a graph in which some tasks dispatch experts.
pub(crate) fn growth(dispatchers: HashMap<u32, Arc<Dispatcher>>) -> Growth {
    Arc::new(move |task, result| match dispatchers.get(&task) {
        Some(dispatcher) => dispatcher.tasks(result.is_some()),
        None => Ok(Arc::default()),
    })
}

impl Dispatcher {
    /// The tasks. Where functions of the host are not computed, rows choose experts as the plan expects.
    fn tasks(self: &Arc<Self>, routed: bool) -> Result<Arc<TaskGraph>, EngineError> {
        let OfChunk { place, rows, layer, stats, .. } = &self.of;
        let mut routing = locked(&self.of.routing);
        if !routed {
            let mut counts = LayerCounts::default();
            let assumed = routing.rows.assume(*place, *rows, &mut counts);
            let why = |why| DeviceError::Submission { task: self.rest.of.name.to_string(), why };
            routing.note(place.0, assumed.map_err(why)?, counts);
        }
        let (runs, mut counts) = routing.take(place.0);
        if !runs.is_empty() {
            let now = self.of.clock.now();
            routing.began.get_or_insert(now);
        }
        let (runs, cached) = self.apart(runs);
        let mut made = Made::default();
        let named = routing.take_named();
        for (cache, runs) in cached {
            self.place(&cache, runs, &routing.rows, &named, &mut counts, &mut made)?;
        }
        drop(routing);
        stats.with(|stats| stats.layers.entry(*layer).or_default().add(&counts));
        self.trace(&counts);
        for run in &runs {
            self.add(run, &mut made.tasks)?;
        }
        Ok(Arc::new(made.graph()))
    }

    /// Divides runs into those of groups that are loaded, or of no group, and those of each cache.
    fn apart(
        &self,
        runs: Vec<PackedRun>,
    ) -> (Vec<PackedRun>, Vec<(Arc<DeviceExperts>, Vec<CachedRun>)>) {
        let (mut others, mut all) =
            (Vec::new(), Vec::<(Arc<DeviceExperts>, Vec<CachedRun>)>::new());
        for run in runs {
            let cached = run.group.and_then(|group| self.cached.get(group)?.as_ref());
            let Some(CachedIn { cache, group }) = cached else {
                others.push(run);
                continue;
            };
            let run = CachedRun { group: *group, run };
            match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, cache)) {
                Some((_, runs)) => runs.push(run),
                None => all.push((cache.clone(), vec![run])),
            }
        }
        (others, all)
    }

    /// Adds the runs of a cache's groups: on what is there, behind a load, or on the rule's device.
    fn place(
        self: &Arc<Self>,
        cache: &Arc<DeviceExperts>,
        runs: Vec<CachedRun>,
        rows: &PackedRows,
        named: &[(usize, usize)],
        counts: &mut LayerCounts,
        made: &mut Made,
    ) -> Result<(), EngineError> {
        let mut by_group: BTreeMap<u32, Vec<PackedRun>> = BTreeMap::new();
        for CachedRun { group, run } in runs {
            by_group.entry(group).or_default().push(run);
        }
        let used = |runs: &[PackedRun]| runs.iter().map(PackedRun::used).sum::<usize>() as u32;
        let chosen: Vec<(u32, u32)> = by_group.iter().map(|(g, runs)| (*g, used(runs))).collect();
        let named = named.iter().flat_map(|(layer, expert)| cache.of.groups_of(*layer, *expert));
        let named: Vec<u32> = named.copied().collect();
        let mut slots = cache.slots();
        let placed = slots.place(&chosen, self.of.rows);
        let ahead = slots.ahead(&chosen, self.of.rows, &named);
        drop(slots);
        for (group, at) in placed {
            let Some(runs) = by_group.remove(&group) else { continue };
            match at {
                GroupAt::Here(slot) => {
                    let weights = cache.loaded(group, slot)?;
                    self.add_group(&runs, &weights, &mut made.tasks)?;
                }
                GroupAt::Awaited(slot) | GroupAt::Away(slot) => {
                    let load = SlotLoad { cache: cache.clone(), group, slot };
                    self.add_load(load, runs, made)?;
                }
                GroupAt::Elsewhere => self.add_elsewhere(&runs, rows, counts, &mut made.tasks)?,
            }
        }
        for (group, slot) in ahead {
            made.beside.push(SlotLoad { cache: cache.clone(), group, slot });
        }
        Ok(())
    }

    /// Adds the runs of a group whose weights are there.
    fn add_group(
        &self,
        runs: &[PackedRun],
        weights: &Arc<Weights>,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        for run in runs {
            for graph in run.group.and_then(|g| self.groups.get(g)).into_iter().flatten() {
                self.add_graph(&graph.of, weights, &run.rows, tasks)?;
            }
        }
        Ok(())
    }

    /// Adds a task that loads a group, and by which its runs become known.
    fn add_load(
        self: &Arc<Self>,
        load: SlotLoad,
        runs: Vec<PackedRun>,
        made: &mut Made,
    ) -> Result<(), EngineError> {
        let mut parts: Vec<View> = Vec::new();
        for run in &runs {
            for graph in run.group.and_then(|g| self.groups.get(g)).into_iter().flatten() {
                for step in graph.of.steps(&run.rows, &self.size) {
                    let used = match step {
                        PackedStep::Copy(from, to) => vec![from, to],
                        PackedStep::Run(inputs, output) => {
                            inputs.into_iter().chain([output]).collect()
                        }
                    };
                    for view in used {
                        parts.push(self.view(&view)?);
                    }
                }
            }
        }
        made.loads.push((made.tasks.len() as u32, load.clone(), runs, self.clone()));
        made.tasks.push(load.task(self.chunk, parts)?);
        Ok(())
    }

    /// Adds the rows of a group's runs as runs of the rule's device.
    fn add_elsewhere(
        &self,
        runs: &[PackedRun],
        rows: &PackedRows,
        counts: &mut LayerCounts,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        for run in runs {
            let elsewhere = rows.elsewhere(run);
            if let Some(group) = run.group.and_then(|group| self.split.groups.get(group)) {
                counts.moved(run, &group.experts, group.capacity, elsewhere.len());
            }
            elsewhere.iter().try_for_each(|run| self.add(run, tasks))?;
        }
        Ok(())
    }

    /// Records what was routed.
    fn trace(&self, counts: &LayerCounts) {
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
        self.tracer.record(Span {
            name: format!("layer {} experts [rows]", self.of.layer).into(),
            lane: self.lane.clone(),
            start: now,
            end: now,
            args: rows.args(),
        });
    }

    /// Adds a run: of one graph, or of a group's parts.
    fn add(&self, run: &PackedRun, tasks: &mut Vec<Task>) -> Result<(), EngineError> {
        let group = run.group.and_then(|g| self.groups.get(g));
        let graphs = group.map_or(std::slice::from_ref(&self.rest), Vec::as_slice);
        graphs.iter().try_for_each(|graph| {
            let lacks = || DeviceError::Submission {
                task: graph.of.name.to_string(),
                why: "its weights are not loaded".into(),
            };
            let weights = graph.weights.as_ref().ok_or_else(lacks)?;
            self.add_graph(&graph.of, weights, &run.rows, tasks)
        })
    }

    /// Adds the run of a graph, between copies if its device has memory of its own.
    fn add_graph(
        &self,
        graph: &GroupGraph,
        weights: &Arc<Weights>,
        rows: &Range<usize>,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        for step in graph.steps(rows, &self.size) {
            let (name, work) = match step {
                PackedStep::Copy(from, to) => {
                    let copy = CopyRows::whole(self.view(&from)?, self.view(&to)?);
                    ("copy".into(), Work::Copy(copy))
                }
                PackedStep::Run(inputs, output) => {
                    let bindings = Bindings {
                        inputs: inputs.iter().map(|v| self.view(v)).collect::<Result<_, _>>()?,
                        states: Vec::new(),
                        outputs: vec![self.view(&output)?],
                    };
                    let run = Run {
                        weights: weights.clone(),
                        bindings: Arc::new(bindings),
                        rows: rows.len(),
                        forward: Arc::default(),
                    };
                    (graph.name.clone(), Work::Run(run))
                }
            };
            let rows = 0..rows.len();
            tasks.push(Task { device: graph.device, name, chunk: self.chunk, rows, work });
        }
        Ok(())
    }

    fn view(&self, of: &BufferView<ExpertBuffer>) -> Result<View, EngineError> {
        let buffer = self.buffer(of.space, of.buffer)?;
        let view = View::new(buffer, of.offset, (of.rows, of.row_bytes), of.stride);
        Ok(view.map_err(DeviceError::View)?)
    }

    fn buffer(&self, space: SpaceId, buffer: ExpertBuffer) -> Result<&Buffer, DeviceError> {
        let lacks = || DeviceError::Submission {
            task: self.rest.of.name.to_string(),
            why: "its packed rows have no memory".into(),
        };
        self.buffers.get(&(space, buffer)).ok_or_else(lacks)
    }
}

/// Rows on their way through experts.
type PackedRows = troika_program::ExpertRows;

/// A run of a group that comes and goes.
struct CachedRun {
    group: u32,
    run: PackedRun,
}

/// A group to load into a slot.
#[derive(Clone)]
pub(super) struct SlotLoad {
    cache: Arc<DeviceExperts>,
    group: u32,
    slot: usize,
}

/// Loads with their numbers, and the runs that become known by each.
type Loads = Vec<(u32, SlotLoad, Vec<PackedRun>, Arc<Dispatcher>)>;

/// What becomes known by dispatching.
#[derive(Default)]
struct Made {
    tasks: Vec<Task>,
    loads: Loads,
    /// What is loaded besides.
    beside: Vec<SlotLoad>,
}

impl Made {
    fn graph(self) -> TaskGraph {
        let graph = TaskGraph::new(self.tasks);
        let graph = match self.loads.is_empty() {
            true => graph,
            false => {
                let numbers: Vec<u32> = self.loads.iter().map(|load| load.0).collect();
                graph.growing(&numbers, runs_of(self.loads))
            }
        };
        match ahead(self.beside) {
            Some(beside) => graph.with_beside(beside),
            None => graph,
        }
    }
}

/// The runs of groups when they are loaded.
fn runs_of(loads: Loads) -> Growth {
    Arc::new(move |task, _| {
        let Some((_, load, runs, of)) = loads.iter().find(|load| load.0 == task) else {
            return Ok(Arc::default());
        };
        let weights = load.cache.loaded(load.group, load.slot)?;
        load.cache.slots().arrived(load.group, load.slot);
        let mut tasks = Vec::new();
        of.add_group(runs, &weights, &mut tasks)?;
        Ok(Arc::new(TaskGraph::new(tasks)))
    })
}

/// Loads that nobody waits for.
fn ahead(loads: Vec<SlotLoad>) -> Option<TaskGraph> {
    let tasks = loads.iter().map(|load| load.expected_task());
    let tasks: Vec<Task> = tasks.collect::<Result<_, _>>().ok()?;
    let numbers: Vec<u32> = (0..tasks.len() as u32).collect();
    let arrived: Growth = Arc::new(move |task, _| {
        let SlotLoad { cache, group, slot } = &loads[task as usize];
        cache.slots().arrived(*group, *slot);
        Ok(Arc::default())
    });
    (!tasks.is_empty()).then(|| TaskGraph::new(tasks).growing(&numbers, arrived))
}

impl SlotLoad {
    /// The task that loads the group. Who becomes known by it uses `parts`.
    fn task(&self, chunk: u32, parts: Vec<View>) -> Result<Task, DeviceError> {
        let SlotLoad { cache, group, slot } = self.clone();
        let load = move || cache.loaded(group, slot).map(drop);
        self.loading(chunk, parts, load)
    }

    fn expected_task(&self) -> Result<Task, DeviceError> {
        let SlotLoad { cache, group, slot } = self.clone();
        self.loading(0, Vec::new(), move || cache.load_expected(group, slot))
    }

    fn loading(
        &self,
        chunk: u32,
        parts: Vec<View>,
        load: impl Fn() -> Result<(), DeviceError> + Send + Sync + 'static,
    ) -> Result<Task, DeviceError> {
        let SlotLoad { cache, group, slot } = self.clone();
        let (name, device) = (format!("load {}", cache.name(group)), cache.lane);
        let marks = vec![cache.mark(slot)?];
        let task = HostTask::new(&name, (Vec::new(), marks), move |_, _| {
            load().map(|()| None).map_err(|e| e.to_string())
        });
        let task = task?.with_parts(parts).moving_then(move || cache.missing(group, slot));
        let work = Work::Host(Arc::new(task));
        Ok(Task { device, name: name.into(), chunk, rows: 0..0, work })
    }
}
