//! Queues: in real time a thread that computes at once, in virtual time events of the clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, HeldClaim, Lost, Queue, Submission, TaskTime,
    Timelines, WaitTimes, Waiting, Work,
};

use troika_time::{LaneWork, Need, Span, Told};

use crate::board::Board;
use crate::limits::Limits;
use crate::worker::{Prepared, Worker, decoding};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error for one list too many.
fn full(limits: &Limits) -> DeviceError {
    let (device, depth) = (limits.device.clone(), limits.processor.queue_depth);
    let why = format!("{depth} lists are in flight on its queue, which is all it takes");
    DeviceError::System { device, why }
}

/// A queue beside real devices: modelled times are reported, not waited for.
pub(crate) struct RealQueue {
    lists: Option<Sender<CommandList>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<RealTime>,
}

struct RealTime {
    number: usize,
    clock: Arc<dyn Clock>,
    limits: Arc<Limits>,
    worker: Mutex<Worker>,
    learnt: Mutex<WaitTimes>,
    in_flight: AtomicUsize,
}

impl RealQueue {
    pub fn start(
        worker: Worker,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<RealQueue, DeviceError> {
        let limits = worker.limits.clone();
        let device = limits.device.clone();
        let (send, receive) = channel();
        let (worker, in_flight) = (Mutex::new(worker), AtomicUsize::new(0));
        let learnt = Mutex::default();
        let shared = Arc::new(RealTime { number, clock, limits, worker, learnt, in_flight });
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name(format!("troika-{device}-q{number}"))
            .spawn(move || serving.serve(&receive, &done))
            .map_err(|e| {
                let why = format!("cannot start a thread: {e}");
                DeviceError::System { device, why }
            })?;
        Ok(RealQueue { lists: Some(send), thread: Some(thread), shared })
    }
}

impl Queue for RealQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        if !self.is_alive() {
            return Err(DeviceError::Gone(self.shared.limits.device.clone()));
        }
        // The worker's lock is held while a list runs.
        let RealTime { limits, in_flight, .. } = &*self.shared;
        if in_flight.fetch_add(1, Ordering::AcqRel) >= limits.processor.queue_depth {
            in_flight.fetch_sub(1, Ordering::AcqRel);
            return Err(full(limits));
        }
        match self.lists.as_ref().map(|lists| lists.send(list)) {
            Some(Ok(())) => Ok(()),
            _ => Err(DeviceError::Gone(limits.device.clone())),
        }
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        Ok(self.shared.complete(list))
    }
}

impl Drop for RealQueue {
    fn drop(&mut self) {
        self.lists = None;
        if let Some(thread) = self.thread.take() {
            // Kernels catch their panics; if the thread died anyway, there is nothing to report.
            let _ = thread.join();
        }
    }
}

impl RealTime {
    fn serve(&self, lists: &Receiver<CommandList>, done: &SyncSender<Completion>) {
        while let Ok(list) = lists.recv() {
            let completion = self.complete(list);
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            // Without a scheduler nobody listens, and the queue is dropped soon.
            let _ = done.send(completion);
        }
    }

    fn complete(&self, list: CommandList) -> Completion {
        let (mut worker, mut learnt) = (lock(&self.worker), lock(&self.learnt));
        let mut modelled = Vec::new();
        let mut completion =
            list.run(self.number, &*self.clock, &mut learnt, |Submission { work, .. }, _| {
                let task = worker.prepare(work)?;
                modelled.push(Duration::from_nanos(task.need.ns));
                // With numerics off, nothing else would notice conflicting tasks.
                worker.claim(work, &task)?;
                worker.compute(work, &task)
            });
        for (time, modelled) in completion.times.iter_mut().zip(modelled) {
            time.modelled = Some(modelled);
        }
        completion
    }
}

/// A queue in virtual time. A task holds its claims from start to end, and its results are computed
/// at the end. Earlier readers find memory busy or unchanged.
pub(crate) struct VirtualQueue {
    board: Arc<Board>,
    /// The queue's number on the board.
    lane: u64,
    limits: Arc<Limits>,
}

impl VirtualQueue {
    /// A queue of a processor, told by its place in the board's SoC.
    pub fn start(
        worker: Worker,
        number: usize,
        board: &Arc<Board>,
        processor: usize,
        done: SyncSender<Completion>,
    ) -> VirtualQueue {
        let limits = worker.limits.clone();
        let lane = board.open(processor, Lane { number, done, worker });
        VirtualQueue { board: board.clone(), lane, limits }
    }
}

impl Queue for VirtualQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        self.board.with(|machine| {
            if machine.in_flight(self.lane) >= self.limits.processor.queue_depth {
                return Err(full(&self.limits));
            }
            machine.submit(self.lane, TimedList { list, times: Vec::new() });
            Ok(())
        })
    }

    /// Whether it does not wait for something that can no longer happen.
    fn is_alive(&self) -> bool {
        let waits = self.board.with(|machine| machine.waits(self.lane));
        !waits || self.board.clock().next_event().is_some()
    }
}

