//! Tasks and their graph.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{ForwardBatch, Work};

use super::{Dag, HazardTracker, Order};

/// The run of a segment or piece for a chunk's rows on a device, a copy, a host function, or a
/// load.
#[derive(Clone, Debug)]
pub struct Task {
    /// Index of the device (queue).
    pub device: usize,
    /// The name in traces.
    pub name: Arc<str>,
    /// The chunk it belongs to.
    pub chunk: u32,
    /// Its rows within the chunk.
    pub rows: Range<usize>,
    /// The work for the queue.
    pub work: Work,
}

impl Task {
    /// Whether it is a host function or a load.
    pub(super) fn is_host(&self) -> bool {
        matches!(self.work, Work::Host(_) | Work::Load(_))
    }
}

/// Tasks in program order with their dependencies.
#[derive(Clone, Debug, Default)]
pub struct TaskGraph {
    pub(super) tasks: Vec<Task>,
    pub(super) dag: Dag,
    /// The order, if it is fixed in advance: for several devices and one chunk.
    pub(super) order: Option<Order>,
    /// Whether host functions are among the tasks.
    pub(super) host: bool,
}

impl TaskGraph {
    /// Computes the dependencies from the views that tasks use.
    pub fn new(tasks: Vec<Task>) -> TaskGraph {
        let mut hazards = HazardTracker::new();
        let mut waits_for = Vec::with_capacity(tasks.len());
        for (i, task) in tasks.iter().enumerate() {
            let (i, waiting) = (i as u32, &mut waits_for);
            match &task.work {
                Work::Run(run) => waiting.push(hazards.add_run(i, run).to_vec()),
                Work::Copy(copy) => waiting.push(hazards.add_copy(i, copy).to_vec()),
                Work::Host(host) => {
                    waiting.push(hazards.add_views(i, host.reads(), host.writes()).to_vec());
                }
                Work::Load(load) => waiting.push(hazards.add_load(i, load).to_vec()),
            }
        }
        let device: Vec<usize> = tasks.iter().map(|t| t.device).collect();
        let several = device.windows(2).any(|d| d[0] != d[1]);
        let one_chunk = tasks.windows(2).all(|t| t[0].chunk == t[1].chunk);
        let order = (several && one_chunk).then(|| Order::new(&device, &waits_for));
        let host = tasks.iter().any(Task::is_host);
        TaskGraph { tasks, dag: Dag::new(device, &waits_for), order, host }
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Points all tasks to another forward batch with as many rows, so that one graph serves every
    /// decoded token.
    pub fn set_forward_batch(&mut self, forward: &Arc<ForwardBatch>) {
        for task in &mut self.tasks {
            if let Work::Run(run) = &mut task.work {
                run.forward = forward.slice(&task.rows);
            }
        }
    }
}
