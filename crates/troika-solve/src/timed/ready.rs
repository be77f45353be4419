//! What follows from the end of a list, and what becomes known by tasks that dispatch experts.

use std::sync::Arc;

use troika_device::{Access, Rect, SpaceId};
use troika_plan::PlanError;
use troika_program::schedule::{Dag, HazardTracker, Schedule};
use troika_program::{
    ExpertBuffer, ExpertRows, Growing, GrownTask, GrownWork, LayerCounts, PackedView,
};
use troika_time::TaskCost;

use super::TimedRun;
use super::tasks::{Dispatched, Grows, List, RunKey, TimedGraph, TimedTask};
use crate::cost::Mover;

impl TimedRun<'_> {
    /// Notes a list that is done, or begins what became known by its last task.
    pub(super) fn complete(&mut self, device: usize, list: List) -> Result<(), PlanError> {
        let List { id, graph, took, .. } = list;
        self.jobs.left(device, id);
        for (task, took) in took {
            self.jobs.learn(&graph, task, took);
        }
        let Some(task) = self.jobs.complete(id) else { return Ok(()) };
        let (graph, beside) = match &graph.tasks[task as usize].grows {
            Some(Grows::Dispatched(dispatched)) => self.dispatched(dispatched)?,
            Some(Grows::Loaded { load, experts }) => {
                self.caches[load.at.cache].arrived(load.at.group, load.at.slot);
                let growing = self.of.program.growing(*experts);
                (self.priced(*experts, &growing.loaded(load)), None)
            }
            None => {
                self.jobs.close(id);
                return Ok(());
            }
        };
        self.jobs.begin(Arc::new(graph), false, Some(id), |_| true);
        if let Some(beside) = beside {
            self.quiet.push(self.jobs.begin(Arc::new(beside), false, None, |_| true));
        }
        Ok(())
    }

    /// What becomes known by routing: the runs of experts, and what is loaded beside them.
    fn dispatched(
        &mut self,
        of: &Dispatched,
    ) -> Result<(TimedGraph, Option<TimedGraph>), PlanError> {
        let growing: Growing = self.of.program.growing(of.experts);
        let new = || ExpertRows::new(&growing.experts.split, growing.experts.shape.clone());
        let routing = self.routings.entry((of.set, of.experts)).or_insert_with(new);
        let mut counts = LayerCounts::default();
        let assumed = routing.assume(of.place, of.rows, &mut counts);
        let (runs, caches) = (assumed.map_err(PlanError::Unpriced)?, &mut self.caches);
        let grown = growing.dispatched(runs, routing, &mut counts, |cache, chosen| {
            caches[cache].place(chosen, of.rows, &[])
        });
        let ahead = growing.ahead(&grown);
        let beside = (!ahead.is_empty()).then(|| self.priced(of.experts, &ahead));
        Ok((self.priced(of.experts, &grown.tasks), beside))
    }

    /// Tasks with their prices and dependencies.
    fn priced(&self, experts: usize, grown: &[GrownTask]) -> TimedGraph {
        let plan = self.of;
        let (mut tasks, mut waits) = (Vec::new(), Vec::<Vec<u32>>::new());
        let mut hazards = HazardTracker::default();
        for (number, task) in (0..).zip(grown) {
            hazards.begin(number);
            let mut uses = |view: &PackedView, access| {
                hazards.memory(InUse::Rows(view.space, view.buffer), &view.rect(), access);
            };
            tasks.push(match &task.work {
                GrownWork::Copy(from, to) => {
                    uses(from, Access::Read);
                    uses(to, Access::Write);
                    let (at, bytes) = (plan.devices[task.queue], to.bytes());
                    TimedTask::beside(plan.request.cost.moving(Mover::Copy, at, bytes), false)
                }
                GrownWork::Run { graph, inputs, output, .. } => {
                    inputs.iter().for_each(|view| uses(view, Access::Read));
                    uses(output, Access::Write);
                    let (rows, room) = (task.rows, task.rows);
                    let key = RunKey { graph: *graph, rows, room, cached: 0 };
                    self.timed_run(&key, output.bytes(), false)
                }
                GrownWork::Load(load) => {
                    // Who uses a slot waits for who used it before.
                    let slot = Rect::bytes(load.at.slot..load.at.slot + 1);
                    hazards.memory(InUse::Slot(load.at.cache), &slot, Access::Write);
                    let cache = &plan.program.caches[load.at.cache];
                    let bytes = cache.bytes[load.at.group as usize];
                    let at = plan.devices[cache.device];
                    let need = match load.awaited {
                        true => TaskCost::default(),
                        false => plan.request.cost.moving(Mover::Load, at, bytes),
                    };
                    let grows = Some(Grows::Loaded { load: load.clone(), experts });
                    TimedTask { grows, ..TimedTask::beside(need, false) }
                }
            });
            waits.push(hazards.end().to_vec());
        }
        let dag = Dag::new(grown.iter().map(|task| task.queue).collect(), &waits);
        let mut schedule = Schedule { dag, order: None };
        for (number, task) in (0..).zip(&mut tasks) {
            task.awaited = schedule.dag.awaited[number as usize];
            if task.grows.is_some() {
                schedule.grow(number);
            }
        }
        TimedGraph { tasks, schedule: Arc::new(schedule) }
    }
}

/// What tasks of experts use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum InUse {
    Rows(SpaceId, ExpertBuffer),
    /// Slots of a cache.
    Slot(usize),
}
