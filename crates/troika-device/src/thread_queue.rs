//! A queue with a thread of its own, for devices that compute in real time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::clock::Clock;
use crate::device::{CommandList, Completion, Queue};
use crate::error::DeviceError;
use crate::list::ListRunner;
use crate::lock::lock;
use crate::wait_times::WaitTimes;

/// How a queue with a thread of its own works.
#[derive(Clone, Debug)]
pub struct ThreadQueueOptions {
    /// The device's name.
    pub device: String,
    /// The queue's number for the receiver, which is also part of its thread's name.
    pub number: usize,
    /// The most lists in flight.
    pub depth: usize,
    /// Whether a caller that would only wait may run a list on its own thread.
    pub runs_here: bool,
}

/// A thread that runs command lists in order. A caller that would only wait can run a list itself.
struct ThreadQueue<R> {
    options: ThreadQueueOptions,
    lists: Option<SyncSender<CommandList>>,
    thread: Option<JoinHandle<()>>,
    /// Held by the thread that runs a list.
    runner: Arc<Mutex<R>>,
    in_flight: Arc<AtomicUsize>,
}

/// Starts a thread that runs command lists in order, with what `runner` says of a list. It catches
/// panics of its tasks.
///
/// # Errors
/// The system has no thread left.
pub fn thread_queue(
    options: ThreadQueueOptions,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
    mut runner: impl FnMut(&mut ListRunner, CommandList) -> Completion + Send + 'static,
) -> Result<Box<dyn Queue>, DeviceError> {
    // Has its memory from the start: submitting allocates nothing.
    let (send, receive) = sync_channel(options.depth);
    let mut lists = ListRunner { queue: options.number, clock, learnt: WaitTimes::default() };
    let runner = Arc::new(Mutex::new(move |list| runner(&mut lists, list)));
    let in_flight = Arc::new(AtomicUsize::new(0));
    let (serving, served) = (runner.clone(), in_flight.clone());
    let thread = std::thread::Builder::new()
        .name(format!("troika-{}-q{}", options.device, options.number))
        .spawn(move || serve(&serving, &served, &receive, &done))
        .map_err(|e| DeviceError::no_thread(&options.device, &e))?;
    let (lists, thread) = (Some(send), Some(thread));
    Ok(Box::new(ThreadQueue { options, lists, thread, runner, in_flight }))
}

impl<R: FnMut(CommandList) -> Completion + Send + 'static> Queue for ThreadQueue<R> {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        let ThreadQueueOptions { device, depth, .. } = &self.options;
        let gone = || DeviceError::Gone(device.clone());
        if !self.is_alive() {
            return Err(gone());
        }
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= *depth {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            return Err(DeviceError::too_many_lists(device, *depth));
        }
        self.lists.as_ref().ok_or_else(gone)?.send(list).map_err(|_| gone())
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        if self.options.runs_here { Ok((*lock(&self.runner))(list)) } else { Err(list) }
    }
}

impl<R> Drop for ThreadQueue<R> {
    fn drop(&mut self) {
        self.lists = None;
        if let Some(thread) = self.thread.take() {
            // Runners catch panics of tasks; if the thread died anyway, there is nothing to report.
            let _ = thread.join();
        }
    }
}

/// Runs lists until the queue is dropped.
fn serve(
    runner: &Mutex<impl FnMut(CommandList) -> Completion>,
    in_flight: &AtomicUsize,
    lists: &Receiver<CommandList>,
    done: &SyncSender<Completion>,
) {
    while let Ok(list) = lists.recv() {
        let completion = (*lock(runner))(list);
        in_flight.fetch_sub(1, Ordering::AcqRel);
        // Without a scheduler nobody listens, and the queue is dropped soon.
        let _ = done.send(completion);
    }
}
