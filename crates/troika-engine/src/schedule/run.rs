//! The loop that keeps device queues fed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, Point, Queue, Signal,
    Submission, TaskTime, Timelines, Wait, Waiting, Work,
};
use troika_plan::Policy;
use troika_trace::{Arg, Span, Tracer};

use super::order::DeviceOrder;
use super::{Additions, Costs, GrowingGraph, Grown, Order, State, Task, TaskGraph};
use crate::error::{EngineError, GrowError};

/// A device's queue as the scheduler sees it.
struct Lane {
    name: Arc<str>,
    queue: Box<dyn Queue>,
    depth: usize,
    /// Whether the queue waits for others by itself.
    waits: bool,
    /// Whether it runs functions of the host.
    host: bool,
    in_flight: usize,
    /// Emptied lists, for reuse.
    spare: Vec<CommandList>,
}

/// Lists in a queue at most where the policy decides late: one runs, the next one waits, so that
/// the device does not idle while the scheduler is told.
pub(super) const LATE_DEPTH: usize = 2;

/// Most lists in a queue, whatever a device says.
const MOST_DEPTH: usize = 1024;

/// When nothing was reported for so long, queues with lists in flight are looked at whether they are
/// alive.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs task graphs on device queues.
pub struct Runner {
    lanes: Vec<Lane>,
    done: Receiver<Completion>,
    timelines: Arc<Timelines>,
    /// What the timelines had reached at most when all before was done.
    reached: u64,
    waiting: Waiting,
    state: State,
    policy: Policy,
    tracer: Tracer,
    costs: Costs,
    learnt: HashMap<CostKey, u64>,
    clock: Arc<dyn Clock>,
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

/// Adds the tasks that a task which is done has made known.
pub type Grower<'a> = dyn FnMut(Grown, &mut Additions<'_>) -> Result<(), EngineError> + 'a;

/// What is run: a graph, or one that grows.
enum Running<'a> {
    Fixed(&'a TaskGraph),
    Growing(&'a mut GrowingGraph, &'a mut Grower<'a>),
}

impl Running<'_> {
    fn graph(&self) -> &TaskGraph {
        match self {
            Running::Fixed(graph) => graph,
            Running::Growing(growing, _) => &growing.graph,
        }
    }

    /// The growth that a list's end makes known. A list ends with the first task that has one.
    fn growth(&self, tasks: &[u32]) -> Option<(u32, u32)> {
        match self {
            Running::Fixed(_) => None,
            Running::Growing(growing, _) => {
                let last = *tasks.last()?;
                Some((last, growing.growth_of(last)?))
            }
        }
    }

    fn grow(&mut self, (task, growth): (u32, u32), state: &mut State) -> Result<(), EngineError> {
        let Running::Growing(growing, grower) = self else { return Ok(()) };
        let grown = growing.grown(task);
        let mut additions = Additions::new(growing, state, growth);
        grower(grown, &mut additions)?;
        additions.close();
        Ok(())
    }
}

/// Ends what a [`Runner`] does, from any thread.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Timelines>);

