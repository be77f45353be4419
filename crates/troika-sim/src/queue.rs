//! Queues: in real time a thread that computes at once, in virtual time events of the clock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, HeldClaim, Lost, Queue, Submission, TaskTime,
    WaitTimes, Waiting, Work,
};

use crate::board::{Board, CoRun};
use crate::cost::RunCost;
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

/// A cancelled list does not start further tasks.
fn cancelled(list: &CommandList) -> Result<(), DeviceError> {
    let cancelled = list.timelines.as_ref().is_some_and(|t| t.is_cancelled());
    if cancelled { Err(DeviceError::Cancelled) } else { Ok(()) }
}

/// Whether all waits of a task are over.
fn settled(list: &CommandList, task: usize) -> Result<bool, DeviceError> {
    let Some(timelines) = &list.timelines else { return Ok(true) };
    for wait in list.waits.iter().filter(|w| w.task as usize == task) {
        if !timelines.has(wait.on).map_err(|Lost| DeviceError::Skipped)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a task computes rows that continue sequences.
fn decodes(list: &CommandList, task: usize) -> bool {
    match list.tasks.get(task).map(|t| &t.work) {
        Some(Work::Run(run)) => decoding(&run.forward),
        _ => false,
    }
}

/// A queue in virtual time. A task holds its claims from start to end, and its results are computed
/// at the end. Earlier readers find memory busy or unchanged.
pub(crate) struct VirtualQueue(Arc<Mutex<Lane>>);

struct Lane {
    number: usize,
    board: Arc<Board>,
    /// The queue's number on the board, and its processor's index in the SoC.
    place: (u64, usize),
    done: SyncSender<Completion>,
    worker: Worker,
    /// The list that runs.
    current: Option<Current>,
    waiting: VecDeque<CommandList>,
    frames: Option<Frames>,
    me: Weak<Mutex<Lane>>,
}

/// The frames of a co-running task.
struct Frames {
    task: CoRun,
    /// A queued frame runs after the list's tasks up to this one.
    queued: Option<usize>,
    /// Whether a frame is being drawn.
    drawing: bool,
}

struct Current {
    list: CommandList,
    times: Vec<TaskTime>,
    /// Index of the running task.
    at: usize,
    /// Number of tasks whose waits are over.
    settled: usize,
    start: Duration,
    doing: Doing,
}

/// What a queue is doing with its list.
enum Doing {
    /// Looking for the next task.
    Nothing,
    /// Submitting the list to the processor.
    Submitting,
    /// Running a task.
    Task(Box<(Prepared, Vec<HeldClaim>)>),
    /// Telling others that the list or a task has ended.
    HandingOver,
    /// Waiting for a task of another queue.
    Waiting,
}

impl VirtualQueue {
    pub fn start(
        worker: Worker,
        number: usize,
        (board, processor): (Arc<Board>, usize),
        done: SyncSender<Completion>,
    ) -> VirtualQueue {
        let place = (board.queue(), processor);
        let task = board.draws(processor);
        let frames = task.map(|task| Frames { task, queued: None, drawing: false });
        let lane = Arc::new_cyclic(|me| {
            let (current, waiting, me) = (None, VecDeque::new(), me.clone());
            Mutex::new(Lane { number, board, place, done, worker, current, waiting, frames, me })
        });
        lock(&lane).next_refresh();
        VirtualQueue(lane)
    }
}

impl Queue for VirtualQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        let mut lane = lock(&self.0);
        let in_flight = lane.waiting.len() + usize::from(lane.current.is_some());
        if in_flight >= lane.worker.limits.processor.queue_depth {
            return Err(full(&lane.worker.limits));
        }
        lane.waiting.push_back(list);
        // Behind another list, submitting takes no extra time.
        if in_flight == 0 {
            let submit = lane.worker.limits.processor.submit_ns;
            lane.take_list();
            if submit > 0 {
                lane.pass(Doing::Submitting, submit);
                return Ok(());
            }
        }
        lane.proceed();
        Ok(())
    }

    fn is_alive(&self) -> bool {
        !self.is_stuck()
    }
}

impl VirtualQueue {
    /// Whether it waits for something that can no longer happen.
    fn is_stuck(&self) -> bool {
        let lane = lock(&self.0);
        let waits = lane.current.as_ref().is_some_and(|c| matches!(c.doing, Doing::Waiting));
        waits && lane.board.clock().next_event().is_none()
    }
}

