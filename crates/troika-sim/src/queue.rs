//! Queues: in real time a thread that computes at once, in virtual time events of the clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use troika_device::{Clock, CommandList, Completion, DeviceError, Queue, Submission, WaitTimes};

use crate::board::Board;
use crate::lane::{Lane, TimedList};
use crate::limits::Limits;
use crate::worker::Worker;

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
        // Its worker is dropped when the board is free again.
        let gone = self.board.with(|machine| machine.close(self.lane));
        drop(gone);
    }
}
