//! What follows from the end of a list, and what becomes known by tasks that dispatch experts.

use std::sync::Arc;

use troika_device::Access;
use troika_plan::PlanError;
use troika_program::schedule::{Dag, HazardTracker, Schedule};
use troika_program::{ExpertRows, LayerCounts, PackedRun, PackedStep};

use super::TimedRun;
use super::tasks::{Dispatched, Report, RunKey, TimedGraph, TimedTask};
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
        match graph.tasks[task as usize].dispatch {
            Some(dispatched) => {
                let grown = Arc::new(self.dispatched(&dispatched)?);
                self.jobs.begin(grown, false, Some(id), |_| true);
            }
            None => self.jobs.close(id),
        }
        Ok(())
    }

    /// What becomes known by routing: the runs of experts.
    fn dispatched(&mut self, of: &Dispatched) -> Result<TimedGraph, PlanError> {
        let plan = self.of;
        let experts = &plan.program.experts[of.experts];
        let new = || ExpertRows::new(&experts.split, experts.shape.clone());
        let routing = self.routings.entry((of.set, of.experts)).or_insert_with(new);
        let mut counts = LayerCounts::default();
        let assumed = routing.assume(of.place, of.rows, &mut counts);
        let runs = assumed.map_err(PlanError::Unpriced)?;
        let (mut tasks, mut device, mut waits) = (Vec::new(), Vec::new(), Vec::<Vec<u32>>::new());
        let mut hazards = HazardTracker::default();
        for PackedRun { group, rows, .. } in runs {
            let group = group.and_then(|g| experts.groups.get(g));
            let parts = group.map_or(std::slice::from_ref(&experts.rest), Vec::as_slice);
            for of in parts {
                for step in of.steps(&rows, &plan.program.packed) {
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
                        hazards.memory((view.space, view.buffer), &view.rect(), Access::Read);
                    }
                    let to = (written.space, written.buffer);
                    hazards.memory(to, &written.rect(), Access::Write);
                    waits.push(hazards.end().to_vec());
                    tasks.push(task);
                    device.push(of.device);
                }
            }
        }
        let dag = Dag::new(device, &waits);
        for (task, awaited) in tasks.iter_mut().zip(&dag.awaited) {
            task.awaited = *awaited;
        }
        Ok(TimedGraph { tasks, schedule: Arc::new(Schedule { dag, order: None }) })
    }
}
