//! The loop that keeps device queues fed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, Point, Signal, Submission,
    TaskTime, Timelines, Wait, Waiting, Work,
};
use troika_plan::Policy;
use troika_program::schedule::{DeviceOrder, LATE_DEPTH, ListId, Order};
use troika_trace::{Arg, Span, Tracer};

use super::job::{GraphJob, JobId};
use super::lane::{Lanes, LostLists};
use super::{Task, TaskGraph};
use crate::error::EngineError;

/// Runs task graphs on device queues, several at once. Graphs that run at the same time are
/// independent except that they share the queues.
pub struct Runner {
    lanes: Lanes,
    jobs: Vec<GraphJob>,
    /// Running graphs, in the order in which they were started.
    active: Vec<usize>,
    /// Ended graphs that were not reported yet.
    ended: VecDeque<Ended>,
    waiting: Waiting,
    policy: Policy,
    critical: usize,
    tracer: Tracer,
    learnt: HashMap<CostKey, u64>,
}

/// A graph that has ended, with its result.
pub type Ended = (JobId, Result<(), EngineError>);

/// The result of waiting for graphs.
pub enum Waited {
    /// One has ended.
    Ended(Ended),
    /// None is running.
    Idle,
    /// They continue, but the caller wanted to be interrupted.
    Interrupted,
}

/// Tasks with equal costs: device, executable and rows.
type CostKey = (usize, ExecutableId, usize);

/// The key of a run; `None` for other tasks.
fn cost_key(task: &Task) -> Option<CostKey> {
    match &task.work {
        Work::Run(run) => Some((task.device, run.weights.executable().id(), run.rows)),
        _ => None,
    }
}

/// Cancels a graph of a [`Runner`], from any thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Timelines>);

impl Canceller {
    /// Ends the running graph, or else the next one in its place, with [`DeviceError::Cancelled`].
    /// Tasks that have not begun are left out.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Withdraws a cancellation that came when nothing was running any more.
    pub fn reset(&self) {
        self.0.take_cancelled();
    }
}

impl Runner {
    /// Opens a queue on each device. `critical` is the device that must not stall, for policies
    /// that ask for it.
    ///
    /// # Errors
    /// A queue cannot be opened.
    pub fn new(
        devices: &[Arc<dyn Device>],
        (policy, critical): (Policy, usize),
        clock: &Arc<dyn Clock>,
        tracer: Tracer,
    ) -> Result<Runner, DeviceError> {
        Ok(Runner {
            lanes: Lanes::open(devices, policy, clock)?,
            jobs: vec![GraphJob::new(policy, critical, devices.len())],
            active: Vec::new(),
            ended: VecDeque::new(),
            waiting: Waiting::default(),
            policy,
            critical,
            tracer,
            learnt: HashMap::new(),
        })
    }

