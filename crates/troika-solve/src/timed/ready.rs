//! Runs tasks as they become ready, and what becomes known by tasks that dispatch experts.

use std::rc::Rc;

use troika_device::SpaceId;
use troika_model::lower::SegmentKind;
use troika_plan::PlanError;
use troika_program::schedule::{Dag, Schedule};
use troika_program::{ExpertRows, LayerCounts, PackedRun};

use super::TimedRun;
use super::tasks::{Dispatched, List, Report, RunKey, TimedTask};
use crate::cost::Mover;

impl TimedRun<'_> {
    /// Runs tasks as they become ready.
    pub(super) fn run_ready(
        &mut self,
        tasks: Rc<Vec<TimedTask>>,
        schedule: Rc<Schedule>,
    ) -> Result<(), PlanError> {
        // A plan that takes for ever leaves its jobs behind.
        self.jobs.active.clear();
        self.jobs.all.iter_mut().for_each(|job| job.runs = false);
        self.jobs.begin(tasks, schedule, None, &self.learnt);
        while !self.jobs.end() {
            self.hand_over();
            let Some(report) = self.hear() else { break };
            self.complete(&report)?;
        }
        Ok(())
    }

    /// Gives queues what they have room for, graph by graph.
    fn hand_over(&mut self) {
        for active in 0..self.jobs.active.len() {
            let index = self.jobs.active[active];
            for at in 0..self.queues.len() {
                while self.queues[at].in_flight < self.queues[at].depth {
                    let job = &mut self.jobs.all[index];
                    let Some(id) = job.state.take(&job.schedule.dag, &job.costs, at) else { break };
                    job.in_flight += 1;
                    let numbers = job.state.tasks(id).to_vec();
                    let (waits, signals, took) = (Vec::new(), Vec::new(), Vec::new());
                    let (id, tasks) = ((index, id), job.tasks.clone());
                    self.submit(at, List { id, numbers, tasks, waits, signals, took });
                }
            }
        }
    }

    /// Notes a list that is done, or begins what became known by its last task.
    fn complete(&mut self, report: &Report) -> Result<(), PlanError> {
        let (index, list) = report.id;
        let tasks = self.jobs.all[index].tasks.clone();
        self.learn(&tasks, report);
        let job = &mut self.jobs.all[index];
        job.in_flight -= 1;
        let last = job.state.tasks(list).last().map_or(0, |task| *task as usize);
        let grows = job.schedule.dag.grows.get(last).copied().unwrap_or(false);
        let Some(dispatched) = tasks.get(last).and_then(|t| t.dispatch).filter(|_| grows) else {
            job.state.complete(&job.schedule.dag, list);
            return Ok(());
        };
        job.grown += 1;
        let (tasks, schedule) = self.dispatched(&dispatched)?;
        self.jobs.begin(Rc::new(tasks), Rc::new(schedule), Some((index, list)), &self.learnt);
        Ok(())
    }

    /// What becomes known by routing: the runs of experts, between copies on devices with memory of
    /// their own.
    fn dispatched(&mut self, of: &Dispatched) -> Result<(Vec<TimedTask>, Schedule), PlanError> {
        let program = self.program.clone();
        let experts = &program.experts[of.experts];
        let new = || ExpertRows::new(&experts.split, experts.shape.clone());
        let routing = self.routings.entry((of.set, of.experts)).or_insert_with(new);
        let mut counts = LayerCounts::default();
        let assumed = routing.assume(of.place, of.rows, &mut counts);
        let runs = assumed.map_err(PlanError::Unpriced)?;
        let (mut tasks, mut device, mut waits) = (Vec::new(), Vec::new(), Vec::<Vec<u32>>::new());
        for PackedRun { group, rows, .. } in runs {
            let group = group.and_then(|g| experts.groups.get(g));
            // Plans with experts divided by columns are not priced.
            let of = group.and_then(|parts| parts.first()).unwrap_or(&experts.rest);
            let (graph, at, space) = (of.graph, of.device, of.space);
            let bytes = (rows.len() as u64).saturating_mul(4 * program.packed.cols as u64);
            let (rows, kind) = (rows.len(), SegmentKind::Experts);
            let key = RunKey { graph, kind, rows, room: rows, cached: 0 };
            let mut steps = vec![self.timed_run(&key, bytes, false)];
            if space != SpaceId::HOST {
                let copies = self.machine.sharing().devices[at];
                let copy =
                    || TimedTask::beside(self.cost.moving(Mover::Copy, copies, bytes), false);
                steps.insert(0, copy());
                steps.push(copy());
            }
            for (step, task) in steps.into_iter().enumerate() {
                let before = (tasks.len() as u32).checked_sub(1).filter(|_| step > 0);
                waits.push(before.into_iter().collect());
                tasks.push(task);
                device.push(at);
            }
        }
        let schedule = Schedule { dag: Dag::new(device, &waits), order: None };
        Ok((tasks, schedule))
    }
}
