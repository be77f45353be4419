//! Graphs that grow while they run.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, ExecutableId, ForwardBatch, HostData, Work};

use super::conflicts::{Conflicts, Found, Node, Touched, growth_at, task_at};
use super::{Key, State, Task, TaskGraph};
use crate::error::{EngineError, GrowError};

/// What a task will add to the graph once it is done: tasks with these keys, behind its own.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Where the tasks go. No other task has a key among them until they are known.
    pub keys: Range<Key>,
    /// What they may use.
    pub uses: MayUse,
    /// Executables that they may load something for: later runs of these wait, too.
    pub loads: Vec<ExecutableId>,
}

impl Growth {
    /// `None` for anything.
    fn touched(&self) -> Option<Touched<'_>> {
        match &self.uses {
            MayUse::Anything => None,
            MayUse::Views(b, forward) => Some(Touched {
                reads: &b.inputs,
                writes: &b.outputs,
                states: &b.states,
                forward: Some(forward),
                runs: None,
                loads: &self.loads,
            }),
        }
    }
}

/// What tasks that are not known yet may use. Whatever comes behind them in program order and
/// conflicts with it waits until they are known.
#[derive(Clone, Debug)]
pub enum MayUse {
    /// Anything: all tasks behind them wait.
    Anything,
    /// What one task with these views, of this forward batch, would use; inputs and outputs are
    /// for this purpose what is read and what is read or written.
    Views(Bindings, Arc<ForwardBatch>),
}

/// A growth whose tasks are or were to come.
#[derive(Clone, Debug)]
struct Declared {
    by: u32,
    growth: Growth,
    /// Tasks that wait until it is known.
    waiting: Vec<u32>,
}

/// Tasks that are pushed in any order, before and while they run. Runs once.
#[derive(Clone, Debug, Default)]
pub struct GrowingGraph {
    pub(super) graph: TaskGraph,
    conflicts: Conflicts,
    by_key: BTreeMap<Key, u32>,
    growths: Vec<Declared>,
    of_task: HashMap<u32, u32>,
    /// Growths that are not known yet, by where they begin.
    open: BTreeMap<Key, u32>,
    /// Those of them that may use anything.
    walls: Vec<u32>,
}

impl GrowingGraph {
    /// No tasks. The sequences with cached positions have so many of them: a task of a sequence
    /// that is not named begins at its position 0, or waits until all before it is pushed.
    pub fn new(appended: &[(u64, usize)]) -> GrowingGraph {
        GrowingGraph { conflicts: Conflicts::new(appended), ..GrowingGraph::default() }
    }

    /// Number of tasks so far.
    pub fn len(&self) -> usize {
        self.graph.len()
    }

    /// Whether there are no tasks so far.
    pub fn is_empty(&self) -> bool {
        self.graph.is_empty()
    }

    /// Adds a task.
    ///
    /// # Errors
    /// A key that another task or growth has.
    pub fn push(&mut self, key: Key, task: Task) -> Result<(), EngineError> {
        Ok(self.insert((key, task, None), None, None)?)
    }

    /// Adds a task that will add others when it is done.
    ///
    /// # Errors
    /// As for [`GrowingGraph::push`]; keys that are not behind the task's, or somebody's.
    pub fn push_growing(
        &mut self,
        key: Key,
        task: Task,
        growth: Growth,
    ) -> Result<(), EngineError> {
        Ok(self.insert((key, task, Some(growth)), None, None)?)
    }

    /// The growth of a task that is done, if it has one that is not known yet.
    pub(super) fn growth_of(&self, task: u32) -> Option<u32> {
        self.of_task.get(&task).copied().filter(|g| {
            let keys = &self.growths[*g as usize].growth.keys;
            self.open.get(&keys.start) == Some(g)
        })
    }

    /// How many growths are not known yet.
    #[cfg(test)]
    pub(super) fn open_growths(&self) -> usize {
        self.open.len()
    }

    /// What is said of a task that is done.
    pub(super) fn grown(&self, task: u32) -> Grown {
        let data = match &self.graph.tasks[task as usize].work {
            Work::Host(host) => host.take_result(),
            _ => None,
        };
        Grown { key: self.graph.dag.keys[task as usize], name: self.name(task), data }
    }

    /// All of a growth is known.
    pub(super) fn close(&mut self, growth: u32, state: &mut State) {
        let declared = &mut self.growths[growth as usize];
        self.open.remove(&declared.growth.keys.start);
        self.walls.retain(|w| *w != growth);
        self.conflicts.close(growth);
        for task in std::mem::take(&mut declared.waiting) {
            self.graph.dag.waits[task as usize] -= 1;
            state.unhold(&self.graph.dag, task);
        }
    }

