//! Task graphs that run at once: which lists queues get next, and what follows from their ends. The
//! engine's queues run them, those of a prediction let modelled time pass. It knows neither time nor
//! threads.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use troika_plan::Policy;

use super::policy::Costs;
use super::state::{LATE_DEPTH, ListId, State, lists_in_flight};
use super::{DeviceOrder, Schedule};

/// Tasks that run together.
pub trait Graph {
    /// What tasks of equal costs have in common.
    type Key: Copy + Eq + Hash;

    /// Their order.
    fn schedule(&self) -> &Schedule;

    /// The key of a task, and its rows; `None` if its cost is not learnt.
    fn cost_key(&self, task: u32) -> Option<(Self::Key, usize)>;
}

/// What tasks take, in nanoseconds, by their key and rows.
pub type TaskTimes<K> = HashMap<K, BTreeMap<usize, u64>>;

/// Why a graph ended before its time.
pub trait Failure {
    /// It was left out, since the graph that it is a part of has failed.
    fn skipped() -> Self;

    /// Whether it is only the consequence of another failure.
    fn is_skipped(&self) -> bool;
}

/// Queues that take lists of tasks.
pub trait Queues<G, E> {
    /// Takes a list. `true` if it ran at once, so that its end comes before anything else.
    ///
    /// # Errors
    /// The queue takes none; its job fails.
    fn submit(&mut self, list: &TaskList<'_, G>) -> Result<bool, E>;

    /// A queue will not signal what a job's order says.
    fn lose(&mut self, job: usize, queue: usize);

    /// A graph has ended, of which `ran` says what has run, as far as that is known.
    fn ended(&mut self, job: usize, graph: &G, failure: Option<&E>, ran: &dyn Fn(u32) -> bool);
}

/// A list of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobList {
    /// The job.
    pub job: usize,
    /// Its list.
    pub list: ListId,
}

/// A list of tasks for a queue.
pub struct TaskList<'a, G> {
    /// Which one it is.
    pub id: JobList,
    /// The queue.
    pub queue: usize,
    /// The graph.
    pub graph: &'a Arc<G>,
    /// The tasks, in this order.
    pub tasks: &'a [u32],
    /// Its waits and signals, counted from `base` on, if the order is fixed.
    pub order: Option<&'a DeviceOrder>,
    /// What the queues have signalled for this job before.
    pub base: u64,
    /// The job that it is a part of, or the list's own.
    pub whole: usize,
    /// Whether all tasks are for this queue, and nothing else runs.
    pub alone: bool,
}

/// A queue as far as it matters here.
struct QueueState {
    /// The most lists in flight.
    depth: usize,
    /// Whether it waits for others by itself.
    waits: bool,
    /// Lists in flight, of all jobs.
    in_flight: usize,
}

impl QueueState {
    fn has_room(&self) -> bool {
        self.in_flight < self.depth
    }
}

/// A place for a running graph, which keeps its memory from one graph to the next.
struct RunningGraph<G, E> {
    /// `None`: the place is free.
    running: Option<Arc<G>>,
    /// The list of another job by which this graph became known. It is done when the graph is.
    part_of: Option<JobList>,
    /// Running graphs that became known by this one.
    grown: usize,
    /// Its queues get all lists at once and wait for each other by themselves.
    in_order: bool,
    /// Whether all lists were handed over, where it runs in order.
    submitted: bool,
    /// Other graphs go first, and tasks are queued shortly before they run.
    background: bool,
    state: State,
    costs: Costs,
    /// As of [`TaskList`].
    base: u64,
    /// Its lists in each queue.
    in_flight: Vec<usize>,
    failure: Option<E>,
}

impl<G, E> RunningGraph<G, E> {
    fn is_handed_over(&self) -> bool {
        self.failure.is_some()
            || (if self.in_order { self.submitted } else { self.state.remaining == 0 })
    }

    fn has_ended(&self) -> bool {
        self.is_handed_over() && self.grown == 0 && self.in_flight.iter().all(|n| *n == 0)
    }
}

/// Running graphs, which are independent except that they share the queues.
pub struct Jobs<G: Graph, E> {
    all: Vec<RunningGraph<G, E>>,
    /// Those that run, in the order in which they began.
    active: Vec<usize>,
    queues: Vec<QueueState>,
    policy: Policy,
    critical: usize,
    /// What tasks took, or are expected to take.
    pub learnt: TaskTimes<G::Key>,
}

impl<G: Graph, E: Failure> Jobs<G, E> {
    /// `critical` is the device that must not stall, for policies that ask for it.
    pub fn new(policy: Policy, critical: usize) -> Jobs<G, E> {
        let (all, active, queues, learnt) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
        Jobs { all, active, queues, policy, critical, learnt }
    }

    /// Adds a device's queue, which takes `depth` lists. `waits`: lists wait for those of others by
    /// themselves.
    pub fn add_queue(&mut self, depth: usize, waits: bool) {
        let depth = lists_in_flight(self.policy, depth);
        self.queues.push(QueueState { depth, waits, in_flight: 0 });
    }