impl Canceller {
    /// The run that is going on, or else the next one, ends with [`DeviceError::Cancelled`]: tasks
    /// that have not begun are left out.
    pub fn cancel(&self) {
        self.0.cancel();
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
        let most = if policy == Policy::OutOfOrder { LATE_DEPTH } else { MOST_DEPTH };
        let depth = |d: &Arc<dyn Device>| d.caps().queue_depth.clamp(1, most);
        // Of each queue also the answer to a question.
        let (sender, done) = sync_channel(devices.iter().map(|d| depth(d) + 1).sum());
        let lanes: Vec<Lane> = devices
            .iter()
            .enumerate()
            .map(|(i, d)| {
                Ok(Lane {
                    name: d.name().into(),
                    queue: d.queue(i, clock.clone(), sender.clone())?,
                    depth: depth(d),
                    waits: d.caps().queue_waits,
                    host: d.caps().host_tasks,
                    in_flight: 0,
                    spare: Vec::new(),
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        let state = State::new(policy, lanes.len());
        let costs = Costs { task_ns: Vec::new(), critical };
        Ok(Runner {
            timelines: Arc::new(Timelines::new(lanes.len())),
            lanes,
            done,
            reached: 0,
            waiting: Waiting::default(),
            state,
            policy,
            tracer,
            costs,
            learnt: HashMap::new(),
            clock: clock.clone(),
        })
    }

    /// How queues wait for each other.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// What ends a run from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.timelines.clone())
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device; nothing is in flight any more when it is returned.
    pub fn run(&mut self, graph: &TaskGraph) -> Result<(), EngineError> {
        self.check_host(graph, 0)?;
        let waits = |order: &Order| {
            let mut used = order.devices.iter().zip(&self.lanes);
            used.all(|(d, lane)| d.tasks.is_empty() || lane.waits)
        };
        let result = match graph.order.as_ref().filter(|order| waits(order)) {
            Some(order) => self.run_in_order(graph, order),
            None => self.run_ready(Running::Fixed(graph)),
        };
        self.end(result)
    }

    /// Runs a graph that grows to its end: whenever a task with a growth is done, `grow` adds what
    /// it has made known.
    ///
    /// # Errors
    /// The first failure of a device or of `grow`; nothing is in flight any more when it is
    /// returned. A task for a device that there is not.
    pub fn run_growing(
        &mut self,
        mut graph: GrowingGraph,
        grow: &mut Grower<'_>,
    ) -> Result<(), EngineError> {
        let devices = self.lanes.len();
        if let Some(task) = graph.graph.tasks.iter().find(|t| t.device >= devices) {
            let (task, device) = (task.name.clone(), task.device);
            return Err(GrowError::Device { task, device, devices }.into());
        }
        self.check_host(&graph.graph, 0)?;
        let result = self.run_ready(Running::Growing(&mut graph, grow));
        self.end(result)
    }

    /// Functions of the host, of the tasks from one on, are for devices that run them.
    fn check_host(&self, graph: &TaskGraph, from: usize) -> Result<(), DeviceError> {
        if !graph.host {
            return Ok(());
        }
        let refused = |t: &&Task| t.is_host() && !self.lanes[t.device].host;
        match graph.tasks[from..].iter().find(refused) {
            None => Ok(()),
            Some(task) => {
                let device = &self.lanes[task.device].name;
                let why =
                    format!("device {device} runs no functions of the host; use a CPU device");
                Err(DeviceError::Submission { task: task.name.to_string(), why })
            }
        }
    }

    /// Leaves the queues so that the next run can begin.
    fn end(&mut self, result: Result<(), EngineError>) -> Result<(), EngineError> {
        if result.is_err() {
            // Nothing is in flight: the next run starts with queues that may go on.
            self.timelines.reset();
        }
        if matches!(result, Err(EngineError::Device(DeviceError::Cancelled))) {
            self.timelines.take_cancelled();
        }
        result
    }

    /// Gives all queues all that they have to do, and waits until it is done.
    fn run_in_order(&mut self, graph: &TaskGraph, order: &Order) -> Result<(), EngineError> {
        let mut failure: Option<EngineError> = None;
        let base = self.reached;
        self.reached += order.values();
        for (index, device) in order.devices.iter().enumerate() {
            if device.tasks.is_empty() {
                continue;
            }
            if failure.is_some() {
                // Those that wait for what is not handed over are not left waiting.
                self.lose(index);
                continue;
            }
            let spare = self.lanes[index].spare.pop();
            let mut list = self.fill(spare, (graph, &device.tasks));
            add_waits(&mut list, device, base);
            match self.lanes[index].queue.submit(list) {
                Ok(()) => self.lanes[index].in_flight += 1,
                Err(e) => {
                    self.lose(index);
                    failure = Some(e.into());
                }
            }
        }
        while self.lanes.iter().any(|l| l.in_flight > 0) {
            if let Err(e) = self.wait(graph, None) {
                failure = first(failure, e.into());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// What a queue was to signal will not happen.
    fn lose(&self, lane: usize) {
        if let Some(timeline) = self.timelines.of(lane) {
            timeline.lose();
        }
    }

    /// Gives queues what is ready, as it becomes so.
    fn run_ready(&mut self, mut running: Running<'_>) -> Result<(), EngineError> {
        self.state.start(&running.graph().dag);
        self.costs.task_ns.clear();
        self.price(running.graph());
        let mut failure = None;
        while self.state.left() > 0 {
            let graph = running.graph();
            let mut done = None;
            if failure.is_none() {
                match self.dispatch(graph) {
                    Ok(completion) => done = completion,
                    Err(e) => failure = Some(e.into()),
                }
            }
            if self.lanes.iter().all(|l| l.in_flight == 0) {
                let stuck = EngineError::Stuck(self.state.left());
                return Err(failure.unwrap_or(stuck));
            }
            let grown = match self.wait(graph, done) {
                Ok(list) => {
                    let growth = running.growth(self.state.tasks(list));
                    self.state.complete(&running.graph().dag, list);
                    growth.filter(|_| failure.is_none())
                }
                Err(e) => {
                    failure = first(failure, e.into());
                    None
                }
            };
            if let Some(growth) = grown {
                let from = running.graph().len();
                let grown = running.grow(growth, &mut self.state);
                self.price(running.graph());
                let checked = grown.and_then(|()| Ok(self.check_host(running.graph(), from)?));
                failure = checked.err();
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// What the tasks cost that have no cost yet, where the policy looks at it.
    fn price(&mut self, graph: &TaskGraph) {
        if self.policy == Policy::OutOfOrder {
            let known = |key| self.learnt.get(&key).copied();
            let cost = |t: &Task| cost_key(t).and_then(known).unwrap_or(0);
            let priced = self.costs.task_ns.len();
            self.costs.task_ns.extend(graph.tasks[priced..].iter().map(cost));
        }
    }

    /// A list of tasks, made of one that was used before.
    fn fill(
        &self,
        spare: Option<CommandList>,
        (graph, tasks): (&TaskGraph, &[u32]),
    ) -> CommandList {
        let mut list = spare.unwrap_or_default();
        let submission =
            |&tag: &u32| Submission { tag, work: graph.tasks[tag as usize].work.clone() };
        list.tasks.extend(tasks.iter().map(submission));
        list.timed = self.tracer.enabled() || self.policy == Policy::OutOfOrder;
        list.waiting = self.waiting;
        list.timelines = Some(self.timelines.clone());
        list
    }

    /// Gives every queue with room its next tasks. Where all tasks are of one device, this thread
    /// has nothing to do but wait: it runs them itself where it can, and returns the completion.
    fn dispatch(&mut self, graph: &TaskGraph) -> Result<Option<Completion>, DeviceError> {
        // Functions of the host never run on this thread.
        let alone = graph.dag.only_device().is_some() && !graph.host;
        for index in 0..self.lanes.len() {
            while self.lanes[index].in_flight < self.lanes[index].depth {
                let Some(id) = self.state.take(&graph.dag, &self.costs, index) else { break };
                let spare = self.lanes[index].spare.pop();
                let mut list = self.fill(spare, (graph, self.state.tasks(id)));
                list.id = id as u64;
                let lane = &mut self.lanes[index];
                if alone && lane.in_flight == 0 {
                    match lane.queue.run_here(list) {
                        Ok(completion) => {
                            lane.in_flight += 1;
                            return Ok(Some(completion));
                        }
                        Err(back) => list = back,
                    }
                }
                lane.queue.submit(list)?;
                lane.in_flight += 1;
            }
        }
        Ok(None)
    }

    /// Waits for a list, if none is done yet. Returns its number.
    fn wait(&mut self, graph: &TaskGraph, done: Option<Completion>) -> Result<usize, DeviceError> {
        // Virtual time passes here, and with it what virtual devices do: a list can be done at once
        // or by the next event, and when nothing is to happen any more, waiting is in vain.
        let mut done = done.or_else(|| self.done.try_recv().ok());
        while done.is_none() {
            let Some(next) = self.clock.next_event() else { break };
            self.clock.wait(next.saturating_sub(self.clock.now()));
            done = self.done.try_recv().ok();
        }
        let completion = self.receive(done)?;
        let lane = &mut self.lanes[completion.queue];
        lane.in_flight -= 1;
        let id = completion.list.id as usize;
        for t in &completion.times {
            self.note(graph, completion.queue, t);
        }
        let list = CommandList { times: completion.times, ..completion.list };
        self.lanes[completion.queue].spare.push(list);
        completion.outcome.map(|()| id)
    }

    /// The next completion. A queue whose thread died reports nothing, and others may have senders
    /// of the same channel: when nothing is heard for a while, queues are looked at.
    fn receive(&mut self, done: Option<Completion>) -> Result<Completion, DeviceError> {
        if let Some(completion) = done {
            return Ok(completion);
        }
        loop {
            match self.done.recv_timeout(PATIENCE) {
                Ok(completion) => return Ok(completion),
                Err(RecvTimeoutError::Timeout) => {
                    let dead = |l: &Lane| l.in_flight > 0 && !l.queue.is_alive();
                    let Some(index) = self.lanes.iter().position(dead) else { continue };
                    // What it reported before it died is there by now.
                    return self.done.try_recv().map_err(|_| self.lost(index));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.lanes.iter_mut().for_each(|l| l.in_flight = 0);
                    let names: Vec<&str> = self.lanes.iter().map(|l| &*l.name).collect();
                    return Err(DeviceError::Gone(names.join(", ")));
                }
            }
        }
    }

    /// What a queue has in flight will not be reported.
    fn lost(&mut self, index: usize) -> DeviceError {
        self.lanes[index].in_flight = 0;
        self.lose(index);
        DeviceError::Gone(self.lanes[index].name.to_string())
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
            lane: self.lanes[lane].name.clone(),
            start: t.start,
            end: t.end,
            args: [("chunk", Arg::Int(task.chunk.into())), (what, Arg::Int(amount))]
                .into_iter()
                .chain(t.modelled.map(|m| ("modelled_us", Arg::Int(m.as_micros() as u64))))
                .collect(),
        });
    }
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

/// The failure to report: the first one, but not what is only its consequence.
fn first(known: Option<EngineError>, next: EngineError) -> Option<EngineError> {
    match known {
        Some(known) if !matches!(known, EngineError::Device(DeviceError::Skipped)) => Some(known),
        _ => Some(next),
    }
}
