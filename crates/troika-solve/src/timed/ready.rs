//! What follows from the end of a list, and what becomes known by tasks that dispatch experts.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{Access, Rect, SpaceId};
use troika_plan::PlanError;
use troika_program::schedule::{Dag, HazardTracker, Schedule};
use troika_program::{
    CachedGroup, ExpertBuffer, ExpertRows, GroupAt, LayerCounts, PackedRun, PackedStep,
};
use troika_time::TaskCost;

use super::TimedRun;
use super::tasks::{Dispatched, Grows, Report, RunKey, SlotOf, TimedGraph, TimedTask};
use crate::cost::Mover;

impl TimedRun<'_> {
    /// Notes a list that is done, or begins what became known by its last task.
    pub(super) fn complete(&mut self, report: Report) -> Result<(), PlanError> {
        let Report { device, id, graph, took } = report;
        self.jobs.left(device, id);
        for (task, took) in took {
            self.jobs.learn(&graph, task, took);
        }
        let Some(task) = self.jobs.complete(id) else { return Ok(()) };
        let grown = match &graph.tasks[task as usize].grows {
            Some(Grows::Dispatched(dispatched)) => self.dispatched(dispatched)?,
            Some(Grows::Loaded { at, experts, runs }) => {
                self.caches[at.cache].arrived(at.group, at.slot);
                let mut made = Made::default();
                self.add_runs(*experts, runs, &mut made);
                made.graph()
            }
            None => {
                self.jobs.close(id);
                return Ok(());
            }
        };
        let Grown { graph, beside } = grown;
        self.jobs.begin(Arc::new(graph), false, Some(id), |_| true);
        if let Some(beside) = beside {
            self.quiet.push(self.jobs.begin(Arc::new(beside), false, None, |_| true));
        }
        Ok(())
    }

    /// What becomes known by routing: the runs of experts.
    fn dispatched(&mut self, of: &Dispatched) -> Result<Grown, PlanError> {
        let plan = self.of;
        let experts = &plan.program.experts[of.experts];
        let new = || ExpertRows::new(&experts.split, experts.shape.clone());
        let routing = self.routings.entry((of.set, of.experts)).or_insert_with(new);
        let mut counts = LayerCounts::default();
        let assumed = routing.assume(of.place, of.rows, &mut counts);
        let runs = assumed.map_err(PlanError::Unpriced)?;
        let mut made = Made::default();
        let (mut others, mut cached) =
            (Vec::new(), BTreeMap::<(usize, u32), Vec<PackedRun>>::new());
        for run in runs {
            match run.group.and_then(|group| experts.cached[group]) {
                Some(CachedGroup { cache, group }) => {
                    cached.entry((cache, group)).or_default().push(run);
                }
                None => others.push(run),
            }
        }
        for cache in experts.caches() {
            let of_cache = cached.range((cache, 0)..=(cache, u32::MAX));
            let used = |runs: &[PackedRun]| runs.iter().map(PackedRun::used).sum::<usize>() as u32;
            let chosen: Vec<_> = of_cache.map(|((_, group), runs)| (*group, used(runs))).collect();
            let placed = self.caches[cache].place(&chosen, of.rows);
            for (group, slot) in self.caches[cache].ahead(&chosen, of.rows, &[]) {
                self.add_load(
                    SlotOf { cache, group, slot },
                    (of.experts, Vec::new()),
                    &mut made.beside,
                );
            }
            for (group, at) in placed {
                let runs = cached.remove(&(cache, group)).unwrap_or_default();
                match at {
                    GroupAt::Here(_) => self.add_runs(of.experts, &runs, &mut made),
                    GroupAt::Awaited(slot) => {
                        let at = SlotOf { cache, group, slot };
                        self.add_wait(at, (of.experts, runs), TaskCost::default(), &mut made.tasks);
                    }
                    GroupAt::Away(slot) => {
                        let at = SlotOf { cache, group, slot };
                        self.add_load(at, (of.experts, runs), &mut made.tasks);
                    }
                    GroupAt::Elsewhere => {
                        let routing = &self.routings[&(of.set, of.experts)];
                        others.extend(runs.iter().flat_map(|run| routing.elsewhere(run)));
                    }
                }
            }
        }
        self.add_runs(of.experts, &others, &mut made);
        Ok(made.graph())
    }

    /// Adds a task that loads a group.
    fn add_load(&self, at: SlotOf, of: (usize, Vec<PackedRun>), to: &mut Timed) {
        let plan = self.of;
        let cache = &plan.program.caches[at.cache];
        let bytes = cache.bytes[at.group as usize];
        let need = plan.request.cost.moving(Mover::Load, plan.devices[cache.device], bytes);
        self.add_wait(at, of, need, to);
    }

    /// Adds a task by which the runs of a group become known.
    fn add_wait(
        &self,
        at: SlotOf,
        (experts, runs): (usize, Vec<PackedRun>),
        need: TaskCost,
        to: &mut Timed,
    ) {
        to.hazards.begin(to.tasks.len() as u32);
        // Who uses a slot waits for who used it before.
        let slot = Rect::bytes(at.slot..at.slot + 1);
        to.hazards.memory(InUse::Slot(at.cache), &slot, Access::Write);
        to.waits.push(to.hazards.end().to_vec());
        let grows = Some(Grows::Loaded { at, experts, runs });
        to.tasks.push(TimedTask { grows, ..TimedTask::beside(need, false) });
        to.device.push(self.of.devices.len() + at.cache);
    }

    /// Adds runs of shared experts.
    fn add_runs(&self, number: usize, runs: &[PackedRun], made: &mut Made) {
        let plan = self.of;
        let experts = &plan.program.experts[number];
        let Timed { tasks, device, waits, hazards } = &mut made.tasks;
        for PackedRun { group, rows, .. } in runs {
            let group = group.and_then(|g| experts.groups.get(g));
            let parts = group.map_or(std::slice::from_ref(&experts.rest), Vec::as_slice);
            for of in parts {
                for step in of.steps(rows, &plan.program.packed) {
                    let (task, reads, written) = match step {
                        PackedStep::Copy(from, to) => {
                            let at = plan.devices[of.device];
                            let need = plan.request.cost.moving(Mover::Copy, at, to.bytes());
                            (TimedTask::beside(need, false), vec![from], to)
                        }
                        PackedStep::Run(inputs, output) => {
                            let rows = rows.len();
                            let key = RunKey { graph: of.graph, rows, room: rows, cached: 0 };
                            (self.timed_run(&key, output.bytes(), false), inputs, output)
                        }
                    };
                    hazards.begin(tasks.len() as u32);
                    for view in &reads {
                        let from = InUse::Rows(view.space, view.buffer);
                        hazards.memory(from, &view.rect(), Access::Read);
                    }
                    let to = InUse::Rows(written.space, written.buffer);
                    hazards.memory(to, &written.rect(), Access::Write);
                    waits.push(hazards.end().to_vec());
                    tasks.push(task);
                    device.push(of.device);
                }
            }
        }
    }
}