    /// Sets how queues wait for each other.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// Cancels a graph from another thread.
    pub fn canceller(&self, job: JobId) -> Canceller {
        Canceller(self.jobs[job.0].timelines.clone())
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device. Nothing of the graph is in flight then.
    pub fn run(&mut self, graph: &Arc<TaskGraph>) -> Result<(), EngineError> {
        let job = self.start(graph.clone(), false)?;
        loop {
            match self.advance() {
                Some((done, result)) if done == job => return result,
                other => self.ended.extend(other),
            }
        }
    }

    /// Starts a graph, which proceeds during [`Runner::wait`]. A graph in the background lets
    /// others go first; its tasks are queued shortly before they run.
    ///
    /// # Errors
    /// A device that is not there, or a host function for a device that runs none.
    pub fn start(&mut self, graph: Arc<TaskGraph>, background: bool) -> Result<JobId, EngineError> {
        self.check(&graph)?;
        Ok(JobId(self.begin(graph, background, None)))
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.lanes.now()
    }

    /// Waits until one of the started graphs has ended. Returns which one and its result: the first
    /// failure of a device, when nothing of it is in flight any more. `None` when no graph is
    /// running.
    pub fn wait(&mut self) -> Option<Ended> {
        match self.wait_unless(|| false) {
            Waited::Ended(ended) => Some(ended),
            Waited::Idle | Waited::Interrupted => None,
        }
    }

    /// Like [`Runner::wait`], but calls `interrupted` after each list; `true` ends the wait.
    pub fn wait_unless(&mut self, mut interrupted: impl FnMut() -> bool) -> Waited {
        let mut ended = self.ended.pop_front();
        while ended.is_none() && !self.active.is_empty() {
            ended = self.advance();
            if ended.is_none() && interrupted() {
                return Waited::Interrupted;
            }
        }
        ended.map_or(Waited::Idle, Waited::Ended)
    }

    /// Chunks of a failed graph whose tasks did not all run. Available until its place is reused.
    pub fn left_out(&self, job: JobId) -> &[u32] {
        &self.jobs[job.0].left_out
    }

    /// Begins a graph, on its own or as what became known by a list of another job.
    fn begin(
        &mut self,
        graph: Arc<TaskGraph>,
        background: bool,
        part_of: Option<(usize, ListId)>,
    ) -> usize {
        let waits = |order: &Order| {
            let mut used = order.devices.iter().zip(&self.lanes.all);
            used.all(|(d, lane)| d.tasks.is_empty() || lane.waits)
        };
        // Graphs that become known share the timelines of the first graph, whose values they must
        // not change.
        let in_order = part_of.is_none() && graph.schedule.order.as_ref().is_some_and(waits);
        // A number is reused only after the end of its previous graph was reported.
        let free = |&index: &usize| {
            let told = self.ended.iter().all(|(job, _)| job.0 != index);
            told && self.jobs[index].running.is_none()
        };
        let index = (0..self.jobs.len()).find(free).unwrap_or_else(|| {
            self.jobs.push(GraphJob::new(self.policy, self.critical, self.lanes.all.len()));
            self.jobs.len() - 1
        });
        let job = &mut self.jobs[index];
        // With a fixed order, costs are not used.
        job.costs.task_ns.clear();
        if self.policy == Policy::OutOfOrder && !in_order {
            let known = |key| self.learnt.get(&key).copied();
            let cost = |t: &Task| cost_key(t).and_then(known).unwrap_or(0);
            job.costs.task_ns.extend(graph.tasks.iter().map(cost));
        }
        (job.part_of, job.in_order, job.background) = (part_of, in_order, background);
        job.begin(graph);
        self.active.push(index);
        index
    }

    /// Checks that tasks are for devices that are there, and host functions for devices that run
    /// them.
    fn check(&self, graph: &TaskGraph) -> Result<(), EngineError> {
        let devices = self.lanes.all.len();
        if let Some(task) = graph.tasks.iter().find(|t| t.device >= devices) {
            let (task, device) = (task.name.clone(), task.device);
            return Err(EngineError::NoDevice { task, device, devices });
        }
        let refused = |t: &&Task| t.is_host() && !self.lanes.all[t.device].host;
        match graph.tasks.iter().find(refused).filter(|_| graph.host) {
            None => Ok(()),
            Some(task) => {
                let device = &self.lanes.all[task.device].name;
                let why =
                    format!("device {device} runs no functions of the host; use a CPU device");
                Err(DeviceError::Submission { task: task.name.to_string(), why }.into())
            }
        }
    }

    /// Hands over what it can and waits for the next finished list. Returns a graph that has ended,
    /// if any.
    fn advance(&mut self) -> Option<Ended> {
        if let Some(done) = self.take_ended() {
            return Some(done);
        }
        let here = self.dispatch();
        if here.is_none() && self.lanes.idle() {
            // No report will come: the remaining tasks wait for something that never happens.
            for &index in &self.active {
                let job = &mut self.jobs[index];
                if !job.is_handed_over() {
                    job.fail(EngineError::Stuck(job.state.left()));
                }
            }
            return self.take_ended();
        }
        match here.map_or_else(|| self.lanes.hear(), Ok) {
            Ok(completion) => self.complete(completion),
            Err(LostLists::Of(lane)) => self.lost(lane),
            Err(LostLists::All) => (0..self.lanes.all.len()).for_each(|lane| self.lost(lane)),
        }
        self.take_ended()
    }

    /// Removes a graph that has ended. The end of one that became known by another graph's list is
    /// the end of this list.
    fn take_ended(&mut self) -> Option<Ended> {
        loop {
            let done = |index: &usize| {
                let job = &self.jobs[*index];
                job.is_handed_over() && !job.is_in_flight()
            };
            let index = self.active.remove(self.active.iter().position(done)?);
            let result = self.jobs[index].end();
            let Some((whole, list)) = self.jobs[index].part_of.take() else {
                return Some((JobId(index), result));
            };
            let whole = &mut self.jobs[whole];
            whole.grown -= 1;
            match (result, &whole.running) {
                (Err(e), _) => whole.fail(e),
                (Ok(()), Some(graph)) => whole.state.complete(&graph.schedule.dag, list),
                (Ok(()), None) => {}
            }
        }
    }

    /// Hands over what queues have room for, foreground graphs first. Returns the completion if a
    /// list ran on this thread.
    fn dispatch(&mut self) -> Option<Completion> {
        for background in [false, true] {
            for at in 0..self.active.len() {
                let index = self.active[at];
                if let Some((whole, _)) = self.jobs[index].part_of
                    && self.jobs[whole].failure.is_some()
                {
                    self.jobs[index].fail(DeviceError::Skipped.into());
                }
                let job = &self.jobs[index];
                if job.background != background || job.is_handed_over() {
                    continue;
                }
                if job.in_order {
                    self.hand_over_all(index);
                } else if let Some(completion) = self.hand_over_ready(index) {
                    return Some(completion);
                }
            }
        }
        None
    }

    /// Gives all queues all their lists once every queue has room. Lists of one graph wait for each
    /// other, so they are queued together or not at all.
    fn hand_over_all(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        let Some(graph) = job.running.take() else { return };
        if let Some(order) = &graph.schedule.order
            && order
                .devices
                .iter()
                .zip(&self.lanes.all)
                .all(|(d, l)| d.tasks.is_empty() || l.has_room())
        {
            job.submitted = true;
            let base = job.reached;
            job.reached += order.values();
            for (lane, device) in order.devices.iter().enumerate() {
                if device.tasks.is_empty() {
                    continue;
                }
                let job = &self.jobs[index];
                if job.failure.is_some() {
                    // Release the queues that wait for this list.
                    job.lose(lane);
                    continue;
                }
                let spare = self.lanes.all[lane].spare.pop();
                let mut list = self.fill(spare, &graph, &device.tasks, index);
                list.id = list_id(index, 0);
                add_waits(&mut list, device, base);
                self.submit(index, lane, list);
            }
        }
        self.jobs[index].running = Some(graph);
    }

    fn submit(&mut self, index: usize, lane: usize, list: CommandList) {
        let job = &mut self.jobs[index];
        match self.lanes.all[lane].queue.submit(list) {
            Ok(()) => {
                self.lanes.all[lane].in_flight += 1;
                job.in_flight[lane] += 1;
            }
            Err(e) => {
                job.lose(lane);
                job.fail(e.into());
            }
        }
    }

    /// Gives every queue with room the graph's next tasks. If all tasks are of one device and
    /// nothing else runs, this thread would only wait: it runs them itself if it can, and returns
    /// the completion.
    fn hand_over_ready(&mut self, index: usize) -> Option<Completion> {
        let graph = self.jobs[index].running.take()?;
        // Host functions never run on this thread.
        let alone =
            graph.schedule.dag.only_device().is_some() && !graph.host && self.active.len() == 1;
        let mut here = None;
        'lanes: for lane in 0..self.lanes.all.len() {
            while self.lanes.all[lane].has_room() {
                let job = &mut self.jobs[index];
                if job.failure.is_some() {
                    break 'lanes;
                }
                if job.background && job.in_flight[lane] >= LATE_DEPTH {
                    break;
                }
                let Some(id) = job.state.take(&graph.schedule.dag, &job.costs, lane) else { break };
                let spare = self.lanes.all[lane].spare.pop();
                let mut list = self.fill(spare, &graph, self.jobs[index].state.tasks(id), index);
                list.id = list_id(index, id);
                if alone && self.lanes.all[lane].in_flight == 0 {
                    match self.lanes.all[lane].queue.run_here(list) {
                        Ok(completion) => {
                            self.lanes.all[lane].in_flight += 1;
                            self.jobs[index].in_flight[lane] += 1;
                            here = Some(completion);
                            break 'lanes;
                        }
                        Err(back) => list = back,
                    }
                }
                self.submit(index, lane, list);
            }
        }
        self.jobs[index].running = Some(graph);
        here
    }

