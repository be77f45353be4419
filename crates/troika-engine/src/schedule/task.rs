//! Tasks and their graph.

use std::sync::Arc;

use troika_device::{ForwardBatch, Submission};

use super::{Dag, HazardTracker};

/// A run of a segment for a chunk of rows, on one device.
#[derive(Clone, Debug)]
pub struct Task {
    /// Index of the device (queue).
    pub device: usize,
    /// For traces.
    pub name: Arc<str>,
    /// Which chunk.
    pub chunk: u32,
    /// What goes to the queue; its tag is set by the graph.
    pub submission: Submission,
}

/// Tasks in program order with their dependencies.
#[derive(Debug, Default)]
pub struct TaskGraph {
    pub(super) tasks: Vec<Task>,
    pub(super) dag: Dag,
}

impl TaskGraph {
    /// Computes the dependencies from the views tasks are bound to.
    pub fn new(mut tasks: Vec<Task>) -> TaskGraph {
        let mut hazards = HazardTracker::new();
        let mut waits_for = Vec::with_capacity(tasks.len());
        for (i, task) in tasks.iter_mut().enumerate() {
            task.submission.tag = i as u32;
            let s = &task.submission;
            waits_for.push(hazards.add(i as u32, &s.bindings, &s.forward).to_vec());
        }
        let dag = Dag::new(tasks.iter().map(|t| t.device).collect(), &waits_for);
        TaskGraph { tasks, dag }
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Points all tasks at another forward batch of as many rows, so that a graph made once serves
    /// every decoded token.
    pub fn set_forward_batch(&mut self, forward: &Arc<ForwardBatch>) {
        for task in &mut self.tasks {
            task.submission.forward = forward.clone();
        }
    }
}
