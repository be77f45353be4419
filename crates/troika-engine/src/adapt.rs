//! Groups of experts come to their devices and leave them while the model runs: between prompts, as
//! their rows say.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use troika_device::{Clock, CompileRequest, Device, DeviceError, WeightSource, Weights};
use troika_graph::Subgraph;
use troika_plan::{
    AdaptSettings, AdaptiveGroup, AdaptiveResidency, GroupLimits, GroupResidency, Overflow, Plan,
    WorthALaunch,
};
use troika_program::{Program, graph_bytes};
use troika_trace::{Arg, Span};

use crate::bind::PlacedModel;
use crate::experts::MovedGroups;

/// Where groups are loaded from while a model runs.
pub type GroupSource = Arc<dyn WeightSource + Send + Sync>;

/// The groups of a device, by their number in its rule.
struct DeviceGroups {
    device: usize,
    rule: AdaptiveResidency,
    /// Indices in the program's list of graphs.
    graphs: Vec<usize>,
}

impl DeviceGroups {
    /// A group's name, for people.
    fn name(&self, group: usize) -> String {
        let AdaptiveGroup { layer, experts, .. } = &self.rule.groups()[group];
        let experts: Vec<String> = experts.iter().map(usize::to_string).collect();
        format!("layer {layer} experts {}", experts.join(", "))
    }
}

/// The groups of all devices, as a plan has them at first.
pub(crate) struct Adapter {
    devices: Vec<DeviceGroups>,
    /// Whether results depend on where groups are.
    matters: bool,
    /// Rows of a chunk, and the experts of a row in each layer.
    chunk: usize,
    top_k: BTreeMap<usize, usize>,
}

impl Adapter {
    /// `None` if groups stay where they are.
    pub fn new(program: &Program, plan: &Plan) -> Option<Adapter> {
        let residency = plan.prefill.expert_residency?;
        let mut known: BTreeMap<usize, (Vec<AdaptiveGroup>, Vec<usize>)> = BTreeMap::new();
        for experts in &program.experts {
            for (parts, planned) in experts.groups.iter().zip(&experts.split.groups) {
                // Groups of several devices stay.
                let [group] = &parts[..] else { continue };
                let (groups, graphs) = known.entry(group.device).or_default();
                let graph = &program.graphs.graphs()[group.graph].graph;
                let room = (planned.experts.len() * planned.capacity) as f64;
                let least = match residency.every_group {
                    true => WorthALaunch::ALWAYS,
                    false if experts.split.overflow == Overflow::Pad => WorthALaunch::PADDED,
                    false => WorthALaunch::default(),
                };
                // Chunks of several lengths may share a graph.
                if let Some(at) = graphs.iter().position(|known| *known == group.graph) {
                    groups[at].is_resident |= !planned.standby;
                    continue;
                }
                graphs.push(group.graph);
                groups.push(AdaptiveGroup {
                    layer: experts.layer,
                    experts: planned.experts.clone(),
                    bytes: graph_bytes(graph, &program.devices[group.device].caps),
                    // What it was made for.
                    expected_rows: if planned.standby { 0.0 } else { room },
                    least_rows: least.of(room as usize),
                    is_resident: !planned.standby,
                });
            }
        }
        let of_device = |(device, (groups, graphs)): (usize, (Vec<AdaptiveGroup>, Vec<usize>))| {
            let limits = limits(program, device, &graphs, &residency);
            let rule = AdaptiveResidency::new(AdaptSettings::default(), limits, groups);
            DeviceGroups { device, rule, graphs }
        };
        Some(Adapter {
            devices: known.into_iter().map(of_device).collect(),
            matters: program.groups_matter(),
            chunk: plan.prefill.chunk,
            top_k: program.experts.iter().map(|e| (e.layer, e.shape.top_k)).collect(),
        })
    }

    /// The graphs that are not on their device at first.
    pub fn standby(&self) -> HashSet<usize> {
        let of_device = |d: &DeviceGroups| -> Vec<usize> {
            let groups = d.rule.groups().iter().zip(&d.graphs);
            groups.filter(|(group, _)| !group.is_resident).map(|(_, graph)| *graph).collect()
        };
        self.devices.iter().flat_map(of_device).collect()
    }

    /// What is held at first.
    pub fn moved(&self) -> MovedGroups {
        let groups = self.devices.iter().flat_map(|d| d.rule.groups());
        let held_bytes = groups.filter(|g| g.is_resident).map(|g| g.bytes).sum();
        let limits = self.devices.iter().map(|d| d.rule.limits().bytes);
        let limit_bytes = limits.sum();
        MovedGroups { held_bytes, most_bytes: held_bytes, limit_bytes, ..MovedGroups::default() }
    }
}