impl Drop for VirtualQueue {
    fn drop(&mut self) {
        let lane = lock(&self.0);
        let (board, queue) = (lane.board.clone(), lane.place.0);
        drop(lane);
        board.forget(queue);
    }
}

impl Lane {
    fn take_list(&mut self) -> bool {
        let Some(list) = self.waiting.pop_front() else { return false };
        let start = self.board.clock().now();
        let (times, at, settled, doing) = (Vec::new(), 0, 0, Doing::Nothing);
        self.current = Some(Current { list, times, at, settled, start, doing });
        true
    }

    /// Lets time pass while the processor does not work.
    fn pass(&mut self, doing: Doing, ns: u64) {
        let Some(current) = &mut self.current else { return };
        current.doing = doing;
        let me = self.me.clone();
        // A queue that is gone has nothing to end.
        let end = move || _ = me.upgrade().map(|lane| lock(&lane).passed());
        self.board.clock().after(ns, end);
    }

    /// The end of such a time.
    fn passed(&mut self) {
        let Some(current) = &mut self.current else { return };
        let handed = matches!(current.doing, Doing::HandingOver);
        current.doing = Doing::Nothing;
        if handed && current.at >= current.list.tasks.len() {
            self.finish(Ok(()));
        }
        self.proceed();
    }

    /// The time until others know of a task's end.
    fn hand_over_ns(&self, list: &CommandList, task: &Prepared) -> u64 {
        let cost = self.worker.limits.processor.hand_over;
        match list.waiting {
            Waiting::Poll => cost.predicted_ns,
            Waiting::Block if cost.blocking_copies => {
                cost.blocking_ns.saturating_add(self.worker.rates.moving_ns(task.written_bytes()))
            }
            Waiting::Block => cost.blocking_ns,
        }
    }

    fn next_refresh(&self) {
        let (Some(frames), me) = (&self.frames, self.me.clone()) else { return };
        let refresh = move || _ = me.upgrade().map(|lane| lock(&lane).refresh());
        self.board.clock().after(frames.task.period_ns, refresh);
    }

    /// The screen refreshes: queues the next frame, unless the last one is unfinished.
    fn refresh(&mut self) {
        self.next_refresh();
        let submitted = self.current.as_ref().map_or(0, |c| {
            let waits = c.list.waits.iter().map(|w| w.task as usize).filter(|at| *at > c.at);
            waits.min().unwrap_or(c.list.tasks.len())
        });
        let Some(frames) = &mut self.frames else { return };
        if frames.queued.is_some() || frames.drawing {
            return;
        }
        frames.queued = Some(submitted);
        let works = |c: &Current| matches!(c.doing, Doing::Task(_));
        if !self.current.as_ref().is_some_and(works) {
            self.draw();
        }
    }

    /// Draws a queued frame if all work before it is done. Returns whether one is drawn.
    fn draw(&mut self) -> bool {
        let blocked = self.current.as_ref().is_some_and(|c| matches!(c.doing, Doing::Waiting));
        let at = self.current.as_ref().map(|c| c.at);
        let Some(frames) = &mut self.frames else { return false };
        let turn = |behind: usize| blocked || at.is_none_or(|at| at >= behind);
        if !frames.drawing && frames.queued.is_some_and(turn) {
            (frames.queued, frames.drawing) = (None, true);
            let need = RunCost { ns: frames.task.frame_ns, bytes: 0, streams: false };
            let me = self.me.clone();
            let end = move || _ = me.upgrade().map(|lane| lock(&lane).drawn());
            self.board.begin(self.place, need, Arc::new(end));
        }
        self.frames.as_ref().is_some_and(|f| f.drawing)
    }

