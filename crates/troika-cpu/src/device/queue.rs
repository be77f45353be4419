//! A queue: a thread with its own pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Clock, Completion, DeviceError, DeviceId, Queue, Run, Submission, ThreadQueueOptions, Work,
    panic_message, thread_queue,
};

use crate::compile::Loaded;
use crate::device::executor::Executor;
use crate::device::options::CpuOptions;
use crate::machine::Isa;
use crate::runtime::{Pool, pin};

/// The most lists in a queue.
pub(crate) const QUEUE_DEPTH: usize = 64;

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
    let pool = Pool::new(options.threads, options.cores.as_deref())
        .map_err(|e| DeviceError::no_thread(&device, &e))?;
    let mut core = options.cores.as_ref().and_then(|c| c.first().copied());
    let executor = Executor::new(options, pool, isa);
    let mut tasks = Tasks { device: device.clone(), id, executor };
    // A pinned thread's work is not for the caller's.
    let runs_here = core.is_none();
    let options = ThreadQueueOptions { device, number, depth: QUEUE_DEPTH, runs_here };
    thread_queue(options, clock, done, move |lists, list| {
        core.take().into_iter().for_each(pin);
        lists.run(list, |task, next| match &task.work {
            Work::Run(run) => tasks.run(run, next),
            Work::Copy(copy) => Ok(copy.from.copy_to(&copy.to)?),
            Work::Host(host) => host.run(&tasks.device),
        })
    })
}

/// What tasks need to run.
struct Tasks {
    device: String,
    id: DeviceId,
    executor: Executor,
}

impl Tasks {
    /// The loaded graph of a run, if this device loaded it.
    fn loaded<'a>(&self, run: &'a Run) -> Result<&'a Loaded, DeviceError> {
        run.weights.made(&self.device, |loaded: &Loaded| loaded.device == self.id)
    }

    fn run(&mut self, task: &Run, next: Option<&Submission>) -> Result<(), DeviceError> {
        let loaded = self.loaded(task)?;
        let next = next.and_then(|next| match &next.work {
            Work::Run(run) => self.loaded(run).ok(),
            Work::Copy(_) | Work::Host(_) => None,
        });
        let run = || self.executor.run(loaded, task, next);
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|e| {
            let why = format!("{}: {}", loaded.name, panic_message(&*e));
            Err(DeviceError::System { device: self.device.clone(), why })
        })
    }
}
