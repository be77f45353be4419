//! The loop that keeps device queues fed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use troika_device::{Batch, Clock, Completion, Device, DeviceError, Queue};
use troika_trace::{Arg, Span, Tracer};

use super::{Policy, Ready, TaskGraph};
use crate::error::EngineError;

/// A device's queue as the scheduler sees it.
struct Lane {
    name: Arc<str>,
    queue: Box<dyn Queue>,
    depth: usize,
    in_flight: usize,
    ready: Vec<Ready>,
    /// Emptied batches, for reuse.
    spare: Vec<Batch>,
}

/// Runs task graphs on device queues.
pub struct Runner {
    lanes: Vec<Lane>,
    done: Receiver<Completion>,
    policy: Policy,
    tracer: Tracer,
    waits: Vec<u32>,
    flying: Flying,
}

impl Runner {
    /// Opens a queue on each device.
    ///
    /// # Errors
    /// What a device reports.
    pub fn new(
        devices: &[Arc<dyn Device>],
        policy: Policy,
        clock: &Arc<dyn Clock>,
        tracer: Tracer,
    ) -> Result<Runner, DeviceError> {
        let (sender, done) = channel();
        let lanes = devices
            .iter()
            .enumerate()
            .map(|(i, d)| {
                Ok(Lane {
                    name: d.name().into(),
                    queue: d.queue(i, clock.clone(), sender.clone())?,
                    depth: d.caps().queue_depth.max(1),
                    in_flight: 0,
                    ready: Vec::new(),
                    spare: Vec::new(),
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        Ok(Runner { lanes, done, policy, tracer, waits: Vec::new(), flying: Flying::default() })
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device; nothing is in flight any more when it is returned.
    pub fn run(&mut self, graph: &TaskGraph) -> Result<(), EngineError> {
        self.waits.clone_from(&graph.waits);
        self.lanes.iter_mut().for_each(|l| l.ready.clear());
        for (i, &w) in self.waits.iter().enumerate() {
            if w == 0 {
                make_ready(&mut self.lanes, graph, i as u32);
            }
        }
        let mut left = graph.len();
        let mut failure = None;
        while left > 0 {
            let mut done = None;
            if failure.is_none() {
                match self.dispatch(graph) {
                    Ok(completion) => done = completion,
                    Err(e) => failure = Some(e),
                }
            }
            if self.lanes.iter().all(|l| l.in_flight == 0) {
                return Err(failure.map_or(EngineError::Stuck(left), EngineError::Device));
            }
            match self.wait(graph, done) {
                Ok(n) => left -= n,
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        failure.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Gives every queue with room its next tasks. A queue without others beside it leaves this
    /// thread nothing to do but wait: it runs them here where it can, and returns the completion.
    fn dispatch(&mut self, graph: &TaskGraph) -> Result<Option<Completion>, DeviceError> {
        let alone = self.lanes.len() == 1;
        for index in 0..self.lanes.len() {
            while self.lanes[index].in_flight < self.lanes[index].depth {
                let mut batch = self.lanes[index].spare.pop().unwrap_or_default();
                let mut members = self.flying.pop_spare();
                self.fill(index, graph, &mut batch, &mut members);
                if batch.tasks.is_empty() {
                    self.lanes[index].spare.push(batch);
                    self.flying.put_spare(members);
                    break;
                }
                batch.timed = self.tracer.enabled();
                batch.id = self.flying.claim(members);
                if alone && self.lanes[index].in_flight == 0 {
                    match self.lanes[index].queue.run_here(batch) {
                        Ok(completion) => {
                            self.lanes[index].in_flight += 1;
                            return Ok(Some(completion));
                        }
                        Err(back) => batch = back,
                    }
                }
                self.lanes[index].queue.submit(batch)?;
                self.lanes[index].in_flight += 1;
            }
        }
        Ok(None)
    }

    /// Moves ready tasks into a batch. A queue runs in order, so a task whose only open
    /// dependencies are on the same queue is as good as ready.
    fn fill(&mut self, index: usize, graph: &TaskGraph, batch: &mut Batch, members: &mut Vec<u32>) {
        while let Some(at) = self.policy.pick(&self.lanes[index].ready) {
            let task = self.lanes[index].ready.swap_remove(at).task;
            batch.tasks.push(graph.tasks[task as usize].submission.clone());
            members.push(task);
            for &d in &graph.dependents[task as usize] {
                if graph.tasks[d as usize].device == index {
                    self.release(graph, d);
                }
            }
            if !self.policy.batches() {
                break;
            }
        }
    }

    /// One dependency of a task is met.
    fn release(&mut self, graph: &TaskGraph, task: u32) {
        let w = &mut self.waits[task as usize];
        *w -= 1;
        if *w == 0 {
            make_ready(&mut self.lanes, graph, task);
        }
    }

    /// Waits for a batch, if none is done yet. Returns how many tasks it held.
    fn wait(&mut self, graph: &TaskGraph, done: Option<Completion>) -> Result<usize, DeviceError> {
        let Ok(completion) = done.map_or_else(|| self.done.recv(), Ok) else {
            self.lanes.iter_mut().for_each(|l| l.in_flight = 0);
            let names: Vec<&str> = self.lanes.iter().map(|l| &*l.name).collect();
            return Err(DeviceError::Gone(names.join(", ")));
        };
        let index = completion.queue;
        self.lanes[index].in_flight -= 1;
        let members = self.flying.land(completion.batch.id);
        self.lanes[index].spare.push(completion.batch);
        for t in &completion.times {
            self.trace(graph, index, t);
        }
        completion.outcome?;
        for &task in &members {
            for &d in &graph.dependents[task as usize] {
                if graph.tasks[d as usize].device != index {
                    self.release(graph, d);
                }
            }
        }
        let n = members.len();
        self.flying.put_spare(members);
        Ok(n)
    }

    fn trace(&self, graph: &TaskGraph, lane: usize, t: &troika_device::TaskTime) {
        let task = &graph.tasks[t.tag as usize];
        self.tracer.record(Span {
            name: task.name.to_string().into(),
            lane: self.lanes[lane].name.clone(),
            start: t.start,
            end: t.end,
            args: vec![
                ("chunk", Arg::Int(task.chunk.into())),
                ("rows", Arg::Int(task.submission.rows as u64)),
            ],
        });
    }
}

/// Which tasks each batch in flight holds, by batch id; lists are used again.
#[derive(Default)]
struct Flying {
    batches: Vec<Option<Vec<u32>>>,
    spare: Vec<Vec<u32>>,
}

impl Flying {
    fn pop_spare(&mut self) -> Vec<u32> {
        self.spare.pop().unwrap_or_default()
    }

    fn put_spare(&mut self, mut list: Vec<u32>) {
        list.clear();
        self.spare.push(list);
    }

    fn claim(&mut self, members: Vec<u32>) -> u64 {
        let id = self.batches.iter().position(Option::is_none).unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() - 1
        });
        self.batches[id] = Some(members);
        id as u64
    }

    fn land(&mut self, id: u64) -> Vec<u32> {
        self.batches.get_mut(id as usize).and_then(Option::take).unwrap_or_default()
    }
}

fn make_ready(lanes: &mut [Lane], graph: &TaskGraph, task: u32) {
    let t = &graph.tasks[task as usize];
    lanes[t.device].ready.push(Ready { task, chunk: t.chunk });
}
