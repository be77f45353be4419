//! A running graph.

use std::sync::Arc;

use troika_device::{DeviceError, Timelines};
use troika_plan::Policy;
use troika_program::schedule::{Costs, ListId, State};

use super::TaskGraph;
use crate::error::EngineError;

/// Number of a running graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(super) usize);

/// A slot for a running graph. Graphs that run at the same time use different jobs; a job keeps its
/// memory from one graph to the next.
pub(super) struct GraphJob {
    /// `None`: the job is free.
    pub running: Option<Arc<TaskGraph>>,
    /// The job and its list by which this graph became known; the list is done when the graph is.
    pub part_of: Option<(usize, ListId)>,
    /// Number of running graphs that became known by this one.
    pub grown: usize,
    /// Its queues get all lists at once and wait for each other by themselves.
    pub in_order: bool,
    /// Whether all lists were handed over, where it runs in order.
    pub submitted: bool,
    /// Other graphs go first, and tasks are queued shortly before they run.
    pub background: bool,
    pub state: State,
    pub costs: Costs,
    /// Used by this job alone, so that losses and cancellations do not affect other jobs.
    pub timelines: Arc<Timelines>,
    /// The highest value of the timelines when everything before was done.
    pub reached: u64,
    /// Number of its lists in each queue.
    pub in_flight: Vec<usize>,
    pub failure: Option<EngineError>,
    /// Chunks of the last graph whose tasks did not all run.
    pub left_out: Vec<u32>,
}

impl GraphJob {
    pub fn new(policy: Policy, critical: usize, lanes: usize) -> GraphJob {
        GraphJob {
            running: None,
            part_of: None,
            grown: 0,
            in_order: false,
            submitted: false,
            background: false,
            state: State::new(policy, lanes),
            costs: Costs { task_ns: Vec::new(), critical },
            timelines: Arc::new(Timelines::new(lanes)),
            reached: 0,
            in_flight: vec![0; lanes],
            failure: None,
            left_out: Vec::new(),
        }
    }

    pub fn begin(&mut self, graph: Arc<TaskGraph>) {
        self.submitted = false;
        self.failure = None;
        if !self.in_order {
            self.state.start(&graph.schedule.dag);
        }
        self.running = Some(graph);
    }

    /// Whether any queue holds its lists, or lists of graphs that became known by it.
    pub fn is_in_flight(&self) -> bool {
        self.grown > 0 || self.in_flight.iter().any(|n| *n > 0)
    }

    /// Whether it has nothing more to hand over.
    pub fn is_handed_over(&self) -> bool {
        self.failure.is_some()
            || (if self.in_order { self.submitted } else { self.state.left() == 0 })
    }

    /// Notes a failure. Keeps the first one, but replaces a mere consequence by its cause.
    pub fn fail(&mut self, next: EngineError) {
        match &self.failure {
            Some(known) if !matches!(known, EngineError::Device(DeviceError::Skipped)) => {}
            _ => self.failure = Some(next),
        }
    }

    /// Notes that a queue will not signal what it was to signal.
    pub fn lose(&self, lane: usize) {
        if let Some(timeline) = self.timelines.of(lane) {
            timeline.lose();
        }
    }

    /// Frees the job for the next graph. Nothing may be in flight.
    pub fn end(&mut self) -> Result<(), EngineError> {
        let running = self.running.take();
        self.left_out.clear();
        let Some(failure) = self.failure.take() else {
            return Ok(());
        };
        for (task, t) in running.iter().flat_map(|graph| graph.tasks.iter().enumerate()) {
            // With a fixed order, finished tasks are not tracked.
            let ran = !self.in_order && self.state.is_complete(task as u32);
            if !ran && !self.left_out.contains(&t.chunk) {
                self.left_out.push(t.chunk);
            }
        }
        // Queues of the next graph must not be stopped by this one.
        self.timelines.reset();
        if matches!(failure, EngineError::Device(DeviceError::Cancelled)) {
            self.timelines.take_cancelled();
        }
        Err(failure)
    }
}