/// What a device has left for groups: the plan's limits, and its own without its other graphs.
fn limits(
    program: &Program,
    device: usize,
    groups: &[usize],
    residency: &GroupResidency,
) -> GroupLimits {
    let caps = &program.devices[device].caps;
    let listed = program.graphs.graphs().iter().enumerate();
    let others = listed.filter(|(at, g)| g.device == device && !groups.contains(at));
    let (bytes, graphs) = others.fold((0_u64, 0), |(bytes, graphs), (_, listed)| {
        (bytes.saturating_add(graph_bytes(&listed.graph, caps)), graphs + 1)
    });
    let left = caps.max_resident_bytes.map(|most| most.saturating_sub(bytes));
    let left_graphs = caps.max_graphs.map(|most| most.saturating_sub(graphs));
    GroupLimits {
        graph_bytes: None,
        bytes: [residency.bytes, left].into_iter().flatten().min(),
        graphs: [residency.graphs, left_graphs].into_iter().flatten().min(),
    }
}

/// Moves groups while the model runs.
pub(crate) struct Adapting {
    adapter: Adapter,
    source: GroupSource,
    /// Rows of each layer's experts, as they were counted before.
    counted: BTreeMap<usize, Vec<u64>>,
    /// Groups that are to be loaded, with the place of their device.
    wanted: VecDeque<(usize, usize)>,
    loading: Option<Loading>,
    /// Whether prompts ran since groups were looked at.
    ran: bool,
}

/// A group that is being loaded.
struct Loading {
    device: usize,
    group: usize,
    began: Duration,
    by: Loader,
    stop: Arc<AtomicBool>,
}

/// The result of loading, and when it was there.
type Loaded = (Result<Arc<Weights>, DeviceError>, Duration);

enum Loader {
    Thread(JoinHandle<Loaded>),
    Done(Loaded),
}

impl Drop for Loading {
    /// The source and the device are in use no longer.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Loader::Thread(thread) = self.take() {
            let _ = thread.join();
        }
    }
}

impl Loading {
    fn take(&mut self) -> Loader {
        std::mem::replace(&mut self.by, Loader::Done((Err(DeviceError::Cancelled), Duration::ZERO)))
    }

    fn is_done(&self) -> bool {
        match &self.by {
            Loader::Thread(thread) => thread.is_finished(),
            Loader::Done(_) => true,
        }
    }

    /// Waits for it.
    fn result(mut self, device: &dyn Device, clock: &dyn Clock) -> Loaded {
        match self.take() {
            Loader::Done(loaded) => loaded,
            Loader::Thread(thread) => thread.join().unwrap_or_else(|_| {
                let (device, why) = (device.name().into(), "its compiler panicked".into());
                (Err(DeviceError::System { device, why }), clock.now())
            }),
        }
    }
}

/// A group to load.
struct Load {
    device: Arc<dyn Device>,
    graph: Subgraph,
    source: GroupSource,
    clock: Arc<dyn Clock>,
    stop: Arc<AtomicBool>,
}

impl Load {
    fn run(&self) -> Loaded {
        let go_on = |_| !self.stop.load(Ordering::Relaxed);
        let graphs = [&self.graph];
        let request = CompileRequest { graphs: &graphs, weights: &*self.source, go_on: &go_on };
        let made = self.device.compile(&request).pop().unwrap_or(Err(DeviceError::Cancelled));
        let loaded = made.and_then(|code| self.device.load(&code, &self.graph, &*self.source));
        (loaded, self.clock.now())
    }

    /// Begins to load on a thread, so that nobody waits. On a virtual device, or where there is no
    /// thread, it is done now: time passes alike in every run then.
    fn begin(self) -> Loader {
        if self.device.clock().is_some() {
            return Loader::Done(self.run());
        }
        let load = Arc::new(self);
        let run = {
            let load = load.clone();
            move || load.run()
        };
        let thread = std::thread::Builder::new().name("troika-load".into()).spawn(run);
        thread.map_or_else(|_| Loader::Done(load.run()), Loader::Thread)
    }
}

impl Adapting {
    pub fn new(mut adapter: Adapter, source: GroupSource, settings: AdaptSettings) -> Adapting {
        for of in &mut adapter.devices {
            let (limits, groups) = (*of.rule.limits(), of.rule.groups().to_vec());
            of.rule = AdaptiveResidency::new(settings, limits, groups);
        }
        let (counted, wanted) = (BTreeMap::new(), VecDeque::new());
        Adapting { adapter, source, counted, wanted, loading: None, ran: false }
    }

    /// Before a prompt begins. Where results depend on where groups are, it waits until those that
    /// enter are there: so results depend on the prompts before, and on no time.
    pub fn before_prompt(&mut self, model: &PlacedModel) {
        self.ran = true;
        if self.adapter.matters {
            let began = model.clock.now();
            while self.loading.is_some() {
                self.end_load(model);
                self.begin_load(model);
            }
            let waited = model.clock.now().saturating_sub(began);
            note(model, |moved| moved.waited += waited);
        }
    }

