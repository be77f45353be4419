//! Device queues as the scheduler sees them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, LOADER_DEPTH, Point, Queue, Signal,
    Submission, Timelines, Wait, Waiting, loader, loader_name,
};
use troika_plan::Policy;
use troika_program::schedule::{Failure, JobList, Queues, TaskList, lists_in_flight};

use super::TaskGraph;
use crate::error::EngineError;

/// A device's queue.
pub(super) struct Lane {
    pub name: Arc<str>,
    queue: Box<dyn Queue>,
    /// Whether it runs host functions.
    pub host: bool,
    /// Emptied lists, for reuse.
    pub spare: Vec<CommandList>,
}

/// What a job keeps from one graph to the next.
pub(super) struct JobLines {
    /// Used by this job alone, so that losses and cancellations do not affect other jobs.
    pub timelines: Arc<Timelines>,
    /// Chunks of the last graph whose tasks did not all run.
    pub left_out: Vec<u32>,
}

impl JobLines {
    fn new(lanes: usize) -> JobLines {
        JobLines { timelines: Arc::new(Timelines::new(lanes)), left_out: Vec::new() }
    }
}

/// After this time without a report, queues with lists in flight are checked for being alive.
const PATIENCE: Duration = Duration::from_secs(1);

/// All queues, and the channel of their reports.
pub(super) struct Lanes {
    pub all: Vec<Lane>,
    /// By job; one at least.
    pub jobs: Vec<JobLines>,
    /// How queues wait for each other.
    pub waiting: Waiting,
    /// Whether lists report what their tasks took.
    pub timed: bool,
    /// The report of a list that ran on this thread.
    here: Option<Completion>,
    done: Receiver<Completion>,
    clock: Arc<dyn Clock>,
}

impl Lanes {
    /// Opens a queue on each device, and behind these those that load for some of them.
    pub fn open(
        devices: &[Arc<dyn Device>],
        loaders: &[usize],
        policy: Policy,
        clock: &Arc<dyn Clock>,
    ) -> Result<Lanes, DeviceError> {
        let depth = |d: &Arc<dyn Device>| lists_in_flight(policy, d.caps().queue_depth);
        // Each queue also has room for the answer to a check.
        let depths = devices.iter().map(|d| depth(d) + 1).sum::<usize>();
        let (sender, done) = sync_channel(depths + loaders.len() * (LOADER_DEPTH + 1));
        let mut all = devices
            .iter()
            .enumerate()
            .map(|(i, d)| {
                Ok(Lane {
                    name: d.name().into(),
                    queue: d.queue(i, clock.clone(), sender.clone())?,
                    host: d.caps().host_tasks,
                    spare: Vec::new(),
                })
            })
            .collect::<Result<Vec<Lane>, DeviceError>>()?;
        for device in loaders.iter().map(|of| &devices[*of]) {
            let number = all.len();
            let own = || loader(device.name(), number, clock.clone(), sender.clone());
            let queue = device.loader(number, clock, &sender)?.map_or_else(own, Ok)?;
            let name = loader_name(device.name()).into();
            all.push(Lane { name, queue, host: true, spare: Vec::new() });
        }
        Ok(Lanes {
            jobs: vec![JobLines::new(all.len())],
            all,
            waiting: Waiting::default(),
            timed: false,
            here: None,
            done,
            clock: clock.clone(),
        })
    }

