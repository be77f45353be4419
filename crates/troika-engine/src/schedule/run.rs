//! The loop that keeps device queues fed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, LOADER_DEPTH, TaskTime,
    Timelines, Waiting, Work,
};
use troika_plan::Policy;
use troika_program::schedule::{Graph, JobList, Jobs, Schedule};
use troika_trace::{Arg, Span, Tracer};

use super::lane::{Lanes, job_list};
use super::task::is_host;
use super::{Task, TaskGraph};
use crate::error::EngineError;

/// Number of a running graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(super) usize);

/// Runs task graphs on device queues, several at once. Graphs that run at the same time are
/// independent except that they share the queues.
pub struct Runner {
    lanes: Lanes,
    pub(crate) jobs: Jobs<TaskGraph, EngineError>,
    /// Ended graphs that were not reported yet.
    ended: VecDeque<Ended>,
    /// Graphs whose ends nobody waits for.
    quiet: Vec<usize>,
    policy: Policy,
    tracer: Tracer,
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

impl Graph for TaskGraph {
    type Key = ExecutableId;

    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn cost_key(&self, task: u32) -> Option<(ExecutableId, usize)> {
        let task = &self.tasks[task as usize];
        match &task.work {
            Work::Run(run) => Some((run.weights.executable().id(), run.rows)),
            _ => None,
        }
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
    /// Opens a queue on each device, and behind these those that load for some of them. `critical`
    /// is the device that must not stall, for policies that ask for it.
    ///
    /// # Errors
    /// A queue cannot be opened.
    pub fn new(
        devices: &[Arc<dyn Device>],
        loaders: &[usize],
        (policy, critical): (Policy, usize),
        clock: &Arc<dyn Clock>,
        tracer: Tracer,
    ) -> Result<Runner, DeviceError> {
        let mut jobs = Jobs::new(policy, critical);
        for device in devices {
            jobs.add_queue(device.caps().queue_depth, device.caps().queue_waits);
        }
        loaders.iter().for_each(|_| jobs.add_queue(LOADER_DEPTH, false));
        let lanes = Lanes::open(devices, loaders, policy, clock)?;
        Ok(Runner { lanes, jobs, ended: VecDeque::new(), quiet: Vec::new(), policy, tracer })
    }

    /// Sets how queues wait for each other.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.lanes.waiting = waiting;
    }

    /// Cancels a graph from another thread.
    pub fn canceller(&self, job: JobId) -> Canceller {
        Canceller(self.lanes.jobs[job.0].timelines.clone())
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
        let index = self.jobs.begin(graph, background, None, is_told(&self.ended));
        self.lanes.place(index);
        Ok(JobId(index))
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
        while ended.is_none() && !self.jobs.is_empty() {
            ended = self.advance();
            if ended.is_none() && interrupted() {
                return Waited::Interrupted;
            }
        }
        ended.map_or(Waited::Idle, Waited::Ended)
    }

    /// Chunks of a failed graph whose tasks did not all run. Available until its place is reused.
    pub fn left_out(&self, job: JobId) -> &[u32] {
        &self.lanes.jobs[job.0].left_out
    }

    /// Checks that tasks are for devices that are there, and host functions for devices that run
    /// them.
    fn check(&self, graph: &TaskGraph) -> Result<(), EngineError> {
        let devices = self.lanes.all.len();
        if let Some(task) = graph.tasks.iter().find(|t| t.device >= devices) {
            let (task, device) = (&task.name, task.device);
            let why = format!("task {task} is for device {device} of {devices}");
            return Err(EngineError::Tasks(why));
        }
        let refused = |t: &&Task| is_host(t) && !self.lanes.all[t.device].host;
        graph.tasks.iter().find(refused).filter(|_| graph.host).map_or(Ok(()), |task| {
            let device = &self.lanes.all[task.device].name;
            let why = format!("device {device} runs no functions of the host; use a CPU device");
            Err(DeviceError::Submission { task: task.name.to_string(), why }.into())
        })
    }

    /// Hands over what it can and waits for the next finished list. Returns a graph that has ended,
    /// if any.
    fn advance(&mut self) -> Option<Ended> {
        if let Some(done) = self.take_ended() {
            return Some(done);
        }
        self.lanes.timed = self.tracer.enabled() || self.policy.weighs();
        self.jobs.hand_over(&mut self.lanes);
        if self.jobs.is_idle() {
            let why =
                |left: usize| format!("the scheduler has {left} tasks left and none is ready");
            self.jobs.stuck(|left| EngineError::Tasks(why(left)));
            return self.take_ended();
        }
        match self.lanes.hear(|lane| self.jobs.in_flight(lane) > 0) {
            Ok(completion) => self.complete(completion),
            Err(lost) => lost.for_each(|lane| self.lost(lane)),
        }
        self.take_ended()
    }

    fn take_ended(&mut self) -> Option<Ended> {
        loop {
            let (job, result) = self.jobs.take_ended(&mut self.lanes)?;
            match self.quiet.iter().position(|quiet| *quiet == job) {
                Some(at) => _ = self.quiet.swap_remove(at),
                None => return Some((JobId(job), result)),
            }
        }
    }

    /// Handles a list that is done or has failed.
    fn complete(&mut self, completion: Completion) {
        let (lane, id) = (completion.queue, job_list(completion.list.id));
        let Some(graph) = self.jobs.left(lane, id) else { return };
        for t in &completion.times {
            self.note(&graph, lane, t);
        }
        let list = CommandList { times: completion.times, ..completion.list };
        self.lanes.all[lane].spare.push(list);
        match completion.outcome {
            Err(e) => self.jobs.fail(id.job, e.into()),
            Ok(()) => {
                if let Some(task) = self.jobs.complete(id) {
                    self.grow(&graph, task, id);
                }
            }
        }
    }

    /// Starts what became known by the last task of a list.
    fn grow(&mut self, graph: &TaskGraph, task: u32, list: JobList) {
        let result = match &graph.tasks[task as usize].work {
            Work::Host(host) => host.take_result(),
            _ => None,
        };
        let Some(growth) = &graph.growth else { return self.jobs.close(list) };
        let grown = growth(task, result).and_then(|grown| {
            self.check(&grown)?;
            graph.check_grown(task, &grown)?;
            Ok(grown)
        });
        match grown {
            Ok(grown) => {
                let beside = grown.beside.clone();
                let index = self.jobs.begin(grown, false, Some(list), is_told(&self.ended));
                self.lanes.place(index);
                if let Some(beside) = beside {
                    let index = self.jobs.begin(beside, false, None, is_told(&self.ended));
                    self.lanes.place(index);
                    self.quiet.push(index);
                }
            }
            Err(e) => self.jobs.fail(list.job, e),
        }
    }

    /// Handles a queue that will not report its lists in flight.
    fn lost(&mut self, lane: usize) {
        let name = self.lanes.all[lane].name.to_string();
        let gone = || DeviceError::Gone(name.clone()).into();
        self.jobs.lost(&mut self.lanes, lane, gone);
    }

    /// Learns a task's cost and records its span.
    fn note(&mut self, graph: &TaskGraph, lane: usize, t: &TaskTime) {
        let task = &graph.tasks[t.tag as usize];
        self.jobs.learn(graph, t.tag, (t.end - t.start).as_nanos() as u64);
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

/// Whether the end of a place's last graph was reported: its number is not used again before.
fn is_told(ended: &VecDeque<Ended>) -> impl Fn(usize) -> bool {
    |index| ended.iter().all(|(job, _)| job.0 != index)
}