    /// Adds a task, as part of a growth or by itself, before or while the graph runs. Nothing is
    /// changed where it is refused.
    pub(super) fn insert(
        &mut self,
        (key, task, growth): (Key, Task, Option<Growth>),
        part_of: Option<u32>,
        mut running: Option<&mut State>,
    ) -> Result<(), GrowError> {
        self.check_key(key, &task, part_of)?;
        if let Some(growth) = &growth {
            self.check_growth(key, &task, growth, part_of)?;
        }
        if let Some(growth) = &growth {
            let later = self.behind(growth);
            self.check_late(&task, &later, running.as_deref())?;
        }
        let touched = Touched::of(&task.work);
        let found = self.conflicts.find(task_at(key), touched);
        self.check_late(&task, &found.later, running.as_deref())?;
        let number = self.graph.tasks.len() as u32;
        let gaps = self.conflicts.enter(task_at(key), Node::Task(number), touched);
        let mut holds = gaps.held;
        for &wall in &self.walls {
            let wall = &mut self.growths[wall as usize];
            if wall.growth.keys.end <= key {
                wall.waiting.push(number);
                holds += 1;
            }
        }
        self.by_key.insert(key, number);
        self.graph.dag.add(task.device, key);
        self.graph.host |= task.is_host();
        self.graph.tasks.push(task);
        if let Some(state) = running.as_deref_mut() {
            state.add();
        }
        self.link(number, (&found, holds), running.as_deref_mut());
        for task in gaps.released {
            self.graph.dag.waits[task as usize] -= 1;
            if let Some(state) = running.as_deref_mut() {
                state.unhold(&self.graph.dag, task);
            }
        }
        if let Some(growth) = growth {
            self.declare(number, growth, running.as_deref_mut());
        }
        if let Some(state) = running {
            state.settle(&self.graph.dag, number);
        }
        Ok(())
    }

    /// Makes a new task wait for what comes before it, and what comes behind it wait for it.
    fn link(&mut self, task: u32, (found, holds): (&Found, u32), running: Option<&mut State>) {
        let mut edges: Vec<(u32, u32)> = found.later.iter().map(|&l| (task, l)).collect();
        let mut holds = holds;
        for node in &found.earlier {
            match node {
                Node::Task(earlier) => edges.push((*earlier, task)),
                Node::Growth(growth) => {
                    self.growths[*growth as usize].waiting.push(task);
                    holds += 1;
                }
            }
        }
        let dag = &mut self.graph.dag;
        dag.waits[task as usize] += holds;
        for &(earlier, later) in &edges {
            dag.depend(earlier, later);
        }
        if let Some(state) = running {
            (0..holds).for_each(|_| state.hold(&self.graph.dag, task));
            for (earlier, later) in edges {
                state.depend(&self.graph.dag, earlier, later);
            }
        }
    }

    /// Enters a growth that was checked.
    fn declare(&mut self, by: u32, growth: Growth, running: Option<&mut State>) {
        let waiting = self.behind(&growth);
        let number = self.growths.len() as u32;
        let touches_all = growth.touched().is_none();
        let touched = growth.touched().unwrap_or(Touched::NONE);
        self.conflicts.enter(growth_at(growth.keys.end), Node::Growth(number), touched);
        for &task in &waiting {
            self.graph.dag.waits[task as usize] += 1;
        }
        if let Some(state) = running {
            waiting.iter().for_each(|&task| state.hold(&self.graph.dag, task));
        }
        self.open.insert(growth.keys.start, number);
        self.walls.extend(touches_all.then_some(number));
        self.growths.push(Declared { by, growth, waiting });
        self.of_task.insert(by, number);
        // Its completion is to be told at once.
        self.graph.dag.awaited[by as usize] = true;
    }

    /// Tasks that must wait for a growth.
    fn behind(&mut self, growth: &Growth) -> Vec<u32> {
        match growth.touched() {
            Some(touched) => self.conflicts.find(growth_at(growth.keys.end), touched).later,
            None => self.by_key.range(growth.keys.end..).map(|(_, task)| *task).collect(),
        }
    }

    /// A task's key is nobody else's, and as part of a growth it uses what was declared.
    fn check_key(&self, key: Key, task: &Task, part_of: Option<u32>) -> Result<(), GrowError> {
        let task_name = || task.name.clone();
        if let Some(other) = self.by_key.get(&key) {
            let other = self.name(*other);
            return Err(GrowError::SameKey { task: task_name(), other });
        }
        if let Some(owner) = self.owner(key).filter(|o| Some(*o) != part_of) {
            let by = self.name(self.growths[owner as usize].by);
            return Err(GrowError::Reserved { task: task_name(), by });
        }
        self.check_declared(key, task_name, Some(Touched::of(&task.work)), part_of)
    }

