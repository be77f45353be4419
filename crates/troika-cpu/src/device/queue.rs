//! A queue: a thread with its own pool that runs command lists in order. A caller that would only
//! wait can run a list itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, Queue, Run, Submission, WaitTimes, Work,
};

use crate::compile::{DeviceId, Loaded};
use crate::device::executor::Executor;
use crate::device::options::CpuOptions;
use crate::machine::Isa;
use crate::runtime::{Pool, message, pin};

/// The most lists in a queue.
pub(crate) const QUEUE_DEPTH: usize = 64;

struct CpuQueue {
    device: String,
    lists: Option<SyncSender<CommandList>>,
    thread: Option<JoinHandle<()>>,
    /// Held by the thread that runs a list.
    worker: Arc<Mutex<Worker>>,
    /// Whether the thread is pinned, so that the caller must not run lists instead.
    pinned: bool,
}

/// Starts a queue's threads.
pub(crate) fn start(
    options: &CpuOptions,
    isa: Isa,
    id: DeviceId,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let device = options.name.clone();
    let no_thread = |e: std::io::Error| DeviceError::System {
        device: device.clone(),
        why: format!("cannot start a thread: {e}"),
    };
    let pool = Pool::new(options.threads, options.cores.as_deref()).map_err(no_thread)?;
    let core = options.cores.as_ref().and_then(|c| c.first().copied());
    let (send, receive) = sync_channel(QUEUE_DEPTH);
    let executor = Executor::new(device.clone(), pool, isa, options.spaces.clone());
    let tasks = Tasks { device: device.clone(), id, executor };
    let worker = Worker { number, tasks, clock, learnt: WaitTimes::default() };
    let worker = Arc::new(Mutex::new(worker));
    let serving = worker.clone();
    let thread = std::thread::Builder::new()
        .name(format!("troika-{device}-q{number}"))
        .spawn(move || {
            if let Some(core) = core {
                pin(core);
            }
            serve(&serving, &receive, &done);
        })
        .map_err(no_thread)?;
    let pinned = core.is_some();
    Ok(Box::new(CpuQueue { device, lists: Some(send), thread: Some(thread), worker, pinned }))
}

impl Queue for CpuQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        let sent = self.lists.as_ref().map(|b| b.send(list));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(DeviceError::Gone(self.device.clone())),
        }
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        if self.pinned { Err(list) } else { Ok(lock(&self.worker).complete(list)) }
    }
}

impl Drop for CpuQueue {
    fn drop(&mut self) {
        self.lists = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of tasks; if it died anyway, there is nothing to report.
            let _ = thread.join();
        }
    }
}

/// Runs lists until the queue is dropped.
fn serve(worker: &Mutex<Worker>, lists: &Receiver<CommandList>, done: &SyncSender<Completion>) {
    while let Ok(list) = lists.recv() {
        let completion = lock(worker).complete(list);
        // Without a scheduler nobody listens, and the queue is dropped soon.
        let _ = done.send(completion);
    }
}

/// Panics of tasks are caught before they could leave the worker in an unknown state.
fn lock(worker: &Mutex<Worker>) -> std::sync::MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    number: usize,
    tasks: Tasks,
    clock: Arc<dyn Clock>,
    learnt: WaitTimes,
}

impl Worker {
    /// Runs a list.
    fn complete(&mut self, list: CommandList) -> Completion {
        let tasks = &mut self.tasks;
        list.run(self.number, &*self.clock, &mut self.learnt, |task, next| match &task.work {
            Work::Run(run) => tasks.run(run, next),
            Work::Copy(copy) => Ok(copy.from.copy_to(&copy.to)?),
            Work::Host(host) => host.run(&tasks.device),
            Work::Load(load) => load.run(&tasks.device),
        })
    }
}

/// What tasks need to run.
struct Tasks {
    device: String,
    id: DeviceId,
    executor: Executor,
}

impl Tasks {
    /// The loaded graph of a run, if this device loaded it.
    fn loaded<'a>(&self, run: &'a Run) -> Option<&'a Loaded> {
        run.weights.made::<Loaded>().filter(|loaded| loaded.device == self.id)
    }

    fn run(&mut self, task: &Run, next: Option<&Submission>) -> Result<(), DeviceError> {
        let Some(loaded) = self.loaded(task) else {
            return Err(DeviceError::Submission {
                task: format!("{:?}", task.weights),
                why: format!("is none of device {}", self.device),
            });
        };
        let next = next.and_then(|next| match &next.work {
            Work::Run(run) => self.loaded(run),
            Work::Copy(_) | Work::Host(_) | Work::Load(_) => None,
        });
        let run = || self.executor.run(loaded, task, next);
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|e| {
            let why = format!("{}: {}", loaded.name, message(&*e));
            Err(DeviceError::System { device: self.device.clone(), why })
        })
    }
}
