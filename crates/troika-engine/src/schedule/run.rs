//! The loop that keeps device queues fed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, Point, Signal, Submission,
    TaskTime, Timelines, Wait, Waiting, Work,
};
use troika_plan::Policy;
use troika_trace::{Arg, Span, Tracer};

use super::job::{GraphJob, Grower, JobId, Running};
use super::lane::{LATE_DEPTH, Lanes, LostLists};
use super::measure::{Kept, Measure};
use super::order::DeviceOrder;
use super::{GrowingGraph, Order, Task, TaskGraph};
use crate::error::{EngineError, GrowError};

/// Runs task graphs on device queues, several at once: graphs that run at the same time have
/// nothing to do with each other, but that they share the queues.
pub struct Runner {
    lanes: Lanes,
    jobs: Vec<GraphJob>,
    /// Those that are running, in the order in which they were begun.
    active: Vec<usize>,
    /// Graphs at their end that nobody has asked for yet.
    ended: VecDeque<Ended>,
    waiting: Waiting,
    policy: Policy,
    critical: usize,
    tracer: Tracer,
    learnt: HashMap<CostKey, u64>,
}

/// A graph that is at its end, and how it went.
pub type Ended = (JobId, Result<(), EngineError>);

/// What there is to say after waiting for graphs.
pub enum Waited {
    /// One is at its end.
    Ended(Ended),
    /// None is running.
    Idle,
    /// They go on, but something else is to be done.
    Interrupted,
}

/// Tasks that cost the same: device, executable and rows.
type CostKey = (usize, ExecutableId, usize);

/// `None` for all but runs.
fn cost_key(task: &Task) -> Option<CostKey> {
    match &task.work {
        Work::Run(run) => Some((task.device, run.weights.executable().id(), run.rows)),
        _ => None,
    }
}

/// Ends a graph that a [`Runner`] runs, from any thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Timelines>);

impl Canceller {
    /// The graph that is running, or else the next one in its place, ends with
    /// [`DeviceError::Cancelled`]: tasks that have not begun are left out.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Takes a cancellation back that came when nothing was running any more.
    pub fn reset(&self) {
        self.0.take_cancelled();
    }
}

impl Runner {
    /// Opens a queue on each device. Where the policy asks which device must not stall, that is
    /// `critical`.
    ///
    /// # Errors
    /// What a device reports.
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

    /// How queues wait for each other.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// What ends the graph that runs alone from another thread.
    pub fn canceller(&self) -> Canceller {
        self.canceller_of(JobId(0))
    }

