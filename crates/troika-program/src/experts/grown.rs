//! What becomes known by routing: runs of experts, and loads of those that come and go. The engine
//! binds these tasks to memory, predictions price them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use troika_device::SpaceId;

use super::cache::{GroupAt, Placed};
use super::divided::DividedExperts;
use super::memory::{CachedGroup, ExpertBuffer};
use super::rows::{ExpertRows, LayerCounts, PackedRun};
use super::steps::{GroupGraph, PackedSize};
use crate::buffer_view::BufferView;

/// A group of a cache in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOf {
    /// The cache's index.
    pub cache: usize,
    /// The group.
    pub group: u32,
    /// The slot.
    pub slot: usize,
}

/// A load, and the runs that become known by it.
#[derive(Clone, Debug)]
pub struct SlotLoad {
    /// What is loaded where.
    pub at: SlotOf,
    /// Whether it is on its way already, or there until another group takes the slot.
    pub awaited: bool,
    /// The runs.
    pub runs: Vec<PackedRun>,
}

/// A view of packed rows.
pub type PackedView = BufferView<ExpertBuffer>;

/// The work of a task that became known.
#[derive(Clone, Debug)]
pub enum GrownWork {
    /// Copies rows from the first view to the second.
    Copy(PackedView, PackedView),
    /// Runs a graph.
    Run {
        /// Its index in the program's list of graphs.
        graph: usize,
        /// Where its weights are, if they come and go.
        slot: Option<SlotOf>,
        /// What it reads.
        inputs: Vec<PackedView>,
        /// What it writes.
        output: PackedView,
    },
    /// Loads a group.
    Load(SlotLoad),
}

/// A task that became known.
#[derive(Clone, Debug)]
pub struct GrownTask {
    /// Its queue: a device's, or behind these that which loads for a cache.
    pub queue: usize,
    /// Its name.
    pub name: Arc<str>,
    /// Rows that it computes.
    pub rows: usize,
    /// What it does.
    pub work: GrownWork,
}

/// What became known by routing a chunk.
#[derive(Clone, Debug, Default)]
pub struct Grown {
    /// The tasks.
    pub tasks: Vec<GrownTask>,
    /// What is loaded besides, since it may be chosen next.
    pub ahead: Vec<SlotOf>,
}

impl GrownTask {
    /// The views that it uses, or that what becomes known by it uses.
    pub fn views(&self, of: &Growing) -> Vec<PackedView> {
        match &self.work {
            GrownWork::Copy(from, to) => vec![*from, *to],
            GrownWork::Run { inputs, output, .. } => {
                inputs.iter().chain([output]).copied().collect()
            }
            GrownWork::Load(load) => {
                of.loaded(load).iter().flat_map(|task| task.views(of)).collect()
            }
        }
    }
}

impl GroupGraph {
    /// The steps of a run on packed rows, each after those before it: a device with memory of its own
    /// gets copies of the rows, and what it computed is copied back.
    fn steps(
        &self,
        rows: &Range<usize>,
        size: &PackedSize,
        slot: Option<SlotOf>,
    ) -> Vec<GrownWork> {
        let whole = |space, buffer| {
            let bytes = size.row_bytes(buffer);
            let (offset, rows) = (rows.start * bytes, rows.len());
            BufferView { space, buffer, offset, rows, row_bytes: bytes, stride: bytes }
        };
        let mut steps = Vec::with_capacity(self.reads.len() + 2);
        if self.space != SpaceId::HOST {
            let both = |&buffer: &ExpertBuffer| {
                GrownWork::Copy(whole(SpaceId::HOST, buffer), whole(self.space, buffer))
            };
            steps.extend(self.reads.iter().map(both));
        }
        let cols = &self.writes.cols;
        let host = whole(SpaceId::HOST, self.writes.buffer);
        let result =
            BufferView { offset: host.offset + cols.start * 4, row_bytes: cols.len() * 4, ..host };
        let output = match (self.apart, self.space) {
            (Some(part), space) => {
                let row_bytes = cols.len() * 4;
                let part = whole(space, ExpertBuffer::Part(part));
                BufferView { row_bytes, stride: row_bytes, ..part }
            }
            (None, SpaceId::HOST) => result,
            (None, space) => whole(space, self.writes.buffer),
        };
        let inputs = self.reads.iter().map(|&buffer| whole(self.space, buffer)).collect();
        steps.push(GrownWork::Run { graph: self.graph, slot, inputs, output });
        if output != result {
            steps.push(GrownWork::Copy(output, result));
        }
        steps
    }
}

