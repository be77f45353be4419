//! What a virtual queue's machine runs: the tasks of command lists.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use troika_device::{
    CommandList, Completion, DeviceError, HeldClaim, Lost, Submission, TaskTime, Timelines,
    Waiting, Work,
};
use troika_time::{LaneWork, TaskCost, Told};

use crate::worker::{Prepared, Worker, decoding};

/// What runs on a virtual queue.
pub(crate) struct Lane {
    pub number: usize,
    pub done: SyncSender<Completion>,
    pub worker: Worker,
}

/// A value that a queue's timeline reaches.
pub(crate) struct Reached {
    timelines: Arc<Timelines>,
    value: u64,
}

impl Lane {
    /// The time until others know of a task's end.
    fn hand_over_ns(&self, waiting: Waiting, task: &Prepared) -> u64 {
        let cost = self.worker.limits.processor.hand_over;
        match waiting {
            Waiting::Poll => cost.predicted_ns,
            Waiting::Block if cost.blocking_copies => {
                let copying = task.written_bytes() as f64 / self.worker.rates.bandwidth;
                cost.blocking_ns.saturating_add(copying.ceil() as u64)
            }
            Waiting::Block => cost.blocking_ns,
        }
    }
}

impl LaneWork for Lane {
    type List = CommandList;
    type Task = Box<(Prepared, Vec<HeldClaim>)>;
    type Signal = Reached;
    type Error = DeviceError;

    fn tasks(&self, list: &CommandList) -> usize {
        list.tasks.len()
    }

    fn next_wait(&self, list: &CommandList, at: usize) -> usize {
        let waits = list.waits.iter().map(|w| w.task as usize).filter(|task| *task > at);
        waits.min().unwrap_or(list.tasks.len())
    }

    fn settled(&self, list: &CommandList, task: usize) -> Result<bool, DeviceError> {
        let Some(timelines) = &list.timelines else { return Ok(true) };
        for wait in list.waits.iter().filter(|w| w.task as usize == task) {
            if !timelines.has(wait.on).map_err(|Lost| DeviceError::Skipped)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn submitted_early(&self, list: &CommandList, task: usize) -> bool {
        let work = list.tasks.get(task).map(|t| &t.work);
        let decodes = matches!(work, Some(Work::Run(run)) if decoding(&run.forward));
        list.waiting == Waiting::Poll && decodes
    }

    fn begin(
        &mut self,
        list: &CommandList,
        task: usize,
    ) -> Result<(TaskCost, Box<(Prepared, Vec<HeldClaim>)>), DeviceError> {
        // A cancelled list does not start further tasks.
        if list.timelines.as_ref().is_some_and(|t| t.is_cancelled()) {
            return Err(DeviceError::Cancelled);
        }
        let work = &list.tasks[task].work;
        let prepared = self.worker.prepare(work)?;
        let claims = self.worker.claim(work, &prepared)?;
        Ok((prepared.need, Box::new((prepared, claims))))
    }

    fn end(
        &mut self,
        list: &mut CommandList,
        task: usize,
        running: Box<(Prepared, Vec<HeldClaim>)>,
        span: Range<u64>,
    ) -> Result<Told<Reached>, DeviceError> {
        let (prepared, claims) = *running;
        drop(claims);
        let Submission { tag, work } = &list.tasks[task];
        let computed = self.worker.compute(work, &prepared);
        if list.timed {
            let [start, end] = [span.start, span.end].map(Duration::from_nanos);
            let modelled = Some(end.saturating_sub(start));
            list.times.push(TaskTime { tag: *tag, start, end, modelled });
        }
        computed?;
        let signal = list.signals.iter().find(|s| s.task as usize == task);
        let reached = |timelines: &Arc<Timelines>| Some((timelines.clone(), signal?.value));
        let reached = list.timelines.as_ref().and_then(reached);
        Ok(Told {
            after_ns: self.hand_over_ns(list.waiting, &prepared),
            signal: reached.map(|(timelines, value)| Reached { timelines, value }),
            blocks: list.waiting == Waiting::Block,
        })
    }

    fn signal(&mut self, Reached { timelines, value }: Reached) {
        if let Some(own) = timelines.of(self.number) {
            own.signal(value);
        }
    }

    fn finish(&mut self, list: CommandList, outcome: Result<(), DeviceError>) {
        // Nobody listens any more when the scheduler is gone; then the queue is dropped soon.
        let _ = self.done.send(list.end(self.number, outcome));
    }
}