    /// Fills a reused command list with tasks.
    fn fill(
        &self,
        spare: Option<CommandList>,
        graph: &TaskGraph,
        tasks: &[u32],
        job: usize,
    ) -> CommandList {
        let mut list = spare.unwrap_or_default();
        let submission =
            |&tag: &u32| Submission { tag, work: graph.tasks[tag as usize].work.clone() };
        list.tasks.extend(tasks.iter().map(submission));
        list.timed = self.tracer.enabled() || self.policy == Policy::OutOfOrder;
        list.waiting = self.waiting;
        // Whoever cancels a graph cancels what became known by it.
        let mut first = job;
        while let Some((whole, _)) = self.jobs[first].part_of {
            first = whole;
        }
        list.timelines = Some(self.jobs[first].timelines.clone());
        list
    }

    /// Handles a list that is done or has failed.
    fn complete(&mut self, completion: Completion) {
        let (lane, id) = (completion.queue, completion.list.id);
        let (index, id) = ((id >> 32) as usize, (id & u64::from(u32::MAX)) as usize);
        self.lanes.all[lane].in_flight -= 1;
        let Some(graph) = self.jobs[index].running.clone() else { return };
        self.jobs[index].in_flight[lane] -= 1;
        for t in &completion.times {
            self.note(&graph, lane, t);
        }
        let list = CommandList { times: completion.times, ..completion.list };
        self.lanes.all[lane].spare.push(list);
        match completion.outcome {
            Err(e) => self.jobs[index].fail(e.into()),
            Ok(()) if !self.jobs[index].in_order => self.complete_list(index, &graph, id),
            Ok(()) => {}
        }
    }

