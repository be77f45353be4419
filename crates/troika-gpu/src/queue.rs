//! A queue: a thread that records what it is given, and submits it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use smallvec::SmallVec;
use troika_device::{
    Clock, CommandList, Completion, DeviceError, DeviceId, ListRunner, Queue, ThreadQueueOptions,
    Work, thread_queue,
};

use crate::gpu::Gpu;
use crate::run::Runner;
use crate::weights::LoadedGraph;

/// The most lists in a queue.
pub(crate) const QUEUE_DEPTH: usize = 16;

/// Starts a queue.
pub(crate) fn start(
    gpu: &Arc<Gpu>,
    id: DeviceId,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let device = gpu.name.clone();
    let options = ThreadQueueOptions { device, number, depth: QUEUE_DEPTH, runs_here: true };
    let mut worker = Worker { id, runner: Runner::new(gpu, &clock), gpu: gpu.clone() };
    thread_queue(options, clock, done, move |lists, list| worker.complete(lists, list))
}

struct Worker {
    id: DeviceId,
    runner: Runner,
    gpu: Arc<Gpu>,
}

impl Worker {
    /// Runs a list.
    fn complete(&mut self, lists: &mut ListRunner, list: CommandList) -> Completion {
        let (runner, gpu, id) = (&mut self.runner, &self.gpu, self.id);
        let timed = list.timed;
        // Where a task waits for other queues, those before it must be on their way.
        let waits: SmallVec<[usize; 8]> = list.waits.iter().map(|w| w.task as usize).collect();
        let signals: SmallVec<[usize; 8]> = list.signals.iter().map(|s| s.task as usize).collect();
        let last = list.tasks.len().saturating_sub(1);
        let mut at = 0;
        lists.run(list, |task, _| {
            let done = catch_unwind(AssertUnwindSafe(|| {
                match &task.work {
                    Work::Run(run) => {
                        let own = |loaded: &LoadedGraph| loaded.device == id;
                        runner.run(run.weights.made(&gpu.name, own)?, run)?;
                    }
                    Work::Copy(copy) => runner.copy(copy)?,
                    Work::Host(host) => {
                        return Err(DeviceError::no_host_program(&gpu.name, host.name()));
                    }
                }
                // Others may read the host's memory when a list is done.
                let shown = at == last && gpu.host.is_some();
                if timed || shown || signals.contains(&at) {
                    runner.finish()
                } else if at == last || waits.contains(&(at + 1)) {
                    runner.recorder.flush()
                } else {
                    Ok(())
                }
            }));
            at += 1;
            let done = done.unwrap_or_else(|_| Err(gpu.error("its queue panicked")));
            if done.is_err() {
                runner.abandon();
            }
            done
        })
    }
}
