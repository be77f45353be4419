//! Which ready task an idle device takes. A pure function of the ready tasks, of what waits for
//! them, and of what tasks cost.

use troika_plan::Policy;

use super::Dag;

/// What tasks cost, in nanoseconds, and which device's work decides how long a prompt takes.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// A time for each task; 0 for tasks that never ran.
    pub task_ns: Vec<u64>,
    /// The device that must not stall.
    pub critical: usize,
}

/// The position in `ready` of the task that `device` runs next; `None` when nothing is ready.
/// `unfinished` counts the tasks that each task waits for and that are not done.
pub(super) fn pick(
    policy: Policy,
    dag: &Dag,
    unfinished: &[u32],
    costs: &Costs,
    ready: &[u32],
) -> Option<usize> {
    let candidates = ready.iter().enumerate();
    match policy {
        Policy::InOrder => candidates.min_by(|a, b| dag.compare(*a.1, *b.1)).map(|best| best.0),
        Policy::OutOfOrder => {
            let value = |task: u32| contribution(dag, unfinished, costs, task);
            let valued = candidates.map(|(position, &task)| (position, task, value(task)));
            // Of equal contributions the earliest task in program order counts.
            let best = valued.max_by(|a, b| a.2.cmp(&b.2).then_with(|| dag.compare(b.1, a.1)));
            best.map(|best| best.0)
        }
    }
}

/// What running a task contributes to keeping the critical device busy (llm.npu, section 3.4,
/// equation 5). Of the tasks that become ready when it is done: on another device, the time of
/// those that the critical device will run; on the critical device, minus the time of those that
/// the others will, since it has to wait for them.
fn contribution(dag: &Dag, unfinished: &[u32], costs: &Costs, task: u32) -> i64 {
    let on_critical = dag.device[task as usize] == costs.critical;
    let freed = dag.dependents[task as usize].iter().filter(|&&d| unfinished[d as usize] == 1);
    let across = freed.filter(|&&d| (dag.device[d as usize] == costs.critical) != on_critical);
    let time = |d: &u32| costs.task_ns.get(*d as usize).copied().unwrap_or(0) as i64;
    let sum: i64 = across.map(time).sum();
    if on_critical { -sum } else { sum }
}