    /// Makes a place for a job.
    pub fn place(&mut self, job: usize) {
        if job == self.jobs.len() {
            self.jobs.push(JobLines::new(self.all.len()));
        }
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits for the next report of a queue. `has_lists`: whether a queue has any.
    ///
    /// # Errors
    /// The queues that will not report their lists in flight.
    pub fn hear(&mut self, has_lists: impl Fn(usize) -> bool) -> Result<Completion, Range<usize>> {
        if let Some(completion) = self.here.take() {
            return Ok(completion);
        }
        // Virtual time passes here, and virtual devices work. A list may be done at once or after
        // the next event; without further events, waiting is in vain.
        let mut done = self.done.try_recv().ok();
        while done.is_none() {
            let Some(next) = self.clock.next_event() else { break };
            self.clock.wait(next.saturating_sub(self.clock.now()));
            done = self.done.try_recv().ok();
        }
        if let Some(completion) = done {
            return Ok(completion);
        }
        // A queue whose thread died reports nothing, while others keep the channel open. After a
        // time without reports, the queues are checked.
        loop {
            match self.done.recv_timeout(PATIENCE) {
                Ok(completion) => return Ok(completion),
                Err(RecvTimeoutError::Timeout) => {
                    let dead = |&l: &usize| has_lists(l) && !self.all[l].queue.is_alive();
                    let Some(index) = (0..self.all.len()).find(dead) else { continue };
                    // Anything it reported before it died is there by now.
                    return self.done.try_recv().map_err(|_| index..index + 1);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(0..self.all.len()),
            }
        }
    }
}

impl Queues<TaskGraph, EngineError> for Lanes {
    fn submit(&mut self, list: &TaskList<'_, TaskGraph>) -> Result<bool, EngineError> {
        let lane = &mut self.all[list.queue];
        let mut commands = lane.spare.pop().unwrap_or_default();
        let tasks = &list.graph.tasks;
        let submission = |&tag: &u32| Submission { tag, work: tasks[tag as usize].work.clone() };
        commands.tasks.extend(list.tasks.iter().map(submission));
        (commands.timed, commands.waiting) = (self.timed, self.waiting);
        commands.timelines = Some(self.jobs[list.whole].timelines.clone());
        // `job_list` reads it.
        commands.id = (list.id.job as u64) << 32 | list.id.list as u64;
        // In a fixed order, values go on from those that the timelines have so far.
        if let Some(order) = list.order {
            commands.waits.extend(order.waits.iter().map(|wait| {
                let on = Point { value: list.base + wait.on.value, ..wait.on };
                Wait { on, ..*wait }
            }));
            let value = |done: &u64| Signal { task: (done - 1) as u32, value: list.base + done };
            commands.signals.extend(order.signals.iter().map(value));
        }
        // This thread would only wait: it runs the list itself if it can, but no functions of the
        // host.
        if list.alone && !list.graph.host {
            match lane.queue.run_here(commands) {
                Ok(completion) => {
                    self.here = Some(completion);
                    return Ok(true);
                }
                Err(back) => commands = back,
            }
        }
        lane.queue.submit(commands)?;
        Ok(false)
    }

    fn lose(&mut self, job: usize, queue: usize) {
        if let Some(timeline) = self.jobs[job].timelines.of(queue) {
            timeline.lose();
        }
    }

    fn ended(
        &mut self,
        job: usize,
        graph: &TaskGraph,
        failure: Option<&EngineError>,
        ran: &dyn Fn(u32) -> bool,
    ) {
        let JobLines { timelines, left_out } = &mut self.jobs[job];
        left_out.clear();
        let Some(failure) = failure else { return };
        for (task, t) in (0..).zip(&graph.tasks) {
            if !ran(task) && !left_out.contains(&t.chunk) {
                left_out.push(t.chunk);
            }
        }
        // Queues of the next graph must not be stopped by this one.
        timelines.reset();
        if matches!(failure, EngineError::Device(DeviceError::Cancelled)) {
            timelines.take_cancelled();
        }
    }
}

impl Failure for EngineError {
    fn skipped() -> EngineError {
        DeviceError::Skipped.into()
    }

    fn is_skipped(&self) -> bool {
        matches!(self, EngineError::Device(DeviceError::Skipped))
    }
}

/// Which list a completion is of, by its id: the job's number and its own.
pub(super) fn job_list(id: u64) -> JobList {
    JobList { job: (id >> 32) as usize, list: (id & u64::from(u32::MAX)) as usize }
}
