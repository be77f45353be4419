//! Which ready task an idle device takes. A pure function of the ready tasks, their dependents, and
//! task costs.

use troika_plan::Policy;

use super::Dag;

/// Task costs in nanoseconds, and the device whose work decides how long a prompt takes.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// The cost of each task; 0 if it never ran.
    pub task_ns: Vec<u64>,
    /// The device that must not stall.
    pub critical: usize,
    /// For each task, the time of the longest chain of tasks that begins with it.
    way_ns: Vec<u64>,
}

impl Costs {
    /// Costs without tasks.
    pub fn new(critical: usize) -> Costs {
        Costs { critical, ..Costs::default() }
    }

    /// Takes the costs of a graph's tasks, by number.
    pub fn set(&mut self, policy: Policy, dag: &Dag, task_ns: impl Iterator<Item = u64>) {
        self.task_ns.clear();
        self.way_ns.clear();
        self.task_ns.extend(task_ns);
        if policy == Policy::CriticalPath {
            self.way_ns.resize(dag.len(), 0);
            // Dependents come later in program order. Where no cost is known, tasks are counted.
            for task in (0..dag.len()).rev() {
                let after = dag.dependents[task].iter().map(|&d| self.way_ns[d as usize]).max();
                self.way_ns[task] = self.task_ns[task].max(1) + after.unwrap_or(0);
            }
        }
    }
}

/// The index in `ready` of the task that `device` runs next; `None` when nothing is ready.
/// `unfinished` is the number of unfinished tasks that each task waits for.
pub(super) fn pick(
    policy: Policy,
    dag: &Dag,
    unfinished: &[u32],
    costs: &Costs,
    ready: &[u32],
) -> Option<usize> {
    let candidates = ready.iter().enumerate();
    match policy {
        Policy::ChunkAtATime | Policy::InOrder => candidates.min_by_key(|c| c.1).map(|best| best.0),
        Policy::CriticalPath => {
            let way = |task: u32| costs.way_ns.get(task as usize).copied().unwrap_or(0);
            let best = candidates.max_by_key(|c| (way(*c.1), std::cmp::Reverse(*c.1)));
            best.map(|best| best.0)
        }
        Policy::OutOfOrder => {
            let value = |task: u32| contribution(dag, unfinished, costs, task);
            let valued = candidates.map(|(position, &task)| (position, task, value(task)));
            // Among equal contributions, the earliest task in program order wins.
            let best = valued.max_by(|a, b| a.2.cmp(&b.2).then_with(|| b.1.cmp(&a.1)));
            best.map(|best| best.0)
        }
    }
}

/// How much a task helps to keep the critical device busy (llm.npu, section 3.4, equation 5), by
/// the tasks that become ready after it. On another device: the time of those for the critical
/// device. On the critical device: minus the time of those for others, since it must wait for them.
fn contribution(dag: &Dag, unfinished: &[u32], costs: &Costs, task: u32) -> i64 {
    let on_critical = dag.device[task as usize] == costs.critical;
    let freed = dag.dependents[task as usize].iter().filter(|&&d| unfinished[d as usize] == 1);
    let across = freed.filter(|&&d| (dag.device[d as usize] == costs.critical) != on_critical);
    let time = |d: &u32| costs.task_ns.get(*d as usize).copied().unwrap_or(0) as i64;
    let sum: i64 = across.map(time).sum();
    if on_critical { -sum } else { sum }
}
