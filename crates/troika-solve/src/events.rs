//! Runs tasks on devices in modelled time. Each device takes the earliest of its ready tasks, or
//! all its tasks in order. Tasks that run at the same time slow each other down.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A task on a device.
#[derive(Clone, Debug)]
pub(super) struct SimTask {
    pub device: usize,
    /// Its time on an idle machine.
    pub ns: f64,
    /// Identifies the task to the function that computes slowdowns.
    pub key: usize,
    /// The tasks before it, each with the delay from its end to this one's start.
    pub after: Vec<(usize, f64)>,
}

/// Times ordered as numbers.
#[derive(Clone, Copy, PartialEq)]
struct Instant(f64);

impl Eq for Instant {}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// For each task, the tasks that wait for it, and how many it waits for.
fn behind(tasks: &[SimTask]) -> (Vec<Vec<(usize, f64)>>, Vec<usize>) {
    let mut behind = vec![Vec::new(); tasks.len()];
    for (i, task) in tasks.iter().enumerate() {
        task.after.iter().for_each(|&(before, lag)| behind[before].push((i, lag)));
    }
    (behind, tasks.iter().map(|t| t.after.len()).collect())
}

/// Which task a device runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The earliest of its ready tasks.
    Ready,
    /// The next task in order: queues wait for each other, and nothing overtakes.
    InOrder,
}

/// The tasks that a device may run next.
struct ReadyTasks {
    ready: BTreeSet<usize>,
    /// All its tasks in order, if it runs them so.
    queued: Option<std::collections::VecDeque<usize>>,
}

impl ReadyTasks {
    fn next(&mut self) -> Option<usize> {
        let Some(queued) = &mut self.queued else { return self.ready.pop_first() };
        let first = queued.front().filter(|i| self.ready.contains(i)).copied()?;
        queued.pop_front();
        self.ready.remove(&first);
        Some(first)
    }
}

/// The end of each task. `slowdowns` gives the slowdown of tasks, by key, that run together.
pub(super) fn run(
    tasks: &[SimTask],
    devices: usize,
    order: Order,
    slowdowns: &mut dyn FnMut(&[usize]) -> Vec<f64>,
) -> Vec<f64> {
    let (behind, mut missing) = behind(tasks);
    let mut earliest = vec![0.0_f64; tasks.len()];
    let mut coming = BinaryHeap::new();
    coming
        .extend((0..tasks.len()).filter(|i| missing[*i] == 0).map(|i| Reverse((Instant(0.0), i))));
    let turns = |d: usize| ReadyTasks {
        ready: BTreeSet::new(),
        queued: (order == Order::InOrder)
            .then(|| (0..tasks.len()).filter(|i| tasks[*i].device == d).collect()),
    };
    let mut turns: Vec<ReadyTasks> = (0..devices).map(turns).collect();
    let mut running: Vec<Option<(usize, f64)>> = vec![None; devices];
    let mut end = vec![f64::INFINITY; tasks.len()];
    let mut now = 0.0;
    loop {
        while let Some(Reverse((_, i))) = coming.peek().copied().filter(|r| r.0.0.0 <= now) {
            coming.pop();
            turns[tasks[i].device].ready.insert(i);
        }
        for d in 0..devices {
            if running[d].is_none() {
                running[d] = turns[d].next().map(|i| (i, tasks[i].ns));
            }
        }
        let busy: Vec<usize> = (0..devices).filter(|d| running[*d].is_some()).collect();
        let keys: Vec<usize> =
            busy.iter().filter_map(|d| running[*d]).map(|(i, _)| tasks[i].key).collect();
        let slow = if keys.len() > 1 { slowdowns(&keys) } else { vec![1.0; keys.len()] };
        let next = coming.peek().map(|Reverse((at, _))| at.0);
        let ends =
            busy.iter().zip(&slow).filter_map(|(d, s)| running[*d].map(|(_, left)| left * s));
        let Some(until) = ends.map(|left| now + left).chain(next).reduce(f64::min) else { break };
        if !until.is_finite() {
            break;
        }
        for (d, s) in busy.iter().zip(&slow) {
            let Some((i, left)) = running[*d] else { continue };
            let left = left - (until - now) / s;
            // Ignores remainders from rounding.
            if left > 1e-6 + until * 1e-12 {
                running[*d] = Some((i, left));
                continue;
            }
            running[*d] = None;
            end[i] = until;
            for &(task, lag) in &behind[i] {
                earliest[task] = earliest[task].max(until + lag);
                missing[task] -= 1;
                if missing[task] == 0 {
                    coming.push(Reverse((Instant(earliest[task]), task)));
                }
            }
        }
        now = until;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::{Order, SimTask, run};

    fn task(device: usize, ns: f64, after: &[(usize, f64)]) -> SimTask {
        SimTask { device, ns, key: device, after: after.to_vec() }
    }

    #[test]
    fn devices_run_side_by_side_and_wait_for_each_other() {
        let tasks = [
            task(0, 10.0, &[]),
            task(1, 4.0, &[]),
            task(1, 5.0, &[(0, 2.0)]),
            task(0, 1.0, &[(1, 3.0)]),
            task(0, 1.0, &[(2, 2.0), (3, 0.0)]),
        ];
        let end = run(&tasks, 2, Order::Ready, &mut |keys| vec![1.0; keys.len()]);
        assert_eq!(end, [10.0, 4.0, 17.0, 11.0, 20.0]);
    }

    #[test]
    fn of_ready_tasks_the_earliest_runs() {
        let tasks = [task(0, 5.0, &[(1, 0.0)]), task(0, 1.0, &[]), task(0, 1.0, &[])];
        let end = run(&tasks, 1, Order::Ready, &mut |keys| vec![1.0; keys.len()]);
        assert_eq!(end, [6.0, 1.0, 7.0]);
        // In order, a ready task waits for an earlier one that is not ready.
        let tasks = [task(0, 1.0, &[(1, 0.0)]), task(1, 5.0, &[]), task(0, 2.0, &[])];
        let end = |order| run(&tasks, 2, order, &mut |keys| vec![1.0; keys.len()]);
        assert_eq!(end(Order::Ready), [6.0, 5.0, 2.0]);
        assert_eq!(end(Order::InOrder), [6.0, 5.0, 8.0]);
    }

    #[test]
    fn tasks_that_run_at_once_slow_each_other_down() {
        // Both are twice as slow while both run: the second ends at 8, with 6 left of the first.
        let tasks = [task(0, 10.0, &[]), task(1, 4.0, &[])];
        let end = run(&tasks, 2, Order::Ready, &mut |keys| vec![2.0; keys.len()]);
        assert_eq!(end, [14.0, 8.0]);
    }

    #[test]
    fn what_cannot_be_run_never_ends() {
        let tasks = [task(0, f64::INFINITY, &[]), task(0, 1.0, &[(0, 0.0)])];
        let end = run(&tasks, 1, Order::Ready, &mut |keys| vec![1.0; keys.len()]);
        assert!(end.iter().all(|t| t.is_infinite()));
    }
}
