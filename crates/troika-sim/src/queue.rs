//! Queues: in real time a thread that computes at once, in virtual time events of the clock.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, Queue, Submission, ThreadQueueOptions,
    thread_queue,
};

use crate::board::Board;
use crate::limits::Limits;
use crate::worker::Worker;

/// A queue beside real devices: modelled times are reported, not waited for.
pub(crate) fn in_real_time(
    mut worker: Worker,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let (device, depth) = (worker.limits.device.clone(), worker.limits.processor.queue_depth);
    let options = ThreadQueueOptions { device, number, depth, runs_here: true };
    thread_queue(options, clock, done, move |lists, list| {
        let mut modelled = Vec::new();
        let mut completion = lists.run(list, |Submission { work, .. }, _| {
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
    })
}

/// A queue in virtual time. A task holds its claims from start to end, and its results are computed
/// at the end. Earlier readers find memory busy or unchanged.
pub(crate) struct VirtualQueue {
    pub board: Arc<Board>,
    /// The queue's number on the board.
    pub lane: u64,
    pub limits: Arc<Limits>,
}

impl Queue for VirtualQueue {
    fn submit(&mut self, mut list: CommandList) -> Result<(), DeviceError> {
        list.times.clear();
        self.board.with(|machine| {
            let Limits { device, processor, .. } = &*self.limits;
            if machine.in_flight(self.lane) >= processor.queue_depth {
                return Err(DeviceError::too_many_lists(device, processor.queue_depth));
            }
            machine.submit(self.lane, list);
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
