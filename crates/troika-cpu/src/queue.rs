//! A queue: one thread that runs batches in order, with a pool of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread::JoinHandle;

use troika_device::{Batch, Clock, Completion, DeviceError, Queue, Submission, TaskTime};

use crate::compile::Executable;
use crate::detect::Isa;
use crate::device::{CpuOptions, Executables};
use crate::executor::Executor;
use crate::threads::{Pool, message, pin};

/// Batches that may wait in a queue.
pub(crate) const QUEUE_DEPTH: usize = 64;

struct CpuQueue {
    device: String,
    batches: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a queue's threads.
pub(crate) fn start(
    options: &CpuOptions,
    isa: Isa,
    executables: Arc<Executables>,
    number: usize,
    (clock, done): (Arc<dyn Clock>, Sender<Completion>),
) -> Result<Box<dyn Queue>, DeviceError> {
    let device = options.name.clone();
    let no_thread = |e: std::io::Error| DeviceError::System {
        device: device.clone(),
        why: format!("cannot start a thread: {e}"),
    };
    let pool = Pool::new(options.threads, options.cores.as_deref()).map_err(no_thread)?;
    let core = options.cores.as_ref().and_then(|c| c.first().copied());
    let (send, receive) = sync_channel(QUEUE_DEPTH);
    let executor = Executor::new(device.clone(), pool, isa);
    let mut worker = Worker { number, device: device.clone(), executables, executor, clock, done };
    let thread = std::thread::Builder::new()
        .name(format!("troika-{device}-q{number}"))
        .spawn(move || {
            if let Some(core) = core {
                pin(core);
            }
            worker.serve(&receive);
        })
        .map_err(no_thread)?;
    Ok(Box::new(CpuQueue { device, batches: Some(send), thread: Some(thread) }))
}

impl Queue for CpuQueue {
    fn submit(&mut self, batch: Batch) -> Result<(), DeviceError> {
        let sent = self.batches.as_ref().map(|b| b.send(batch));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(DeviceError::Gone(self.device.clone())),
        }
    }
}

impl Drop for CpuQueue {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches what its work throws; if it died, there is nothing to wait for.
            let _ = thread.join();
        }
    }
}

struct Worker {
    number: usize,
    device: String,
    executables: Arc<Executables>,
    executor: Executor,
    clock: Arc<dyn Clock>,
    done: Sender<Completion>,
}

impl Worker {
    /// Runs batches until the queue is dropped.
    fn serve(&mut self, batches: &Receiver<Batch>) {
        while let Ok(mut batch) = batches.recv() {
            let mut times = Vec::with_capacity(if batch.timed { batch.tasks.len() } else { 0 });
            let mut outcome = Ok(());
            let mut next = batch.tasks.first().and_then(|t| self.executables.get(t.executable));
            for (i, task) in batch.tasks.iter().enumerate() {
                let start = batch.timed.then(|| self.clock.now());
                let this = next.take();
                next = batch.tasks.get(i + 1).and_then(|t| self.executables.get(t.executable));
                outcome = self.run(task, this.as_deref(), next.as_deref());
                if let Some(start) = start {
                    times.push(TaskTime { tag: task.tag, start, end: self.clock.now() });
                }
                if outcome.is_err() {
                    break;
                }
            }
            batch.tasks.clear();
            let done = Completion { queue: self.number, batch, outcome, times };
            // Nobody listens any more when the scheduler is gone; then the queue is dropped soon.
            let _ = self.done.send(done);
        }
    }

    fn run(
        &mut self,
        task: &Submission,
        executable: Option<&Executable>,
        next: Option<&Executable>,
    ) -> Result<(), DeviceError> {
        let Some(executable) = executable else {
            return Err(DeviceError::Submission {
                task: format!("executable {}", task.executable.0),
                why: "was released, or is of another device".into(),
            });
        };
        let run = || self.executor.run(executable, task, next);
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|e| {
            let why = format!("{}: {}", executable.name, message(&*e));
            Err(DeviceError::System { device: self.device.clone(), why })
        })
    }
}