    fn drawn(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.drawing = false;
        }
        self.board.drawn();
        if let Some(current) = &mut self.current
            && matches!(current.doing, Doing::Waiting)
        {
            current.doing = Doing::Nothing;
        }
        self.proceed();
    }

    /// Starts what it can: the next task of the list, or the next list.
    fn proceed(&mut self) {
        loop {
            let start = self.board.clock().now();
            if self.draw() || (self.current.is_none() && !self.take_list()) {
                return;
            }
            let Some(current) = &mut self.current else { return };
            if !matches!(current.doing, Doing::Nothing) {
                return;
            }
            let Some(Submission { work, .. }) = current.list.tasks.get(current.at) else {
                self.finish(Ok(()));
                continue;
            };
            if current.settled <= current.at {
                match settled(&current.list, current.at) {
                    Ok(true) => current.settled = current.at + 1,
                    Ok(false) => {
                        current.doing = Doing::Waiting;
                        let me = self.me.clone();
                        let woken = move || _ = me.upgrade().map(|lane| lock(&lane).woken());
                        self.board.wait(Box::new(woken));
                        return;
                    }
                    Err(e) => {
                        self.finish(Err(e));
                        continue;
                    }
                }
            }
            let worker = &self.worker;
            let task = cancelled(&current.list).and_then(|()| worker.prepare(work));
            let task = task.and_then(|t| Ok((worker.claim(work, &t)?, t)));
            match task {
                Err(e) => self.finish(Err(e)),
                Ok((claims, task)) => {
                    let (me, need) = (self.me.clone(), task.need);
                    current.start = start;
                    current.doing = Doing::Task(Box::new((task, claims)));
                    self.begin(need, me);
                }
            }
        }
    }

    /// Another queue made progress: checks the current wait.
    fn woken(&mut self) {
        let Some(current) = &mut self.current else { return };
        if !matches!(current.doing, Doing::Waiting) {
            return;
        }
        current.doing = Doing::Nothing;
        let submit = self.worker.limits.processor.submit_ns;
        let early = current.list.waiting == Waiting::Poll && decodes(&current.list, current.at);
        if !early && submit > 0 && matches!(settled(&current.list, current.at), Ok(true)) {
            // The waiting task is submitted now.
            current.settled = current.at + 1;
            self.pass(Doing::Submitting, submit);
            return;
        }
        self.proceed();
    }

    fn begin(&self, need: RunCost, me: Weak<Mutex<Lane>>) {
        // A queue that is gone has nothing to end.
        let end = move || _ = me.upgrade().map(|lane| lock(&lane).end());
        self.board.begin(self.place, need, Arc::new(end));
    }

    /// A task ends: its results become visible.
    fn end(&mut self) {
        let Some(current) = &mut self.current else { return };
        let Doing::Task(task) = std::mem::replace(&mut current.doing, Doing::Nothing) else {
            return;
        };
        let (task, claims) = *task;
        drop(claims);
        let Some(Submission { tag, work }) = current.list.tasks.get(current.at) else { return };
        let outcome = self.worker.compute(work, &task);
        if current.list.timed {
            let (start, end) = (current.start, self.board.clock().now());
            let modelled = Some(end.saturating_sub(start));
            current.times.push(TaskTime { tag: *tag, start, end, modelled });
        }
        current.at += 1;
        if outcome.is_err() {
            self.finish(outcome);
        } else if let Some(current) = &self.current {
            let last = current.at >= current.list.tasks.len();
            let cost = self.hand_over_ns(&current.list, &task);
            let signalled = self.signal(&current.list, current.at - 1, cost);
            let blocks = signalled && current.list.waiting == Waiting::Block;
            let told = last || blocks || self.worker.limits.processor.waits_each_run;
            if told && cost > 0 {
                self.pass(Doing::HandingOver, cost);
                return;
            }
        }
        self.proceed();
    }

    /// Signals a task's end to others after a delay. Returns whether others wait for it.
    fn signal(&self, list: &CommandList, task: usize, after: u64) -> bool {
        let signal = list.signals.iter().find(|s| s.task as usize == task);
        let (Some(signal), Some(timelines)) = (signal, &list.timelines) else { return false };
        let (timelines, value, queue) = (timelines.clone(), signal.value, self.number);
        let board = Arc::downgrade(&self.board);
        self.board.clock().after(after, move || {
            if let Some(own) = timelines.of(queue) {
                own.signal(value);
            }
            board.upgrade().iter().for_each(|board| board.wake());
        });
        true
    }

    /// Reports the list.
    fn finish(&mut self, outcome: Result<(), DeviceError>) {
        let Some(Current { mut list, times, .. }) = self.current.take() else { return };
        let own = list.timelines.as_ref().and_then(|t| t.of(self.number));
        if let Some(own) = own.filter(|_| outcome.is_err()) {
            own.lose();
            self.board.wake();
        }
        list.tasks.clear();
        list.waits.clear();
        list.signals.clear();
        list.timelines = None;
        // Nobody listens any more when the scheduler is gone; then the queue is dropped soon.
        let _ = self.done.send(Completion { queue: self.number, list, outcome, times });
    }
}