    /// What ends a graph from another thread.
    pub fn canceller_of(&self, job: JobId) -> Canceller {
        Canceller(self.jobs[job.0].timelines.clone())
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device; nothing of it is in flight any more when it is returned.
    pub fn run(&mut self, graph: &Arc<TaskGraph>) -> Result<(), EngineError> {
        let job = self.start(graph.clone(), false)?;
        self.finish(job, None)
    }

    /// Goes on until a graph is at its end.
    fn finish(&mut self, job: JobId, mut grow: Option<&mut Grower<'_>>) -> Result<(), EngineError> {
        loop {
            match self.advance(grow.as_deref_mut()) {
                Some((done, result)) if done == job => return result,
                other => self.ended.extend(other),
            }
        }
    }

    /// Begins a graph; it goes on whenever [`Runner::wait`] is called. One in the background lets
    /// others go first, and its tasks are not queued long before they run.
    ///
    /// # Errors
    /// Functions of the host for a device that runs none.
    pub fn start(&mut self, graph: Arc<TaskGraph>, background: bool) -> Result<JobId, EngineError> {
        self.check_host(&graph, 0)?;
        Ok(self.begin(Running::Fixed(graph), background))
    }

    /// As [`Runner::start`], for a graph of which it is to be known how long each device had
    /// something to do: [`Runner::kept`].
    ///
    /// # Errors
    /// As for [`Runner::start`].
    pub fn start_measured(
        &mut self,
        graph: Arc<TaskGraph>,
        background: bool,
    ) -> Result<JobId, EngineError> {
        let tasks = graph.len();
        let job = self.start(graph, background)?;
        self.jobs[job.0].measure = Some(Measure::new(self.now(), tasks));
        Ok(job)
    }

    /// How long devices had something to do of a graph that was measured, once it has ended without
    /// a failure and until another one begins in its place.
    pub fn kept(&self, job: JobId) -> &[Kept] {
        self.jobs[job.0].measure.as_ref().map_or(&[], |m| &m.kept)
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.lanes.now()
    }

    /// Waits until one of the graphs that were begun is at its end, and says which, and how it
    /// went: the first failure of a device, when nothing of it is in flight any more. `None` when
    /// there are none.
    pub fn wait(&mut self) -> Option<Ended> {
        match self.wait_unless(|| false) {
            Waited::Ended(ended) => Some(ended),
            Waited::Idle | Waited::Interrupted => None,
        }
    }

    /// As [`Runner::wait`], but whenever a list is done, `interrupted` may say that there is
    /// something else to do.
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

    /// Chunks of a graph of which not all tasks ran, once it has ended with a failure and until
    /// another one begins in its place.
    pub fn left_out(&self, job: JobId) -> &[u32] {
        &self.jobs[job.0].left_out
    }

    /// Runs a graph that grows to its end: whenever a task with a growth is done, `grow` adds what
    /// it has made known.
    ///
    /// # Errors
    /// The first failure of a device or of `grow`; nothing is in flight any more when it is
    /// returned. A task for a device that there is not.
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
        let in_order = fixed && running.graph().order.as_ref().is_some_and(waits);
        // A number is used again only when it was said that the graph before is at its end.
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

    /// Functions of the host, of the tasks from one on, are for devices that run them.
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

    /// Hands over what can be, and waits for the next list that is done. Returns a graph that is at
    /// its end, if one is.
    fn advance(&mut self, grow: Option<&mut Grower<'_>>) -> Option<Ended> {
        if let Some(done) = self.take_ended() {
            return Some(done);
        }
        let here = self.dispatch();
        if here.is_none() && self.lanes.idle() {
            // Nothing will be reported: what is left waits for what is not there.
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

    /// Takes a graph out that is at its end.
    fn take_ended(&mut self) -> Option<Ended> {
        let done = |index: &usize| {
            let job = &self.jobs[*index];
            job.is_handed_over() && !job.is_in_flight()
        };
        let index = self.active.remove(self.active.iter().position(done)?);
        Some((JobId(index), self.jobs[index].end()))
    }

    /// Hands over what queues have room for: first of graphs in the foreground, then of the others.
    /// If a list ran on this thread, its completion.
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

    /// Gives all queues all that they have to do, once all of them have room: lists of one graph
    /// wait for each other, so that they are queued together or not at all.
    fn hand_over_all(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        let Some(running) = job.running.take() else { return };
        let graph = running.graph();
        if let Some(order) = &graph.order
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
                    // Those that wait for what is not handed over are not left waiting.
                    job.lose(lane);
                    continue;
                }
                let spare = self.lanes.all[lane].spare.pop();
                let mut list = self.fill(spare, (graph, &device.tasks), index);
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

    /// Gives every queue with room the graph's next tasks. Where all tasks are of one device and
    /// nothing else runs, this thread has nothing to do but wait: it runs them itself where it can,
    /// and returns the completion.
    fn hand_over_ready(&mut self, index: usize) -> Option<Completion> {
        let running = self.jobs[index].running.take()?;
        let graph = running.graph();
        // Functions of the host never run on this thread.
        let alone = graph.dag.only_device().is_some() && !graph.host && self.active.len() == 1;
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
                let Some(id) = job.state.take(&graph.dag, &job.costs, lane) else { break };
                let spare = self.lanes.all[lane].spare.pop();
                let mut list = self.fill(spare, (graph, self.jobs[index].state.tasks(id)), index);
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

    /// A list of tasks, made of one that was used before.
    fn fill(
        &self,
        spare: Option<CommandList>,
        (graph, tasks): (&TaskGraph, &[u32]),
        job: usize,
    ) -> CommandList {
        let mut list = spare.unwrap_or_default();
        let submission =
            |&tag: &u32| Submission { tag, work: graph.tasks[tag as usize].work.clone() };
        list.tasks.extend(tasks.iter().map(submission));
        let measured = self.jobs[job].measure.is_some();
        list.timed = measured || self.tracer.enabled() || self.policy == Policy::OutOfOrder;
        list.waiting = self.waiting;
        list.timelines = Some(self.jobs[job].timelines.clone());
        list
    }

    /// A list is done, or has failed.
    fn complete(&mut self, completion: Completion, grow: Option<&mut Grower<'_>>) {
        let (lane, id) = (completion.queue, completion.list.id);
        let (index, id) = ((id >> 32) as usize, (id & u64::from(u32::MAX)) as usize);
        self.lanes.all[lane].in_flight -= 1;
        let Some(mut running) = self.jobs[index].running.take() else { return };
        self.jobs[index].in_flight[lane] -= 1;
        for t in &completion.times {
            self.note(running.graph(), lane, t);
            if let Some(measure) = &mut self.jobs[index].measure {
                measure.ended(t.tag, t.end);
            }
        }
        let list = CommandList { times: completion.times, ..completion.list };
        self.lanes.all[lane].spare.push(list);
        let job = &mut self.jobs[index];
        match completion.outcome {
            Err(e) => job.fail(e.into()),
            Ok(()) if !job.in_order => {
                let growth = running.growth(job.state.tasks(id));
                job.state.complete(&running.graph().dag, id);
                if let Some((growth, grow)) = growth.zip(grow).filter(|_| job.failure.is_none()) {
                    let from = running.graph().len();
                    let grown = running.grow(growth, &mut job.state, grow);
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

    /// What the tasks of a graph cost that have no cost yet, where the policy looks at it.
    fn price(&mut self, index: usize) {
        if self.policy != Policy::OutOfOrder {
            return;
        }
        let job = &mut self.jobs[index];
        // Where the order is fixed, nobody asks what tasks cost.
        let Some(running) = job.running.as_ref().filter(|_| !job.in_order) else { return };
        let costs = &mut job.costs.task_ns;
        let known = |key| self.learnt.get(&key).copied();
        let cost = |t: &Task| cost_key(t).and_then(known).unwrap_or(0);
        let priced = costs.len();
        costs.extend(running.graph().tasks[priced..].iter().map(cost));
    }

    /// What a queue has in flight will not be reported.
    fn lost(&mut self, lane: usize) {
        self.lanes.all[lane].in_flight = 0;
        let name = self.lanes.all[lane].name.to_string();
        for job in self.jobs.iter_mut().filter(|j| j.in_flight[lane] > 0) {
            job.in_flight[lane] = 0;
            job.lose(lane);
            job.fail(DeviceError::Gone(name.clone()).into());
        }
    }

    /// Learns what a task costs, and records its span.
    fn note(&mut self, graph: &TaskGraph, lane: usize, t: &TaskTime) {
        let task = &graph.tasks[t.tag as usize];
        if let Some(key) = cost_key(task).filter(|_| self.policy == Policy::OutOfOrder) {
            let took = (t.end - t.start).as_nanos() as u64;
            let known = self.learnt.entry(key).or_insert(took);
            // An average that follows changes of load within some ten runs.
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

/// The name of a list: its job's number and its own.
fn list_id(job: usize, list: usize) -> u64 {
    (job as u64) << 32 | list as u64
}

/// What a list of a fixed order waits for and signals, with the timelines' values so far.
fn add_waits(list: &mut CommandList, order: &DeviceOrder, base: u64) {
    list.waits.extend(order.waits.iter().map(|&(task, other, done)| {
        let on = Point { queue: other as u32, value: base + done };
        Wait { task, on }
    }));
    let signal = |done: &u64| Signal { task: (done - 1) as u32, value: base + done };
    list.signals.extend(order.signals.iter().map(signal));
}
