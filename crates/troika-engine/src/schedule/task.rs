//! Tasks and their graph.

use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;

use troika_device::{Access, Bindings, ForwardBatch, View, WeightsId, Work};
use troika_program::schedule::{HazardTracker, Schedule};

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
    pub(super) schedule: Schedule,
    /// Whether host functions are among the tasks.
    pub(super) host: bool,
}

/// Makes a task wait for others by what it uses, and returns them.
pub(super) fn waits_for<'a>(
    hazards: &'a mut HazardTracker<Use>,
    number: u32,
    work: &Work,
) -> &'a [u32] {
    hazards.begin(number);
    let mut all = |views: &[View], access| {
        views.iter().for_each(|v| hazards.memory(Use::Buffer(v.buffer().id()), v.rect(), access));
    };
    match work {
        Work::Run(run) => {
            let Bindings { inputs, states, outputs } = &*run.bindings;
            all(inputs, Access::Read);
            all(outputs, Access::Write);
            if !states.is_empty() {
                hazards.states(states.iter().map(|s| Use::Buffer(s.buffer().id())), &run.forward);
            }
            hazards.loaded(&Use::Weights(run.weights.id()));
        }
        Work::Copy(copy) => {
            all(from_ref(&copy.from), Access::Read);
            all(from_ref(&copy.to), Access::Write);
        }
        Work::Host(host) => {
            all(host.reads(), Access::Read);
            all(host.writes(), Access::Write);
        }
        Work::Load(load) => {
            all(load.writes(), Access::Write);
            load.weights().iter().for_each(|w| hazards.load(Use::Weights(*w)));
        }
    }
    hazards.end()
}

/// What tasks conflict about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// A buffer, by its number.
    Buffer(usize),
    /// Weights that a load makes.
    Weights(WeightsId),
}

impl TaskGraph {
    /// Computes the dependencies from the views that tasks use.
    pub fn new(tasks: Vec<Task>) -> TaskGraph {
        let mut hazards = HazardTracker::default();
        let all = tasks.iter().enumerate();
        let waits = all.map(|(i, t)| waits_for(&mut hazards, i as u32, &t.work).to_vec());
        let waits: Vec<Vec<u32>> = waits.collect();
        let one_chunk = tasks.windows(2).all(|t| t[0].chunk == t[1].chunk);
        let device = tasks.iter().map(|t| t.device).collect();
        TaskGraph::of(tasks, Schedule::new(device, &waits, one_chunk))
    }

    /// Bound tasks with the schedule of their names.
    pub(crate) fn of(tasks: Vec<Task>, schedule: Schedule) -> TaskGraph {
        let host = tasks.iter().any(Task::is_host);
        TaskGraph { tasks, schedule, host }
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
        self.set_forward_batches(std::iter::once(forward));
    }

    /// The same for the chunks of a prompt, in order.
    pub fn set_forward_batches<'a>(
        &mut self,
        forwards: impl Iterator<Item = &'a Arc<ForwardBatch>>,
    ) {
        let mut tasks = self.tasks.iter_mut().peekable();
        for (chunk, forward) in forwards.enumerate() {
            while let Some(task) = tasks.next_if(|task| task.chunk as usize == chunk) {
                if let Work::Run(run) = &mut task.work {
                    run.forward = forward.slice(&task.rows);
                }
            }
        }
    }
}