    /// Begins a graph in a free place that `may_use` allows, and returns the place. A graph in the
    /// background lets others go first; `part_of` is the list by which it became known.
    pub fn begin(
        &mut self,
        graph: Arc<G>,
        background: bool,
        part_of: Option<JobList>,
        may_use: impl Fn(usize) -> bool,
    ) -> usize {
        let whole = part_of.map(|by| &mut self.all[by.job]);
        let background = whole.map_or(background, |whole| {
            whole.grown += 1;
            whole.background
        });
        let free = |&index: &usize| self.all[index].running.is_none() && may_use(index);
        let index = (0..self.all.len()).find(free).unwrap_or_else(|| {
            self.all.push(RunningGraph {
                running: None,
                part_of: None,
                grown: 0,
                in_order: false,
                submitted: false,
                background: false,
                state: State::new(self.policy, self.queues.len()),
                costs: Costs::new(self.critical),
                base: 0,
                in_flight: vec![0; self.queues.len()],
                failure: None,
            });
            self.all.len() - 1
        });
        let schedule = graph.schedule();
        let job = &mut self.all[index];
        // Graphs that become known share the signals of the first graph, which they must not change.
        job.in_order = part_of.is_none()
            && schedule.order.as_ref().is_some_and(|order| {
                let mut used = order.devices.iter().zip(&self.queues);
                used.all(|(device, queue)| device.tasks.is_empty() || queue.waits)
            });
        // With a fixed order, costs are not used.
        if self.policy.weighs() && !job.in_order {
            // Of so many rows, or of the next number of rows that is known.
            let known = |(key, rows)| Some(*self.learnt.get(&key)?.range(rows..).next()?.1);
            let cost = |task| graph.cost_key(task).and_then(known).unwrap_or(0);
            job.costs.set(self.policy, &schedule.dag, (0..schedule.dag.len() as u32).map(cost));
        }
        if !job.in_order {
            job.state.start(&schedule.dag);
        }
        (job.part_of, job.background, job.submitted) = (part_of, background, false);
        (job.running, job.failure) = (Some(graph), None);
        self.active.push(index);
        index
    }

    /// Hands over what queues have room for, foreground graphs first, until a list runs at once.
    pub fn hand_over(&mut self, queues: &mut impl Queues<G, E>) {
        for background in [false, true] {
            for at in 0..self.active.len() {
                let index = self.active[at];
                if let Some(by) = self.all[index].part_of
                    && self.all[by.job].failure.is_some()
                {
                    self.fail(index, E::skipped());
                }
                let job = &self.all[index];
                if job.background != background || job.is_handed_over() {
                    continue;
                }
                if job.in_order {
                    self.hand_over_all(queues, index);
                } else if self.hand_over_ready(queues, index) {
                    return;
                }
            }
        }
    }

    /// Gives all queues all their lists once every queue has room. Lists of one graph wait for each
    /// other, so they are queued together or not at all.
    fn hand_over_all(&mut self, queues: &mut impl Queues<G, E>, index: usize) {
        let job = &mut self.all[index];
        let Some(graph) = job.running.clone() else { return };
        let Some(order) = &graph.schedule().order else { return };
        let mut used = order.devices.iter().zip(&self.queues);
        if !used.all(|(device, queue)| device.tasks.is_empty() || queue.has_room()) {
            return;
        }
        let base = job.base;
        (job.submitted, job.base) = (true, base + order.values());
        for (queue, device) in order.devices.iter().enumerate() {
            if device.tasks.is_empty() {
                continue;
            }
            if self.all[index].failure.is_some() {
                // Release the queues that wait for this list.
                queues.lose(index, queue);
                continue;
            }
            let id = JobList { job: index, list: 0 };
            let result = queues.submit(&TaskList {
                id,
                queue,
                graph: &graph,
                tasks: &device.tasks,
                order: Some(device),
                base,
                whole: index,
                alone: false,
            });
            self.count(queues, index, queue, result);
        }
    }

    /// Gives every queue with room the graph's next tasks. `true` if a list ran at once.
    fn hand_over_ready(&mut self, queues: &mut impl Queues<G, E>, index: usize) -> bool {
        let Some(graph) = self.all[index].running.clone() else { return false };
        let dag = &graph.schedule().dag;
        let alone = dag.only_device.is_some() && self.active.len() == 1;
        // Whoever cancels a graph cancels what became known by it.
        let mut whole = index;
        while let Some(by) = self.all[whole].part_of {
            whole = by.job;
        }
        for queue in 0..self.queues.len() {
            while self.queues[queue].has_room() {
                let job = &mut self.all[index];
                if job.failure.is_some() {
                    return false;
                }
                if job.background && job.in_flight[queue] >= LATE_DEPTH {
                    break;
                }
                let Some(list) = job.state.take(dag, &job.costs, queue) else { break };
                let result = queues.submit(&TaskList {
                    id: JobList { job: index, list },
                    queue,
                    graph: &graph,
                    tasks: job.state.tasks(list),
                    order: None,
                    base: job.base,
                    whole,
                    alone: alone && self.queues[queue].in_flight == 0,
                });
                if self.count(queues, index, queue, result) {
                    return true;
                }
            }
        }
        false
    }

