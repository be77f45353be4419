//! Tasks and their graph.

use std::sync::Arc;

use troika_device::{Step, Submission};

use super::HazardTracker;

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
    /// Tasks that wait for each task.
    pub(super) dependents: Vec<Vec<u32>>,
    /// How many tasks each waits for.
    pub(super) waits: Vec<u32>,
}

impl TaskGraph {
    /// Computes the dependencies from the views tasks are bound to.
    pub fn new(mut tasks: Vec<Task>) -> TaskGraph {
        let mut hazards = HazardTracker::new();
        let mut dependents = vec![Vec::new(); tasks.len()];
        let mut waits = Vec::with_capacity(tasks.len());
        for (i, task) in tasks.iter_mut().enumerate() {
            task.submission.tag = i as u32;
            let deps = hazards.add(i as u32, &task.submission.bindings, &task.submission.step);
            waits.push(deps.len() as u32);
            deps.iter().for_each(|&d| dependents[d as usize].push(i as u32));
        }
        TaskGraph { tasks, dependents, waits }
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Points all tasks at another step of as many rows, so that a graph made once serves every
    /// decoded token.
    pub fn set_step(&mut self, step: &Arc<Step>) {
        for task in &mut self.tasks {
            task.submission.step = step.clone();
        }
    }
}
