//! How a queue that runs on a thread goes through a command list.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::{CommandList, Completion, Submission, TaskTime, Work};
use crate::error::DeviceError;
use crate::executable::ExecutableId;
use crate::timeline::{Lost, Point, Signal, Timelines, Wait, Waiting};

impl CommandList {
    /// Goes through the list, for a queue that runs its tasks on a thread: waits before tasks,
    /// runs each (told which one is next), and signals those that are done. When one fails, or
    /// waits for what will not happen, the rest is left out, and whoever waits for it is told.
    pub fn run(
        mut self,
        queue: usize,
        (clock, learnt): (&dyn Clock, &mut WaitTimes),
        mut task: impl FnMut(&Submission, Option<&Submission>) -> Result<(), DeviceError>,
    ) -> Completion {
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        let mut outcome = Ok(());
        let (mut waits, mut signals) = (self.waits.as_slice(), self.signals.as_slice());
        for (i, submission) in self.tasks.iter().enumerate() {
            outcome = self.begin(i, submission, &mut waits, (clock, learnt));
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

    /// Waits for all that a task waits for.
    fn begin(
        &self,
        i: usize,
        task: &Submission,
        waits: &mut &[Wait],
        (clock, learnt): (&dyn Clock, &mut WaitTimes),
    ) -> Result<(), DeviceError> {
        let Some(timelines) = &self.timelines else { return Ok(()) };
        while let [wait, rest @ ..] = waits
            && wait.task as usize <= i
        {
            let found = learnt.wait(timelines, (wait.on, self.waiting), task, clock);
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

/// How long tasks had to wait for other queues, by executable: the layers of a model do the same,
/// so that a wait is about as long as the one before it.
#[derive(Debug)]
pub struct WaitTimes {
    learnt: HashMap<ExecutableId, Duration>,
    /// Waits that are to be slept through.
    sleeps: u32,
}

/// Waits that are expected to be shorter are polled from the start: the system does not wake a
/// thread more exactly than that.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);
/// The system wakes a thread this much late, and the wait may be shorter than the last.
const MARGIN: Duration = Duration::from_micros(120);
/// For how long a thread looks before it sleeps: being woken takes some 50 us and more, and a piece
/// of a decoded token's layer some 300.
const LOOKS_FOR: Duration = Duration::from_micros(1000);
/// From when on it lets others run between looks.
const YIELDS_AFTER: Duration = Duration::from_micros(50);
/// Waits that are slept through after one was looked for in vain. What takes longer than expected
/// has most often lost its core to others; then looking takes time from all, and who sleeps gets a
/// core sooner than who has used up its share.
const SLEEPS: u32 = 4;
/// Looks between two questions for the time.
const LOOKS: u32 = 32;
/// Questions for the time at most.
const MOST_QUESTIONS: u32 = 10_000;
/// Executables whose times are kept.
const MOST: usize = 1024;

impl Default for WaitTimes {
    /// Nothing learnt, with room for all there is to learn: a wait takes no memory.
    fn default() -> WaitTimes {
        WaitTimes { learnt: HashMap::with_capacity(MOST), sleeps: 0 }
    }
}

impl WaitTimes {
    fn wait(
        &mut self,
        timelines: &Timelines,
        (point, waiting): (Point, Waiting),
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
            // When it was reached is not known then; it was before the end of the sleep.
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

/// Looks for a point. Returns whether it is reached.
fn poll(timelines: &Timelines, point: Point, clock: &dyn Clock) -> Result<bool, Lost> {
    let start = clock.now();
    // Counted, too: a clock may stand still.
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