    /// What is part of a growth uses no more than that declared; `None` is anything.
    fn check_declared(
        &self,
        key: Key,
        task: impl Fn() -> Arc<str>,
        touched: Option<Touched<'_>>,
        part_of: Option<u32>,
    ) -> Result<(), GrowError> {
        let outer = part_of.map(|o| &self.growths[o as usize]);
        let Some(outer) = outer.filter(|o| o.growth.keys.contains(&key)) else { return Ok(()) };
        let covered = match (outer.growth.touched(), touched) {
            (None, _) => true,
            (Some(declared), Some(touched)) => declared.covers(touched),
            (Some(_), None) => false,
        };
        if covered {
            return Ok(());
        }
        Err(GrowError::Undeclared { task: task(), by: self.name(outer.by) })
    }

    /// A growth's keys lie behind its task and are nobody's, but for the growth that it is part
    /// of.
    fn check_growth(
        &self,
        key: Key,
        task: &Task,
        growth: &Growth,
        part_of: Option<u32>,
    ) -> Result<(), GrowError> {
        let (keys, task_name) = (&growth.keys, || task.name.clone());
        let behind = key < keys.start && keys.start < keys.end;
        let taken = || {
            let tasks = self.by_key.range(keys.clone()).next().is_some();
            let before = self.open.range(..keys.end).next_back();
            let meets = |g: &u32| {
                let other = &self.growths[*g as usize].growth.keys;
                let inside = other.start <= keys.start && keys.end <= other.end;
                other.end > keys.start && !(Some(*g) == part_of && inside)
            };
            // Only the growth that this is part of lies around others.
            tasks || before.is_some_and(|(_, g)| meets(g)) || part_of.iter().any(meets)
        };
        if !behind || taken() {
            return Err(GrowError::Keys { task: task_name() });
        }
        self.check_declared(keys.start, task_name, growth.touched(), part_of)
    }

    /// Nothing that must come behind a task was handed to a queue.
    fn check_late(
        &self,
        task: &Task,
        later: &[u32],
        state: Option<&State>,
    ) -> Result<(), GrowError> {
        let Some(state) = state else { return Ok(()) };
        match later.iter().find(|l| state.begun(**l)) {
            Some(&begun) => {
                Err(GrowError::TooLate { task: task.name.clone(), begun: self.name(begun) })
            }
            None => Ok(()),
        }
    }

    /// The innermost growth that has a key.
    fn owner(&self, key: Key) -> Option<u32> {
        let (_, &last) = self.open.range(..=key).next_back()?;
        self.growths[last as usize].growth.keys.contains(&key).then_some(last)
    }

    fn name(&self, task: u32) -> Arc<str> {
        self.graph.tasks[task as usize].name.clone()
    }
}

/// A task that is done and has a growth.
#[derive(Debug)]
pub struct Grown {
    /// Its key.
    pub key: Key,
    /// Its name.
    pub name: Arc<str>,
    /// What it found out, for a function of the host that found something out. Devices that compute
    /// nothing do not.
    pub data: Option<HostData>,
}

/// Where the tasks of a growth go.
pub struct Additions<'a> {
    graph: &'a mut GrowingGraph,
    state: &'a mut State,
    growth: u32,
}

impl<'a> Additions<'a> {
    /// The tasks of a growth, which is closed with [`Additions::close`].
    pub(super) fn new(graph: &'a mut GrowingGraph, state: &'a mut State, growth: u32) -> Self {
        Additions { graph, state, growth }
    }

    /// Adds a task. With a key of the growth it may use what was declared, and is in time. With
    /// any other key it is refused if a task that must come behind it was handed to a queue.
    ///
    /// # Errors
    /// As for [`GrowingGraph::push`]; a use that was not declared; a task that comes too late.
    pub fn push(&mut self, key: Key, task: Task) -> Result<(), EngineError> {
        self.insert(key, task, None)
    }

    /// Adds a task that will add others when it is done; the rest as for [`Additions::push`].
    ///
    /// # Errors
    /// As for [`Additions::push`] and [`GrowingGraph::push_growing`].
    pub fn push_growing(
        &mut self,
        key: Key,
        task: Task,
        growth: Growth,
    ) -> Result<(), EngineError> {
        self.insert(key, task, Some(growth))
    }

    fn insert(&mut self, key: Key, task: Task, growth: Option<Growth>) -> Result<(), EngineError> {
        let (device, devices) = (task.device, self.state.devices());
        if device >= devices {
            return Err(GrowError::Device { task: task.name, device, devices }.into());
        }
        Ok(self.graph.insert((key, task, growth), Some(self.growth), Some(self.state))?)
    }

    /// Nothing more comes: what waited for the growth waits for its tasks alone.
    pub(super) fn close(self) {
        self.graph.close(self.growth, self.state);
    }
}