    /// Counts a list that was handed over, or notes why it was not. `true` if it ran at once.
    fn count(
        &mut self,
        queues: &mut impl Queues<G, E>,
        index: usize,
        queue: usize,
        result: Result<bool, E>,
    ) -> bool {
        match result {
            Ok(ran) => {
                self.queues[queue].in_flight += 1;
                self.all[index].in_flight[queue] += 1;
                ran
            }
            Err(e) => {
                queues.lose(index, queue);
                self.fail(index, e);
                false
            }
        }
    }

    /// Whether no queue has lists in flight.
    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.in_flight == 0)
    }

    /// Whether no graph runs.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Lists of a queue that are in flight.
    pub fn in_flight(&self, queue: usize) -> usize {
        self.queues[queue].in_flight
    }

    /// A list has left its queue. Returns its graph.
    pub fn left(&mut self, queue: usize, id: JobList) -> Option<Arc<G>> {
        self.queues[queue].in_flight -= 1;
        let job = &mut self.all[id.job];
        let graph = job.running.clone()?;
        job.in_flight[queue] -= 1;
        Some(graph)
    }

    /// A list has run to its end. Returns its last task if others become known by it: the list is
    /// done when these have run, or by [`Jobs::close`].
    pub fn complete(&mut self, id: JobList) -> Option<u32> {
        let job = &self.all[id.job];
        let graph = job.running.as_ref().filter(|_| !job.in_order)?;
        let last = job.state.tasks(id.list).last().copied();
        match last.filter(|task| graph.schedule().dag.grows[*task as usize]) {
            None => {
                self.close(id);
                None
            }
            grows => grows.filter(|_| job.failure.is_none()),
        }
    }

    /// A list, and all that became known by it, is done.
    pub fn close(&mut self, id: JobList) {
        let job = &mut self.all[id.job];
        if let Some(graph) = &job.running {
            job.state.complete(&graph.schedule().dag, id.list);
        }
    }

    /// Notes a failure of a job. Keeps the first one, but replaces a mere consequence by its cause.
    pub fn fail(&mut self, job: usize, failure: E) {
        let known = &mut self.all[job].failure;
        if known.as_ref().is_none_or(E::is_skipped) {
            *known = Some(failure);
        }
    }

    /// A queue will not report the lists that it has: the jobs they are of fail.
    pub fn lost(&mut self, queues: &mut impl Queues<G, E>, queue: usize, why: impl Fn() -> E) {
        self.queues[queue].in_flight = 0;
        for index in 0..self.all.len() {
            if std::mem::take(&mut self.all[index].in_flight[queue]) > 0 {
                queues.lose(index, queue);
                self.fail(index, why());
            }
        }
    }

    /// No list will report any more: what was not handed over waits for something that never happens.
    /// `why` gets the number of unfinished tasks.
    pub fn stuck(&mut self, why: impl Fn(usize) -> E) {
        for at in 0..self.active.len() {
            let job = &self.all[self.active[at]];
            if !job.is_handed_over() {
                self.fail(self.active[at], why(job.state.remaining));
            }
        }
    }

    /// Gives up all graphs, and the lists in flight.
    pub fn clear(&mut self) {
        self.active.clear();
        for job in &mut self.all {
            (job.running, job.part_of, job.failure, job.grown) = (None, None, None, 0);
            job.in_flight.fill(0);
        }
        self.queues.iter_mut().for_each(|queue| queue.in_flight = 0);
    }

    /// Removes a graph that has ended, with its result. The end of one that became known by another
    /// graph's list is the end of this list.
    pub fn take_ended(&mut self, queues: &mut impl Queues<G, E>) -> Option<(usize, Result<(), E>)> {
        loop {
            let at = self.active.iter().position(|index| self.all[*index].has_ended())?;
            let index = self.active.remove(at);
            let job = &mut self.all[index];
            let (graph, failure) = (job.running.take(), job.failure.take());
            // With a fixed order, finished tasks are not tracked.
            let ran = |task| !job.in_order && job.state.is_complete(task);
            if let Some(graph) = &graph {
                queues.ended(index, graph, failure.as_ref(), &ran);
            }
            let Some(by) = job.part_of.take() else {
                return Some((index, failure.map_or(Ok(()), Err)));
            };
            self.all[by.job].grown -= 1;
            match failure {
                Some(failure) => self.fail(by.job, failure),
                None => self.close(by),
            }
        }
    }

    /// Learns what a task costs, where the policy goes by it.
    pub fn learn(&mut self, graph: &G, task: u32, took_ns: u64) {
        if self.policy.weighs()
            && let Some((key, rows)) = graph.cost_key(task)
        {
            let known = self.learnt.entry(key).or_default().entry(rows).or_insert(took_ns);
            // A moving average that follows changes of load within about ten runs.
            *known = (*known * 7 + took_ns) / 8;
        }
    }
}