    /// While no prompt is in flight: takes what is loaded, and decides what moves. Groups that leave
    /// do so at once, before the next one is loaded.
    pub fn between_prompts(&mut self, model: &PlacedModel) {
        if self.loading.as_ref().is_some_and(Loading::is_done) {
            self.end_load(model);
            self.begin_load(model);
        }
        if self.loading.is_some() || !std::mem::take(&mut self.ran) {
            return;
        }
        let chunks = self.count(model);
        if chunks == 0.0 {
            return;
        }
        for (place, of) in self.adapter.devices.iter_mut().enumerate() {
            for step in of.rule.step(chunks) {
                for group in step.out {
                    model.loaded[of.graphs[group]].set(None);
                    let bytes = of.rule.groups()[group].bytes;
                    note(model, |moved| {
                        moved.evictions += 1;
                        moved.evicted_bytes += bytes;
                        moved.held_bytes -= bytes;
                    });
                    trace(model, of, group, "leave", model.clock.now());
                }
                self.wanted.extend(step.into.map(|group| (place, group)));
            }
        }
        self.begin_load(model);
    }

    /// Tells the rules which experts rows chose since the last time, and returns their number in
    /// chunks.
    fn count(&mut self, model: &PlacedModel) -> f64 {
        let mut chunks = 0.0_f64;
        model.group_stats.with(|stats| {
            for (layer, counts) in &stats.layers {
                let before = self.counted.entry(*layer).or_default();
                before.resize(counts.experts.len(), 0);
                let now = counts.experts.iter().map(|e| e.rows);
                let new: Vec<u64> = now.zip(&*before).map(|(now, before)| now - before).collect();
                before.iter_mut().zip(&new).for_each(|(before, new)| *before += new);
                self.adapter.devices.iter_mut().for_each(|of| of.rule.saw(*layer, &new));
                let top_k = self.adapter.top_k.get(layer).copied().unwrap_or(1);
                let rows = new.iter().sum::<u64>() as f64 / top_k as f64;
                chunks = chunks.max(rows / self.adapter.chunk as f64);
            }
        });
        chunks
    }

    /// Begins with the next group, if there is one.
    fn begin_load(&mut self, model: &PlacedModel) {
        let Some((device, group)) = self.wanted.pop_front() else { return };
        let of = &self.adapter.devices[device];
        let bytes = of.rule.groups()[group].bytes;
        note(model, |moved| {
            moved.held_bytes += bytes;
            moved.most_bytes = moved.most_bytes.max(moved.held_bytes);
        });
        let (stop, began) = (Arc::new(AtomicBool::new(false)), model.clock.now());
        let load = Load {
            device: model.devices[of.device].clone(),
            graph: model.program.graphs.graphs()[of.graphs[group]].graph.clone(),
            source: self.source.clone(),
            clock: model.clock.clone(),
            stop: stop.clone(),
        };
        self.loading = Some(Loading { device, group, began, by: load.begin(), stop });
    }

    /// Takes a group that was loaded. One that its device does not load stays where it is.
    fn end_load(&mut self, model: &PlacedModel) {
        let Some(loading) = self.loading.take() else { return };
        let Loading { device, group, began, .. } = loading;
        let of = &mut self.adapter.devices[device];
        let at = &*model.devices[of.device];
        let (loaded, end) = loading.result(at, &*model.clock);
        let (bytes, took) = (of.rule.groups()[group].bytes, end.saturating_sub(began));
        match loaded {
            Ok(weights) => {
                model.loaded[of.graphs[group]].set(Some(weights));
                note(model, |moved| {
                    moved.loads += 1;
                    moved.loaded_bytes += bytes;
                    moved.load_time += took;
                });
                trace(model, of, group, "are loaded", began);
            }
            Err(error) => {
                of.rule.bar(group);
                let line = format!("{} stay off device {}: {error}", of.name(group), at.name());
                model.tracer.note(line.clone());
                note(model, |moved| {
                    moved.held_bytes -= bytes;
                    moved.failures.push(line);
                });
            }
        }
    }
}

/// Changes the statistics of moves.
fn note(model: &PlacedModel, change: impl FnOnce(&mut MovedGroups)) {
    model.group_stats.with(|stats| change(stats.moved.get_or_insert_default()));
}

/// Records what became of a group, from some time until now.
fn trace(model: &PlacedModel, of: &DeviceGroups, group: usize, what: &str, start: Duration) {
    if !model.tracer.enabled() {
        return;
    }
    model.tracer.record(Span {
        name: format!("{} {what}", of.name(group)).into(),
        lane: format!("{} groups", model.devices[of.device].name()).into(),
        start,
        end: model.clock.now(),
        args: vec![("bytes", Arg::Int(of.rule.groups()[group].bytes))],
    });
}