/// What tasks of experts use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum InUse {
    Rows(SpaceId, ExpertBuffer),
    /// Slots of a cache.
    Slot(usize),
}

/// What became known, and what begins with it.
struct Grown {
    graph: TimedGraph,
    beside: Option<TimedGraph>,
}

/// Tasks with their dependencies.
#[derive(Default)]
struct Timed {
    tasks: Vec<TimedTask>,
    device: Vec<usize>,
    waits: Vec<Vec<u32>>,
    hazards: HazardTracker<InUse>,
}

#[derive(Default)]
struct Made {
    tasks: Timed,
    beside: Timed,
}

impl Timed {
    fn graph(mut self) -> TimedGraph {
        let mut schedule = Schedule { dag: Dag::new(self.device, &self.waits), order: None };
        for (at, task) in self.tasks.iter_mut().enumerate() {
            task.awaited = schedule.dag.awaited[at];
            if task.grows.is_some() {
                schedule.grow(at as u32);
            }
        }
        TimedGraph { tasks: self.tasks, schedule: Arc::new(schedule) }
    }
}

impl Made {
    fn graph(self) -> Grown {
        let beside = Some(self.beside).filter(|beside| !beside.tasks.is_empty());
        Grown { graph: self.tasks.graph(), beside: beside.map(Timed::graph) }
    }
}
