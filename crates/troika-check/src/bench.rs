//! Work that is submitted to a device by hand, and waited for.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, Queue, Submission, TaskTime, Work,
};

use crate::build::Result;

/// How long to wait before checking that the queue is alive.
const PATIENCE: Duration = Duration::from_secs(2);

/// A queue of a device, for lists that are made by hand.
pub struct Bench {
    queue: Box<dyn Queue>,
    done: Receiver<Completion>,
    clock: Arc<dyn Clock>,
    /// The device's name.
    name: String,
    /// Whether the clock is the device's own, which stands still without events.
    is_modelled: bool,
}

impl Bench {
    /// Opens a queue with a number and a clock.
    ///
    /// # Errors
    /// The device opens none.
    pub fn open(device: &dyn Device, number: usize, clock: Arc<dyn Clock>) -> Result<Bench> {
        let (sender, done) = sync_channel(64);
        let queue = device.queue(number, clock.clone(), sender)?;
        let own = |c: Arc<dyn Clock>| std::ptr::addr_eq(Arc::as_ptr(&c), Arc::as_ptr(&clock));
        let (name, is_modelled) = (device.name().to_string(), device.clock().is_some_and(own));
        Ok(Bench { queue, done, clock, name, is_modelled })
    }

    /// Submits a list.
    ///
    /// # Errors
    /// The queue does not take it.
    pub fn submit(&mut self, list: CommandList) -> Result<()> {
        self.queue.submit(list)
    }

    /// Waits for the end of a list; modelled time passes meanwhile.
    ///
    /// # Errors
    /// The queue has ended.
    pub fn wait(&mut self) -> Result<Completion> {
        let gone = || Err(DeviceError::Gone(self.name.clone()));
        loop {
            if let Ok(done) = self.done.try_recv() {
                return Ok(done);
            }
            match self.clock.next_event() {
                Some(next) => self.clock.wait(next.saturating_sub(self.clock.now())),
                // In modelled time, nothing happens without an event.
                None if self.is_modelled => return gone(),
                None => match self.done.recv_timeout(PATIENCE) {
                    Ok(done) => return Ok(done),
                    Err(_) if self.queue.is_alive() => {}
                    Err(_) => return gone(),
                },
            }
        }
    }

    /// Waits for the end of a list. Returns the times of its tasks.
    ///
    /// # Errors
    /// A task failed, or the queue has ended.
    pub fn finish(&mut self) -> Result<Vec<TaskTime>> {
        let done = self.wait()?;
        done.outcome.map(|()| done.times)
    }

    /// Submits a list and waits for its end.
    ///
    /// # Errors
    /// Those of [`Bench::submit`] and [`Bench::finish`].
    pub fn run(&mut self, list: CommandList) -> Result<Vec<TaskTime>> {
        self.submit(list)?;
        self.finish()
    }

    /// Submits tasks as one list and waits for its end.
    ///
    /// # Errors
    /// Those of [`Bench::run`].
    pub fn run_all(&mut self, work: impl IntoIterator<Item = Work>) -> Result<()> {
        let tasks = work.into_iter().map(|work| Submission { tag: 0, work }).collect();
        self.run(CommandList { tasks, ..CommandList::default() }).map(drop)
    }
}
