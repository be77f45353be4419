//! The loop that keeps device queues fed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, Point, Signal, Submission,
    TaskTime, Timelines, Wait, Waiting, Work,
};
use troika_plan::Policy;
use troika_program::schedule::{DeviceOrder, LATE_DEPTH, Order};
use troika_trace::{Arg, Span, Tracer};

use super::job::{GraphJob, Grower, JobId, Running};
use super::lane::{Lanes, LostLists};
use super::{GrowingGraph, Task, TaskGraph};
use crate::error::{EngineError, GrowError};

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

    /// Cancels, from another thread, a graph that runs alone.
    pub fn canceller(&self) -> Canceller {
        self.canceller_of(JobId(0))
    }

    /// Cancels a graph from another thread.
    pub fn canceller_of(&self, job: JobId) -> Canceller {
        Canceller(self.jobs[job.0].timelines.clone())
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device. Nothing of the graph is in flight then.
    pub fn run(&mut self, graph: &Arc<TaskGraph>) -> Result<(), EngineError> {
        let job = self.start(graph.clone(), false)?;
        self.finish(job, None)
    }

    /// Runs until a graph has ended.
    fn finish(&mut self, job: JobId, mut grow: Option<&mut Grower<'_>>) -> Result<(), EngineError> {
        loop {
            match self.advance(grow.as_deref_mut()) {
                Some((done, result)) if done == job => return result,
                other => self.ended.extend(other),
            }
        }
    }

    /// Starts a graph, which proceeds during [`Runner::wait`]. A graph in the background lets
    /// others go first; its tasks are queued shortly before they run.
    ///
    /// # Errors
    /// A host function for a device that runs none.
    pub fn start(&mut self, graph: Arc<TaskGraph>, background: bool) -> Result<JobId, EngineError> {
        self.check_host(&graph, 0)?;
        Ok(self.begin(Running::Fixed(graph), background))
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
            ended = self.advance(None);
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

    /// Runs a growing graph to its end: whenever a task with a growth is done, `grow` adds the new
    /// tasks.
    ///
    /// # Errors
    /// The first failure of a device or of `grow`, when nothing is in flight any more. A task for a
    /// device index out of range.
    pub fn run_growing(
        &mut self,
        graph: GrowingGraph,
        grow: &mut Grower<'_>,
    ) -> Result<(), EngineError> {
        let devices = self.lanes.all.len();
        if let Some(task) = graph.graph.tasks.iter().find(|t| t.device >= devices) {
            let (task, device) = (task.name.clone(), task.device);
            return Err(GrowError::Device { task, device, devices }.into());
        }
        self.check_host(&graph.graph, 0)?;
        let job = self.begin(Running::Growing(Box::new(graph)), false);
        self.finish(job, Some(grow))
    }

    fn begin(&mut self, running: Running, background: bool) -> JobId {
        let waits = |order: &Order| {
            let mut used = order.devices.iter().zip(&self.lanes.all);
            used.all(|(d, lane)| d.tasks.is_empty() || lane.waits)
        };
        let fixed = matches!(running, Running::Fixed(_));
        let in_order = fixed && running.graph().schedule.order.as_ref().is_some_and(waits);
        // A number is reused only after the end of its previous graph was reported.
        let free = |&index: &usize| {
            let told = self.ended.iter().all(|(job, _)| job.0 != index);
            told && self.jobs[index].running.is_none()
        };
        let index = (0..self.jobs.len()).find(free).unwrap_or_else(|| {
            self.jobs.push(GraphJob::new(self.policy, self.critical, self.lanes.all.len()));
            self.jobs.len() - 1
        });
        self.jobs[index].begin(running, in_order, background);
        self.price(index);
        self.active.push(index);
        JobId(index)
    }

    /// Checks that host functions, from task `from` on, are for devices that run them.
    fn check_host(&self, graph: &TaskGraph, from: usize) -> Result<(), DeviceError> {
        if !graph.host {
            return Ok(());
        }
        let refused = |t: &&Task| t.is_host() && !self.lanes.all[t.device].host;
        match graph.tasks[from..].iter().find(refused) {
            None => Ok(()),
            Some(task) => {
                let device = &self.lanes.all[task.device].name;
                let why =
                    format!("device {device} runs no functions of the host; use a CPU device");
                Err(DeviceError::Submission { task: task.name.to_string(), why })
            }
        }
    }

    /// Hands over what it can and waits for the next finished list. Returns a graph that has ended,
    /// if any.
    fn advance(&mut self, grow: Option<&mut Grower<'_>>) -> Option<Ended> {
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
            Ok(completion) => self.complete(completion, grow),
            Err(LostLists::Of(lane)) => self.lost(lane),
            Err(LostLists::All) => (0..self.lanes.all.len()).for_each(|lane| self.lost(lane)),
        }
        self.take_ended()
    }

    /// Removes a graph that has ended.
    fn take_ended(&mut self) -> Option<Ended> {
        let done = |index: &usize| {
            let job = &self.jobs[*index];
            job.is_handed_over() && !job.is_in_flight()
        };
        let index = self.active.remove(self.active.iter().position(done)?);
        Some((JobId(index), self.jobs[index].end()))
    }

    /// Hands over what queues have room for, foreground graphs first. Returns the completion if a
    /// list ran on this thread.
    fn dispatch(&mut self) -> Option<Completion> {
        for background in [false, true] {
            for at in 0..self.active.len() {
                let index = self.active[at];
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
        let Some(running) = job.running.take() else { return };
        let graph = running.graph();
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
                let mut list = self.fill(spare, graph, &device.tasks, index);
                list.id = list_id(index, 0);
                add_waits(&mut list, device, base);
                self.submit(index, lane, list);
            }
        }
        self.jobs[index].running = Some(running);
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
        let running = self.jobs[index].running.take()?;
        let graph = running.graph();
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
                let mut list = self.fill(spare, graph, self.jobs[index].state.tasks(id), index);
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
        self.jobs[index].running = Some(running);
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
        list.timelines = Some(self.jobs[job].timelines.clone());
        list
    }

    /// Handles a list that is done or has failed.
    fn complete(&mut self, completion: Completion, grow: Option<&mut Grower<'_>>) {
        let (lane, id) = (completion.queue, completion.list.id);
        let (index, id) = ((id >> 32) as usize, (id & u64::from(u32::MAX)) as usize);
        self.lanes.all[lane].in_flight -= 1;
        let Some(mut running) = self.jobs[index].running.take() else { return };
        self.jobs[index].in_flight[lane] -= 1;
        for t in &completion.times {
            self.note(running.graph(), lane, t);
        }
        let list = CommandList { times: completion.times, ..completion.list };
        self.lanes.all[lane].spare.push(list);
        let job = &mut self.jobs[index];
        match completion.outcome {
            Err(e) => job.fail(e.into()),
            Ok(()) if !job.in_order => {
                let growth = running.growth(job.state.tasks(id));
                job.state.complete(&running.graph().schedule.dag, id);
                if let Some((growth, grow)) = growth.zip(grow).filter(|_| job.failure.is_none()) {
                    let from = running.graph().len();
                    let (task, number) = growth;
                    let grown = running.grow(task, number, &mut job.state, grow);
                    let checked = grown.and_then(|()| Ok(self.check_host(running.graph(), from)?));
                    if let Err(e) = checked {
                        self.jobs[index].fail(e);
                    }
                }
            }
            Ok(()) => {}
        }
        self.jobs[index].running = Some(running);
        self.price(index);
    }

    /// Estimates the costs of a graph's tasks, if the policy uses them.
    fn price(&mut self, index: usize) {
        if self.policy != Policy::OutOfOrder {
            return;
        }
        let job = &mut self.jobs[index];
        // With a fixed order, costs are not used.
        let Some(running) = job.running.as_ref().filter(|_| !job.in_order) else { return };
        let costs = &mut job.costs.task_ns;
        let known = |key| self.learnt.get(&key).copied();
        let cost = |t: &Task| cost_key(t).and_then(known).unwrap_or(0);
        let priced = costs.len();
        costs.extend(running.graph().tasks[priced..].iter().map(cost));
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
            Work::Load(load) => ("bytes", load.bytes()),
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
