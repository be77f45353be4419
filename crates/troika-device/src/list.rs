//! How a queue with its own thread runs a command list.

use std::sync::Arc;

use crate::clock::Clock;
use crate::device::{CommandList, Completion, Submission, TaskTime};
use crate::error::DeviceError;
use crate::timeline::{Lost, Signal, Wait};
use crate::wait_times::WaitTimes;

/// What the thread of a queue runs lists with.
pub struct ListRunner {
    pub(crate) queue: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) learnt: WaitTimes,
}

impl ListRunner {
    /// Runs a list: waits before tasks, runs each (and passes the next one), and signals finished
    /// ones. After a failure or a lost wait, it skips the rest and tells the waiting queues.
    pub fn run(
        &mut self,
        mut list: CommandList,
        mut task: impl FnMut(&Submission, Option<&Submission>) -> Result<(), DeviceError>,
    ) -> Completion {
        let queue = self.queue;
        let mut times = std::mem::take(&mut list.times);
        times.clear();
        let mut outcome = Ok(());
        let (mut waits, mut signals) = (list.waits.as_slice(), list.signals.as_slice());
        for (i, submission) in list.tasks.iter().enumerate() {
            outcome = self.begin(&list, i, &mut waits);
            if outcome.is_err() {
                break;
            }
            let start = list.timed.then(|| self.clock.now());
            outcome = task(submission, list.tasks.get(i + 1));
            if let Some(start) = start {
                let (tag, end) = (submission.tag, self.clock.now());
                times.push(TaskTime { tag, start, end, modelled: None });
            }
            if outcome.is_err() {
                break;
            }
            list.signal(queue, i, &mut signals);
        }
        list.times = times;
        list.end(queue, outcome)
    }

    /// Waits until a task may begin.
    fn begin(
        &mut self,
        list: &CommandList,
        i: usize,
        waits: &mut &[Wait],
    ) -> Result<(), DeviceError> {
        let Some(timelines) = &list.timelines else { return Ok(()) };
        while let [wait, rest @ ..] = waits
            && wait.task as usize <= i
        {
            let (task, clock) = (&list.tasks[i], &*self.clock);
            let found = self.learnt.wait(timelines, wait.on, list.waiting, task, clock);
            found.map_err(|Lost| DeviceError::Skipped)?;
            *waits = rest;
        }
        if timelines.is_cancelled() { Err(DeviceError::Cancelled) } else { Ok(()) }
    }
}

impl CommandList {
    /// Reports the list's end on a queue. If it failed, others no longer wait for it.
    pub fn end(mut self, queue: usize, outcome: Result<(), DeviceError>) -> Completion {
        let timelines = self.timelines.take();
        if let Some(own) = timelines.as_ref().and_then(|t| t.of(queue))
            && outcome.is_err()
        {
            own.lose();
        }
        self.tasks.clear();
        self.waits.clear();
        self.signals.clear();
        let times = std::mem::take(&mut self.times);
        Completion { queue, list: self, outcome, times }
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
