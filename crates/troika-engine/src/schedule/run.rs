//! The loop that keeps device queues fed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use troika_device::{
    Clock, CommandList, Completion, Device, DeviceError, ExecutableId, Queue, Submission, TaskTime,
    Work,
};
use troika_plan::Policy;
use troika_trace::{Arg, Span, Tracer};

use super::{Costs, State, Task, TaskGraph};
use crate::error::EngineError;

/// A device's queue as the scheduler sees it.
struct Lane {
    name: Arc<str>,
    queue: Box<dyn Queue>,
    depth: usize,
    in_flight: usize,
    /// Emptied lists, for reuse.
    spare: Vec<CommandList>,
}

/// Lists in a queue at most where the policy decides late: one runs, the next one waits, so that
/// the device does not idle while the scheduler is told.
pub(super) const LATE_DEPTH: usize = 2;

/// Runs task graphs on device queues.
pub struct Runner {
    lanes: Vec<Lane>,
    done: Receiver<Completion>,
    state: State,
    policy: Policy,
    tracer: Tracer,
    costs: Costs,
    learnt: HashMap<CostKey, u64>,
    clock: Arc<dyn Clock>,
}

/// Tasks that cost the same: device, executable and rows.
type CostKey = (usize, ExecutableId, usize);

/// `None` for copies.
fn cost_key(task: &Task) -> Option<CostKey> {
    match &task.work {
        Work::Run(run) => Some((task.device, run.executable.id(), run.rows)),
        Work::Copy(_) => None,
    }
}

impl Runner {
    /// Opens a queue on each device. Where the policy asks which device must not stall, that is
    /// `critical`.
    ///
    /// # Errors
    /// What a device reports.
    pub fn new(
        devices: &[Arc<dyn Device>],
        (policy, critical): (Policy, usize),
        clock: &Arc<dyn Clock>,
        tracer: Tracer,
    ) -> Result<Runner, DeviceError> {
        let (sender, done) = channel();
        let most = if policy == Policy::OutOfOrder { LATE_DEPTH } else { usize::MAX };
        let lanes: Vec<Lane> = devices
            .iter()
            .enumerate()
            .map(|(i, d)| {
                Ok(Lane {
                    name: d.name().into(),
                    queue: d.queue(i, clock.clone(), sender.clone())?,
                    depth: d.caps().queue_depth.clamp(1, most),
                    in_flight: 0,
                    spare: Vec::new(),
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        let state = State::new(policy, lanes.len());
        let costs = Costs { task_ns: Vec::new(), critical };
        Ok(Runner {
            lanes,
            done,
            state,
            policy,
            tracer,
            costs,
            learnt: HashMap::new(),
            clock: clock.clone(),
        })
    }

    /// Runs a graph to its end.
    ///
    /// # Errors
    /// The first failure of a device; nothing is in flight any more when it is returned.
    pub fn run(&mut self, graph: &TaskGraph) -> Result<(), EngineError> {
        self.state.start(&graph.dag);
        if self.policy == Policy::OutOfOrder {
            let known = |key| self.learnt.get(&key).copied();
            let cost = |t: &Task| cost_key(t).and_then(known).unwrap_or(0);
            self.costs.task_ns.clear();
            self.costs.task_ns.extend(graph.tasks.iter().map(cost));
        }
        let mut failure = None;
        while self.state.left() > 0 {
            let mut done = None;
            if failure.is_none() {
                match self.dispatch(graph) {
                    Ok(completion) => done = completion,
                    Err(e) => failure = Some(e),
                }
            }
            if self.lanes.iter().all(|l| l.in_flight == 0) {
                let stuck = || EngineError::Stuck(self.state.left());
                return Err(failure.map_or_else(stuck, EngineError::Device));
            }
            if let Err(e) = self.wait(graph, done) {
                failure = failure.or(Some(e));
            }
        }
        failure.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Gives every queue with room its next tasks. Where all tasks are of one device, this thread
    /// has nothing to do but wait: it runs them itself where it can, and returns the completion.
    fn dispatch(&mut self, graph: &TaskGraph) -> Result<Option<Completion>, DeviceError> {
        let alone = graph.dag.only_device().is_some();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            while lane.in_flight < lane.depth {
                let Some(id) = self.state.take(&graph.dag, &self.costs, index) else { break };
                let mut list = lane.spare.pop().unwrap_or_default();
                let tasks = self.state.tasks(id).iter();
                let submission =
                    |&tag: &u32| Submission { tag, work: graph.tasks[tag as usize].work.clone() };
                list.tasks.extend(tasks.map(submission));
                list.timed = self.tracer.enabled() || self.policy == Policy::OutOfOrder;
                list.id = id as u64;
                if alone && lane.in_flight == 0 {
                    match lane.queue.run_here(list) {
                        Ok(completion) => {
                            lane.in_flight += 1;
                            return Ok(Some(completion));
                        }
                        Err(back) => list = back,
                    }
                }
                lane.queue.submit(list)?;
                lane.in_flight += 1;
            }
        }
        Ok(None)
    }

    /// Waits for a list, if none is done yet.
    fn wait(&mut self, graph: &TaskGraph, done: Option<Completion>) -> Result<(), DeviceError> {
        // Virtual time passes here, and with it what virtual devices do: a list can be done at once
        // or by the next event, and when nothing is to happen any more, waiting is in vain.
        let mut done = done.or_else(|| self.done.try_recv().ok());
        while done.is_none() {
            let Some(next) = self.clock.next_event() else { break };
            self.clock.wait(next.saturating_sub(self.clock.now()));
            done = self.done.try_recv().ok();
        }
        let Ok(completion) = done.map_or_else(|| self.done.recv(), Ok) else {
            self.lanes.iter_mut().for_each(|l| l.in_flight = 0);
            let names: Vec<&str> = self.lanes.iter().map(|l| &*l.name).collect();
            return Err(DeviceError::Gone(names.join(", ")));
        };
        let lane = &mut self.lanes[completion.queue];
        lane.in_flight -= 1;
        let list = completion.list.id as usize;
        lane.spare.push(completion.list);
        for t in &completion.times {
            self.note(graph, completion.queue, t);
        }
        completion.outcome?;
        self.state.complete(&graph.dag, list);
        Ok(())
    }

    /// Learns what a task costs, and records its span.
    fn note(&mut self, graph: &TaskGraph, lane: usize, t: &TaskTime) {
        let task = &graph.tasks[t.tag as usize];
        if let Some(key) = cost_key(task).filter(|_| self.policy == Policy::OutOfOrder) {
            let took = (t.end - t.start).as_nanos() as u64;
            let known = self.learnt.entry(key).or_insert(took);
            // An average that follows changes of load within some ten runs.
            *known = (*known * 7 + took) / 8;
        }
        if !self.tracer.enabled() {
            return;
        }
        let rows = match &task.work {
            Work::Run(run) => run.rows,
            Work::Copy(copy) => copy.to.rect().rows(),
        };
        self.tracer.record(Span {
            name: task.name.to_string().into(),
            lane: self.lanes[lane].name.clone(),
            start: t.start,
            end: t.end,
            args: [("chunk", Arg::Int(task.chunk.into())), ("rows", Arg::Int(rows as u64))]
                .into_iter()
                .chain(t.modelled.map(|m| ("modelled_us", Arg::Int(m.as_micros() as u64))))
                .collect(),
        });
    }
}