    /// Notes a list that is done, or starts what became known by its last task.
    fn complete_list(&mut self, index: usize, graph: &TaskGraph, list: ListId) {
        let job = &mut self.jobs[index];
        let last = job.state.tasks(list).last().copied();
        let Some(task) = last.filter(|task| graph.schedule.dag.grows[*task as usize]) else {
            return job.state.complete(&graph.schedule.dag, list);
        };
        if job.failure.is_some() {
            return;
        }
        let result = match &graph.tasks[task as usize].work {
            Work::Host(host) => host.take_result(),
            _ => None,
        };
        let background = job.background;
        let grown = graph.growth.as_ref().map(|growth| {
            let grown = growth(task, result)?;
            self.check(&grown)?;
            graph.check_grown(task, &grown)?;
            Ok(grown)
        });
        match grown {
            Some(Ok(grown)) => {
                self.jobs[index].grown += 1;
                self.begin(grown, background, Some((index, list)));
            }
            Some(Err(e)) => self.jobs[index].fail(e),
            None => self.jobs[index].state.complete(&graph.schedule.dag, list),
        }
    }

    /// Handles a queue that will not report its lists in flight.
    fn lost(&mut self, lane: usize) {
        self.lanes.all[lane].in_flight = 0;
        let name = self.lanes.all[lane].name.to_string();
        for job in self.jobs.iter_mut().filter(|j| j.in_flight[lane] > 0) {
            job.in_flight[lane] = 0;
            job.lose(lane);
            job.fail(DeviceError::Gone(name.clone()).into());
        }
    }

    /// Learns a task's cost and records its span.
    fn note(&mut self, graph: &TaskGraph, lane: usize, t: &TaskTime) {
        let task = &graph.tasks[t.tag as usize];
        if let Some(key) = cost_key(task).filter(|_| self.policy == Policy::OutOfOrder) {
            let took = (t.end - t.start).as_nanos() as u64;
            let known = self.learnt.entry(key).or_insert(took);
            // A moving average that follows changes of load within about ten runs.
            *known = (*known * 7 + took) / 8;
        }
        if !self.tracer.enabled() {
            return;
        }
        let (what, amount) = match &task.work {
            Work::Run(run) => ("rows", run.rows as u64),
            Work::Copy(copy) => ("rows", copy.to.rect().rows() as u64),
            Work::Host(_) => ("rows", task.rows.len() as u64),
        };
        self.tracer.record(Span {
            name: task.name.to_string().into(),
            lane: self.lanes.all[lane].name.clone(),
            start: t.start,
            end: t.end,
            args: [("chunk", Arg::Int(task.chunk.into())), (what, Arg::Int(amount))]
                .into_iter()
                .chain(t.modelled.map(|m| ("modelled_us", Arg::Int(m.as_micros() as u64))))
                .collect(),
        });
    }
}

/// The id of a list: its job's number and its own.
fn list_id(job: usize, list: usize) -> u64 {
    (job as u64) << 32 | list as u64
}

/// Adds a list's waits and signals for a fixed order, on top of the timelines' values so far.
fn add_waits(list: &mut CommandList, order: &DeviceOrder, base: u64) {
    list.waits.extend(order.waits.iter().map(|wait| {
        let on = Point { queue: wait.device as u32, value: base + wait.done };
        Wait { task: wait.place, on }
    }));
    let signal = |done: &u64| Signal { task: (done - 1) as u32, value: base + done };
    list.signals.extend(order.signals.iter().map(signal));
}
