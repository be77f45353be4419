//! How a queue with its own thread runs a command list.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::{CommandList, Completion, Submission, TaskTime, Work};
use crate::error::DeviceError;
use crate::executable::ExecutableId;
use crate::timeline::{Lost, Point, Signal, Timelines, Wait, Waiting};

impl CommandList {
    /// Runs the list on the queue's thread: waits before tasks, runs each (and passes the index of
    /// the next), and signals finished ones. After a failure or a lost wait, it skips the rest and
    /// tells the waiting queues.
    pub fn run(
        mut self,
        queue: usize,
        clock: &dyn Clock,
        learnt: &mut WaitTimes,
        mut task: impl FnMut(&Submission, Option<&Submission>) -> Result<(), DeviceError>,
    ) -> Completion {
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        let mut outcome = Ok(());
        let (mut waits, mut signals) = (self.waits.as_slice(), self.signals.as_slice());
        for (i, submission) in self.tasks.iter().enumerate() {
            outcome = self.begin(i, submission, &mut waits, clock, learnt);
            if outcome.is_err() {
                break;
            }
            let start = self.timed.then(|| clock.now());
            outcome = task(submission, self.tasks.get(i + 1));
            if let Some(start) = start {
                times.push(TaskTime {
                    tag: submission.tag,
                    start,
                    end: clock.now(),
                    modelled: None,
                });
            }
            if outcome.is_err() {
                break;
            }
            self.signal(queue, i, &mut signals);
        }
        if let Some(own) = self.timelines.as_ref().and_then(|t| t.of(queue))
            && outcome.is_err()
        {
            own.lose();
        }
        self.tasks.clear();
        self.waits.clear();
        self.signals.clear();
        self.timelines = None;
        Completion { queue, list: self, outcome, times }
    }

    /// Waits until a task may begin.
    fn begin(
        &self,
        i: usize,
        task: &Submission,
        waits: &mut &[Wait],
        clock: &dyn Clock,
        learnt: &mut WaitTimes,
    ) -> Result<(), DeviceError> {
        let Some(timelines) = &self.timelines else { return Ok(()) };
        while let [wait, rest @ ..] = waits
            && wait.task as usize <= i
        {
            let found = learnt.wait(timelines, wait.on, self.waiting, task, clock);
            found.map_err(|Lost| DeviceError::Skipped)?;
            *waits = rest;
        }
        if timelines.is_cancelled() { Err(DeviceError::Cancelled) } else { Ok(()) }
    }

    fn signal(&self, queue: usize, i: usize, signals: &mut &[Signal]) {
        while let [signal, rest @ ..] = signals
            && signal.task as usize <= i
        {
            if let Some(own) = self.timelines.as_ref().and_then(|t| t.of(queue)) {
                own.signal(signal.value);
            }
            *signals = rest;
        }
    }
}

/// How long tasks waited for other queues, by executable. The layers of a model are alike, so a
/// wait is usually about as long as the one before.
#[derive(Debug)]
pub struct WaitTimes {
    learnt: HashMap<ExecutableId, Duration>,
    /// Number of further waits that sleep without polling.
    sleeps: u32,
}

/// Shorter waits are polled from the start, since the system does not wake threads more exactly.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);
/// The system wakes a thread this much late, and the wait may be shorter than the last.
const MARGIN: Duration = Duration::from_micros(120);
/// How long a thread polls before it sleeps. Waking takes 50 us or more; a piece of a decoded
/// token's layer takes about 300 us.
const LOOKS_FOR: Duration = Duration::from_micros(1000);
/// When polling starts to yield to other threads.
const YIELDS_AFTER: Duration = Duration::from_micros(50);
/// Waits that sleep after polling timed out. A late task has usually lost its core to others: then
/// polling slows down all, and a sleeping thread gets a core sooner than one that used up its
/// share.
const SLEEPS: u32 = 4;
/// Polls between two readings of the clock.
const LOOKS: u32 = 32;
/// The most readings of the clock.
const MOST_QUESTIONS: u32 = 10_000;
/// Number of executables whose times are kept.
const MOST: usize = 1024;

impl Default for WaitTimes {
    /// Allocates everything now, so that waits need no memory.
    fn default() -> WaitTimes {
        WaitTimes { learnt: HashMap::with_capacity(MOST), sleeps: 0 }
    }
}

impl WaitTimes {
    fn wait(
        &mut self,
        timelines: &Timelines,
        point: Point,
        waiting: Waiting,
        task: &Submission,
        clock: &dyn Clock,
    ) -> Result<(), Lost> {
        if timelines.has(point)? {
            return Ok(());
        }
        let Work::Run(run) = &task.work else { return timelines.wait(point) };
        if waiting == Waiting::Block || self.sleeps > 0 {
            self.sleeps = self.sleeps.saturating_sub(1);
            return timelines.wait(point);
        }
        let start = clock.now();
        let known = self.learnt.get(&run.weights.executable().id()).copied().unwrap_or_default();
        let mut took = None;
        if known > WORTH_SLEEPING {
            clock.wait(known - MARGIN);
            // When exactly it was reached is unknown, but it was during the sleep.
            took = timelines.has(point)?.then_some(known / 2);
        }
        if !poll(timelines, point, clock)? {
            self.sleeps = SLEEPS;
            timelines.wait(point)?;
        }
        let took = took.unwrap_or_else(|| clock.now().saturating_sub(start));
        if self.learnt.len() >= MOST {
            self.learnt.clear();
        }
        self.learnt.insert(run.weights.executable().id(), (known * 3 + took) / 4);
        Ok(())
    }
}

/// Polls a point. Returns whether it is reached.
fn poll(timelines: &Timelines, point: Point, clock: &dyn Clock) -> Result<bool, Lost> {
    let start = clock.now();
    // Also limited by count, since a clock may stand still.
    for _ in 0..MOST_QUESTIONS {
        for _ in 0..LOOKS {
            if timelines.has(point)? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        match clock.now().saturating_sub(start) {
            looked if looked > LOOKS_FOR => break,
            looked if looked > YIELDS_AFTER => std::thread::yield_now(),
            _ => {}
        }
    }
    Ok(false)
}
