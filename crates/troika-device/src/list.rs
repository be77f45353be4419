//! How a queue with its own thread runs a command list.

use crate::clock::Clock;
use crate::device::{CommandList, Completion, Submission, TaskTime};
use crate::error::DeviceError;
use crate::timeline::{Lost, Signal, Wait};
use crate::wait_times::WaitTimes;

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