impl Drop for VirtualQueue {
    fn drop(&mut self) {
        // What it holds is dropped when the board is free again.
        let gone = self.board.with(|machine| machine.close(self.lane));
        drop(gone);
    }
}

/// What runs on a virtual queue.
pub(crate) struct Lane {
    number: usize,
    done: SyncSender<Completion>,
    worker: Worker,
}

/// A list with the times of its tasks.
pub(crate) struct TimedList {
    list: CommandList,
    times: Vec<TaskTime>,
}

/// A value that a queue's timeline reaches.
pub(crate) struct Reached {
    timelines: Arc<Timelines>,
    value: u64,
}

impl Lane {
    /// The time until others know of a task's end.
    fn hand_over_ns(&self, waiting: Waiting, task: &Prepared) -> u64 {
        let cost = self.worker.limits.processor.hand_over;
        cost.ns(waiting == Waiting::Block, &self.worker.rates, task.written_bytes())
    }
}

impl LaneWork for Lane {
    type List = TimedList;
    type Task = Box<(Prepared, Vec<HeldClaim>)>;
    type Signal = Reached;
    type Error = DeviceError;

    fn tasks(&self, of: &TimedList) -> usize {
        of.list.tasks.len()
    }

    fn next_wait(&self, of: &TimedList, at: usize) -> usize {
        let waits = of.list.waits.iter().map(|w| w.task as usize).filter(|task| *task > at);
        waits.min().unwrap_or(of.list.tasks.len())
    }

    fn settled(&self, of: &TimedList, task: usize) -> Result<bool, DeviceError> {
        let Some(timelines) = &of.list.timelines else { return Ok(true) };
        for wait in of.list.waits.iter().filter(|w| w.task as usize == task) {
            if !timelines.has(wait.on).map_err(|Lost| DeviceError::Skipped)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn submitted_early(&self, of: &TimedList, task: usize) -> bool {
        let work = of.list.tasks.get(task).map(|t| &t.work);
        let decodes = matches!(work, Some(Work::Run(run)) if decoding(&run.forward));
        of.list.waiting == Waiting::Poll && decodes
    }

    fn begin(
        &mut self,
        of: &TimedList,
        task: usize,
    ) -> Result<(Need, Box<(Prepared, Vec<HeldClaim>)>), DeviceError> {
        // A cancelled list does not start further tasks.
        if of.list.timelines.as_ref().is_some_and(|t| t.is_cancelled()) {
            return Err(DeviceError::Cancelled);
        }
        let work = &of.list.tasks[task].work;
        let prepared = self.worker.prepare(work)?;
        let claims = self.worker.claim(work, &prepared)?;
        Ok((prepared.need, Box::new((prepared, claims))))
    }

    fn end(
        &mut self,
        of: &mut TimedList,
        task: usize,
        running: Box<(Prepared, Vec<HeldClaim>)>,
        span: Span,
    ) -> Result<Told<Reached>, DeviceError> {
        let (prepared, claims) = *running;
        drop(claims);
        let Submission { tag, work } = &of.list.tasks[task];
        let computed = self.worker.compute(work, &prepared);
        if of.list.timed {
            let [start, end] = [span.start, span.end].map(Duration::from_nanos);
            let modelled = Some(end.saturating_sub(start));
            of.times.push(TaskTime { tag: *tag, start, end, modelled });
        }
        computed?;
        let signal = of.list.signals.iter().find(|s| s.task as usize == task);
        let reached = |timelines: &Arc<Timelines>| Some((timelines.clone(), signal?.value));
        let reached = of.list.timelines.as_ref().and_then(reached);
        Ok(Told {
            after_ns: self.hand_over_ns(of.list.waiting, &prepared),
            signal: reached.map(|(timelines, value)| Reached { timelines, value }),
            blocks: of.list.waiting == Waiting::Block,
        })
    }

    fn signal(&mut self, Reached { timelines, value }: Reached) {
        if let Some(own) = timelines.of(self.number) {
            own.signal(value);
        }
    }

    fn finish(
        &mut self,
        TimedList { mut list, times }: TimedList,
        outcome: Result<(), DeviceError>,
    ) {
        let own = list.timelines.as_ref().and_then(|t| t.of(self.number));
        if let Some(own) = own.filter(|_| outcome.is_err()) {
            own.lose();
        }
        list.tasks.clear();
        list.waits.clear();
        list.signals.clear();
        list.timelines = None;
        // Nobody listens any more when the scheduler is gone; then the queue is dropped soon.
        let _ = self.done.send(Completion { queue: self.number, list, outcome, times });
    }
}
