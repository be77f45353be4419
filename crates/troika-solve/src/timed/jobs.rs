//! Task graphs that run at once, as the engine's scheduler has them.

use std::collections::HashMap;
use std::rc::Rc;

use troika_plan::{Plan, Policy};
use troika_program::schedule::{Costs, ListId, Schedule, State};

use super::tasks::TimedTask;

/// Graphs that run.
pub(super) struct RunningGraphs {
    pub all: Vec<RunningGraph>,
    /// Those that run, in the order in which they began.
    pub active: Vec<usize>,
    policy: Policy,
    critical: usize,
    devices: usize,
}

/// A graph that runs, or a place for one.
pub(super) struct RunningGraph {
    pub tasks: Rc<Vec<TimedTask>>,
    pub schedule: Rc<Schedule>,
    pub state: State,
    pub costs: Costs,
    /// The job and its list by which this one became known.
    pub part_of: Option<(usize, ListId)>,
    /// Number of running graphs that became known by it.
    pub grown: usize,
    pub in_flight: usize,
    pub runs: bool,
}

impl RunningGraphs {
    pub fn new(plan: &Plan, devices: usize) -> RunningGraphs {
        let (policy, critical) = (plan.prefill.policy, plan.critical_device());
        RunningGraphs { all: Vec::new(), active: Vec::new(), policy, critical, devices }
    }

    pub fn begin(
        &mut self,
        tasks: Rc<Vec<TimedTask>>,
        schedule: Rc<Schedule>,
        part_of: Option<(usize, ListId)>,
        learnt: &HashMap<[usize; 3], u64>,
    ) {
        let index = self.all.iter().position(|job| !job.runs).unwrap_or_else(|| {
            let state = State::new(self.policy, self.devices);
            let costs = Costs { task_ns: Vec::new(), critical: self.critical };
            let (tasks, schedule) = (tasks.clone(), schedule.clone());
            let (part_of, grown, in_flight, runs) = (None, 0, 0, false);
            self.all.push(RunningGraph {
                tasks,
                schedule,
                state,
                costs,
                part_of,
                grown,
                in_flight,
                runs,
            });
            self.all.len() - 1
        });
        let job = &mut self.all[index];
        job.state.start(&schedule.dag);
        job.costs.task_ns.clear();
        if self.policy == Policy::OutOfOrder {
            let known = |task: &TimedTask| learnt.get(&task.key?).copied();
            job.costs.task_ns.extend(tasks.iter().map(|t| known(t).unwrap_or(0)));
        }
        (job.tasks, job.schedule, job.part_of) = (tasks, schedule, part_of);
        (job.grown, job.in_flight, job.runs) = (0, 0, true);
        self.active.push(index);
    }

    /// Removes jobs that have ended. `true` if that is so for the first one.
    pub fn end(&mut self) -> bool {
        loop {
            let done = |index: &usize| {
                let job = &self.all[*index];
                job.state.left() == 0 && job.in_flight == 0 && job.grown == 0
            };
            let Some(at) = self.active.iter().position(done) else { return false };
            let job = &mut self.all[self.active.remove(at)];
            job.runs = false;
            let Some((whole, list)) = job.part_of else { return true };
            let whole = &mut self.all[whole];
            whole.grown -= 1;
            whole.state.complete(&whole.schedule.dag, list);
        }
    }
}