/// What tasks become known from: a layer's experts, and its packed rows.
#[derive(Clone, Debug)]
pub struct Growing {
    /// The experts.
    pub experts: Arc<DividedExperts>,
    /// Columns of their rows.
    pub size: PackedSize,
    /// Devices of the program.
    pub devices: usize,
}

impl Growing {
    /// The tasks of routed runs. `place` says where the groups of a cache are, each with its rows.
    pub fn dispatched(
        &self,
        runs: Vec<PackedRun>,
        rows: &ExpertRows,
        counts: &mut LayerCounts,
        mut place: impl FnMut(usize, &[(u32, u32)]) -> Placed,
    ) -> Grown {
        let (mut grown, mut others) = (Grown::default(), Vec::new());
        let mut cached: BTreeMap<usize, BTreeMap<u32, Vec<PackedRun>>> = BTreeMap::new();
        for run in runs {
            match run.group.and_then(|group| self.experts.cached[group]) {
                Some(CachedGroup { cache, group }) => {
                    cached.entry(cache).or_default().entry(group).or_default().push(run);
                }
                None => others.push(run),
            }
        }
        for (cache, mut groups) in cached {
            let used = |runs: &Vec<PackedRun>| runs.iter().map(PackedRun::used).sum::<usize>();
            let chosen: Vec<(u32, u32)> =
                groups.iter().map(|(group, runs)| (*group, used(runs) as u32)).collect();
            let Placed { groups: placed, ahead } = place(cache, &chosen);
            let slot_of = |(group, slot)| SlotOf { cache, group, slot };
            grown.ahead.extend(ahead.into_iter().map(slot_of));
            for (group, at) in placed {
                let runs = groups.remove(&group).unwrap_or_default();
                match at {
                    GroupAt::Here(slot) => {
                        let at = Some(SlotOf { cache, group, slot });
                        runs.iter().for_each(|run| self.add(run, at, &mut grown.tasks));
                    }
                    GroupAt::Awaited(slot) | GroupAt::Away(slot) => {
                        let awaited = matches!(at, GroupAt::Awaited(_));
                        let at = SlotOf { cache, group, slot };
                        grown.tasks.push(self.load(SlotLoad { at, awaited, runs }));
                    }
                    GroupAt::Elsewhere => {
                        for run in &runs {
                            let moved = rows.elsewhere(run);
                            counts.moved(run, &self.experts.split, moved.len());
                            others.extend(moved);
                        }
                    }
                }
            }
        }
        others.iter().for_each(|run| self.add(run, None, &mut grown.tasks));
        grown
    }

    /// The tasks by which groups are loaded that nobody waits for.
    pub fn ahead(&self, grown: &Grown) -> Vec<GrownTask> {
        let load = |at: &SlotOf| SlotLoad { at: *at, awaited: false, runs: Vec::new() };
        grown.ahead.iter().map(|at| self.load(load(at))).collect()
    }

    /// The runs that become known by a load.
    pub fn loaded(&self, load: &SlotLoad) -> Vec<GrownTask> {
        let mut tasks = Vec::new();
        load.runs.iter().for_each(|run| self.add(run, Some(load.at), &mut tasks));
        tasks
    }

    fn load(&self, load: SlotLoad) -> GrownTask {
        let (queue, name) = (self.devices + load.at.cache, "load".into());
        GrownTask { queue, name, rows: 0, work: GrownWork::Load(load) }
    }

    /// Adds a run of a group's graphs, or of other experts.
    fn add(&self, run: &PackedRun, slot: Option<SlotOf>, tasks: &mut Vec<GrownTask>) {
        let group = run.group.and_then(|group| self.experts.groups.get(group));
        let graphs = group.map_or(std::slice::from_ref(&self.experts.rest), Vec::as_slice);
        for of in graphs {
            for work in of.steps(&run.rows, &self.size, slot) {
                let runs = matches!(work, GrownWork::Run { .. });
                let name = if runs { of.name.clone() } else { "copy".into() };
                tasks.push(GrownTask { queue: of.device, name, rows: run.rows.len(), work });
            }
        }
    }
}
