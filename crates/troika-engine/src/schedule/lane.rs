//! Device queues as the scheduler sees them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use troika_device::{Clock, CommandList, Completion, Device, DeviceError, Queue};
use troika_plan::Policy;
use troika_program::schedule::lists_in_flight;

/// A device's queue.
pub(super) struct Lane {
    pub name: Arc<str>,
    pub queue: Box<dyn Queue>,
    pub depth: usize,
    /// Whether the queue can wait for others by itself.
    pub waits: bool,
    /// Whether it runs host functions.
    pub host: bool,
    /// Number of its lists in flight, of all jobs.
    pub in_flight: usize,
    /// Emptied lists, for reuse.
    pub spare: Vec<CommandList>,
}

impl Lane {
    /// Whether it takes another list.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.depth
    }
}

/// After this time without a report, queues with lists in flight are checked for being alive.
const PATIENCE: Duration = Duration::from_secs(1);

/// All queues, and the channel of their reports.
pub(super) struct Lanes {
    pub all: Vec<Lane>,
    done: Receiver<Completion>,
    clock: Arc<dyn Clock>,
}

/// Queues that will not report their lists in flight.
pub(super) enum LostLists {
    /// Those of one queue.
    Of(usize),
    /// Of all.
    All,
}

impl Lanes {
    /// Opens a queue on each device.
    ///
    /// # Errors
    /// What a device reports.
    pub fn open(
        devices: &[Arc<dyn Device>],
        policy: Policy,
        clock: &Arc<dyn Clock>,
    ) -> Result<Lanes, DeviceError> {
        let depth = |d: &Arc<dyn Device>| lists_in_flight(policy, d.caps().queue_depth);
        // Each queue also has room for the answer to a check.
        let (sender, done) = sync_channel(devices.iter().map(|d| depth(d) + 1).sum());
        let all = devices.iter().enumerate().map(|(i, d)| {
            Ok(Lane {
                name: d.name().into(),
                queue: d.queue(i, clock.clone(), sender.clone())?,
                depth: depth(d),
                waits: d.caps().queue_waits,
                host: d.caps().host_tasks,
                in_flight: 0,
                spare: Vec::new(),
            })
        });
        Ok(Lanes { all: all.collect::<Result<_, DeviceError>>()?, done, clock: clock.clone() })
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether no queue has lists in flight.
    pub fn idle(&self) -> bool {
        self.all.iter().all(|l| l.in_flight == 0)
    }

    /// Waits for the next report of a queue.
    ///
    /// # Errors
    /// A queue will not report any more.
    pub fn hear(&mut self) -> Result<Completion, LostLists> {
        // Virtual time passes here, and virtual devices work. A list may be done at once or after
        // the next event; without further events, waiting is in vain.
        let mut done = self.done.try_recv().ok();
        while done.is_none() {
            let Some(next) = self.clock.next_event() else { break };
            self.clock.wait(next.saturating_sub(self.clock.now()));
            done = self.done.try_recv().ok();
        }
        if let Some(completion) = done {
            return Ok(completion);
        }
        // A queue whose thread died reports nothing, while others keep the channel open. After a
        // time without reports, the queues are checked.
        loop {
            match self.done.recv_timeout(PATIENCE) {
                Ok(completion) => return Ok(completion),
                Err(RecvTimeoutError::Timeout) => {
                    let dead = |l: &Lane| l.in_flight > 0 && !l.queue.is_alive();
                    let Some(index) = self.all.iter().position(dead) else { continue };
                    // Anything it reported before it died is there by now.
                    return self.done.try_recv().map_err(|_| LostLists::Of(index));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(LostLists::All),
            }
        }
    }
}
