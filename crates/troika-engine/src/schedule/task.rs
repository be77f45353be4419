//! Tasks and their graph.

use std::slice::from_ref;
use std::sync::Arc;

use troika_device::{Access, ForwardBatch, HostData, Run, View, Work};
use troika_program::schedule::{HazardTracker, Schedule};

use crate::error::EngineError;

/// A task on memory.
pub type Task = troika_program::Task<Work>;

pub(super) fn is_host(task: &Task) -> bool {
    matches!(task.work, Work::Host(_))
}

/// Makes the graph of what became known when a task has run, from the task's number and the result
/// of its host function. Devices that compute nothing give no result.
pub type Growth =
    Arc<dyn Fn(u32, Option<HostData>) -> Result<Arc<TaskGraph>, EngineError> + Send + Sync>;

/// Tasks in program order with their dependencies.
#[derive(Clone, Default)]
pub struct TaskGraph {
    pub(super) tasks: Vec<Task>,
    pub(super) schedule: Schedule,
    /// Whether host functions are among the tasks.
    pub(super) host: bool,
    /// What becomes known by its tasks.
    pub(super) growth: Option<Growth>,
    /// What begins with it where it becomes known by a task, and nobody waits for. Its failure is none
    /// of anybody.
    pub(crate) beside: Option<Arc<TaskGraph>>,
}

/// The views that work uses, other than parts of states.
fn views(work: &Work) -> impl Iterator<Item = (&View, Access)> {
    let (reads, writes): (&[View], &[View]) = match work {
        Work::Run(run) => (&run.bindings.inputs, &run.bindings.outputs),
        Work::Copy(copy) => (from_ref(&copy.from), from_ref(&copy.to)),
        Work::Host(host) => (host.reads(), host.writes()),
    };
    let reads = reads.iter().map(|v| (v, Access::Read));
    reads.chain(writes.iter().map(|v| (v, Access::Write)))
}

/// The views whose used parts are known only at run time.
fn parts(work: &Work) -> &[View] {
    match work {
        Work::Host(host) => host.parts(),
        _ => &[],
    }
}

/// All views that work uses, or that what becomes known by it may use.
fn used(work: &Work) -> impl Iterator<Item = (&View, Access)> {
    views(work).chain(parts(work).iter().map(|view| (view, Access::Write)))
}

/// Makes a task wait for others by what it uses, and returns them.
pub(super) fn waits_for<'a>(
    hazards: &'a mut HazardTracker<usize>,
    number: u32,
    work: &Work,
) -> &'a [u32] {
    hazards.begin(number);
    for (view, access) in views(work) {
        hazards.memory(view.buffer().id(), view.rect(), access);
    }
    for view in parts(work) {
        hazards.shared(view.buffer().id(), view.rect());
    }
    if let Work::Run(run) = work
        && !run.bindings.states.is_empty()
    {
        let states = run.bindings.states.iter().map(|s| s.buffer().id());
        hazards.states(states, &run.forward);
    }
    hazards.end()
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
        let host = tasks.iter().any(is_host);
        TaskGraph { tasks, schedule, host, growth: None, beside: None }
    }

    /// The same graph, where some tasks make others known when they have run. Whatever waits for
    /// such a task waits until the graph of the others has run, too. The others may use what the
    /// task says that it reads and writes.
    pub fn growing(mut self, tasks: &[u32], growth: Growth) -> TaskGraph {
        tasks.iter().for_each(|task| self.schedule.grow(*task));
        TaskGraph { growth: Some(growth), ..self }
    }

    /// Checks that the tasks of a grown graph use only what the task that grows declares.
    pub(super) fn check_grown(&self, by: u32, grown: &TaskGraph) -> Result<(), EngineError> {
        let by = &self.tasks[by as usize];
        let declared = |(view, access): (&View, Access)| {
            view.rect().is_empty()
                || used(&by.work).any(|(mine, allowed)| {
                    (allowed == Access::Write || access == Access::Read)
                        && mine.buffer().id() == view.buffer().id()
                        && mine.rect().covers(view.rect())
                })
        };
        let fits = |task: &&Task| {
            let stateless = |run: &Run| run.bindings.states.is_empty();
            used(&task.work).all(declared)
                && !matches!(&task.work, Work::Run(run) if !stateless(run))
        };
        grown.tasks.iter().find(|task| !fits(task)).map_or(Ok(()), |task| {
            let (task, by) = (&task.name, &by.name);
            Err(EngineError::Tasks(format!(
                "task {task} uses memory that {by}, which made it known, does not declare"
            )))
        })
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Points the tasks of each chunk to another forward batch with as many rows, so that one graph
    /// serves every decoded token.
    pub fn set_forward_batches<'a>(
        &mut self,
        of_chunk: impl Fn(usize) -> Option<&'a Arc<ForwardBatch>>,
    ) {
        for task in &mut self.tasks {
            if let Work::Run(run) = &mut task.work
                && let Some(forward) = of_chunk(task.chunk as usize)
            {
                run.forward = forward.slice(&task.rows);
            }
        }
    }
}
