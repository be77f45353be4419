//! The scheduler as a state machine: completions in, command lists out. It knows neither time nor
//! threads, so tests can try every order of events.

use troika_plan::Policy;

use super::Dag;
use super::policy::{Costs, pick};

/// The most lists in a queue where decisions are made late: one runs and one waits, so that the
/// device does not idle while the scheduler learns of the first one's end.
pub const LATE_DEPTH: usize = 2;

/// The most lists in a queue, whatever a device offers.
const MOST_DEPTH: usize = 1024;

/// The most lists in a queue that takes `queue_depth` lists.
pub fn lists_in_flight(policy: Policy, queue_depth: usize) -> usize {
    queue_depth.clamp(1, if policy.weighs() { LATE_DEPTH } else { MOST_DEPTH })
}

/// Number of a command list in flight.
pub type ListId = usize;

/// Which tasks have run, are in flight, or are ready.
#[derive(Clone, Debug, Default)]
pub struct State {
    policy: Policy,
    /// For each task, the unfinished tasks it waits for. Tasks ahead of it in its own queue do not
    /// count, since a queue runs in order.
    waits: Vec<u32>,
    /// The same with tasks ahead of it in its own queue.
    unfinished: Vec<u32>,
    /// Ready tasks of each device.
    ready: Vec<Vec<u32>>,
    /// Tasks of each list in flight, with their device. Entries are reused.
    lists: Vec<Option<(usize, Vec<u32>)>>,
    spare: Vec<Vec<u32>>,
    progress: Vec<Progress>,
    /// Number of unfinished tasks.
    pub(super) remaining: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It is in no list.
    Waiting,
    /// It is in a list in flight.
    Queued,
    /// It is done.
    Complete,
}

impl State {
    /// A state without tasks.
    pub fn new(policy: Policy, devices: usize) -> State {
        State { policy, ready: vec![Vec::new(); devices], ..State::default() }
    }

    /// Starts over with tasks that have not run.
    pub fn start(&mut self, dag: &Dag) {
        self.waits.clone_from(&dag.waits);
        self.unfinished.clone_from(&dag.waits);
        self.ready.iter_mut().for_each(Vec::clear);
        for list in self.lists.iter_mut().filter_map(Option::take) {
            let (_, mut tasks) = list;
            tasks.clear();
            self.spare.push(tasks);
        }
        self.progress.clear();
        self.progress.resize(dag.len(), Progress::Waiting);
        self.remaining = dag.len();
        for task in 0..dag.len() as u32 {
            if self.waits[task as usize] == 0 {
                self.ready[dag.device[task as usize]].push(task);
            }
        }
    }

    /// Whether a task has run, judged by the end of its list.
    pub fn is_complete(&self, task: u32) -> bool {
        self.progress[task as usize] == Progress::Complete
    }

    /// The next command list of a device: ready tasks in the policy's order, and tasks that wait
    /// only for others of the list. A list reports only its end, so it ends at the first task that
    /// another device waits for, or that grows. `None` when nothing is ready.
    pub fn take(&mut self, dag: &Dag, costs: &Costs, device: usize) -> Option<ListId> {
        let mut tasks = self.spare.pop().unwrap_or_default();
        while let Some(at) = pick(self.policy, dag, &self.unfinished, costs, &self.ready[device]) {
            let task = self.ready[device].swap_remove(at);
            tasks.push(task);
            self.progress[task as usize] = Progress::Queued;
            for &d in &dag.dependents[task as usize] {
                if dag.device[d as usize] == device && !dag.grows[task as usize] {
                    self.release(dag, d);
                }
            }
            // Where costs decide, the next task is chosen when the device is free again.
            if dag.awaited[task as usize] || dag.grows[task as usize] || self.policy.weighs() {
                break;
            }
        }
        if tasks.is_empty() {
            self.spare.push(tasks);
            return None;
        }
        let free = self.lists.iter().position(Option::is_none);
        let id = free.unwrap_or_else(|| {
            self.lists.push(None);
            self.lists.len() - 1
        });
        self.lists[id] = Some((device, tasks));
        Some(id)
    }

    /// The tasks of a list in flight, in the order they run.
    pub fn tasks(&self, list: ListId) -> &[u32] {
        self.lists.get(list).and_then(Option::as_ref).map_or(&[], |(_, tasks)| tasks)
    }

    /// Notes that a list has run to its end, and all that became known by its last task, too.
    pub fn complete(&mut self, dag: &Dag, list: ListId) {
        let Some((device, mut tasks)) = self.lists.get_mut(list).and_then(Option::take) else {
            return;
        };
        self.remaining -= tasks.len();
        for &task in &tasks {
            self.progress[task as usize] = Progress::Complete;
            for &d in &dag.dependents[task as usize] {
                self.unfinished[d as usize] -= 1;
                if dag.device[d as usize] != device || dag.grows[task as usize] {
                    self.release(dag, d);
                }
            }
        }
        tasks.clear();
        self.spare.push(tasks);
    }

    /// A dependency of a task is done or ahead of it in its queue: the task may become ready.
    fn release(&mut self, dag: &Dag, task: u32) {
        let waits = &mut self.waits[task as usize];
        *waits -= 1;
        if *waits == 0 {
            self.ready[dag.device[task as usize]].push(task);
        }
    }
}
