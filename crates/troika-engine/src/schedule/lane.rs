//! Device queues as the scheduler sees them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use troika_device::{Clock, CommandList, Completion, Device, DeviceError, Queue};
use troika_plan::Policy;

/// A device's queue.
pub(super) struct Lane {
    pub name: Arc<str>,
    pub queue: Box<dyn Queue>,
    pub depth: usize,
    /// Whether the queue waits for others by itself.
    pub waits: bool,
    /// Whether it runs functions of the host.
    pub host: bool,
    /// Lists of all jobs that it has.
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

/// Lists in a queue at most where what follows is decided late: one runs, the next one waits, so
/// that the device does not idle while the scheduler is told.
pub(super) const LATE_DEPTH: usize = 2;

/// Most lists in a queue, whatever a device says.
const MOST_DEPTH: usize = 1024;

/// When nothing is reported for so long, queues with lists in flight are looked at whether they are
/// alive.
const PATIENCE: Duration = Duration::from_secs(1);

/// All queues, and what they report.
pub(super) struct Lanes {
    pub all: Vec<Lane>,
    done: Receiver<Completion>,
    clock: Arc<dyn Clock>,
}

/// Queues that will not report what they have in flight.
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
        let most = if policy == Policy::OutOfOrder { LATE_DEPTH } else { MOST_DEPTH };
        let depth = |d: &Arc<dyn Device>| d.caps().queue_depth.clamp(1, most);
        // Of each queue also the answer to a question.
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

    /// The time.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether no queue has anything.
    pub fn idle(&self) -> bool {
        self.all.iter().all(|l| l.in_flight == 0)
    }

    /// Waits for what a queue reports.
    ///
    /// # Errors
    /// A queue that reports nothing any more.
    pub fn hear(&mut self) -> Result<Completion, LostLists> {
        // Virtual time passes here, and with it what virtual devices do: a list can be done at once
        // or by the next event, and when nothing is to happen any more, waiting is in vain.
        let mut done = self.done.try_recv().ok();
        while done.is_none() {
            let Some(next) = self.clock.next_event() else { break };
            self.clock.wait(next.saturating_sub(self.clock.now()));
            done = self.done.try_recv().ok();
        }
        if let Some(completion) = done {
            return Ok(completion);
        }
        // A queue whose thread died reports nothing, and others may have senders of the same
        // channel: when nothing is heard for a while, queues are looked at.
        loop {
            match self.done.recv_timeout(PATIENCE) {
                Ok(completion) => return Ok(completion),
                Err(RecvTimeoutError::Timeout) => {
                    let dead = |l: &Lane| l.in_flight > 0 && !l.queue.is_alive();
                    let Some(index) = self.all.iter().position(dead) else { continue };
                    // What it reported before it died is there by now.
                    return self.done.try_recv().map_err(|_| LostLists::Of(index));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(LostLists::All),
            }
        }
    }
}
