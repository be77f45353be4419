//! Graphs that grow while they run.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, ForwardBatch, HostData, WeightsId, Work};
use troika_program::schedule::{Key, State};

use super::conflicts::{Conflicts, Found, Node, Touched, growth_at, task_at};
use super::{Task, TaskGraph};
use crate::error::{EngineError, GrowError};

/// The tasks that a task will add to the graph when it is done. Their keys lie behind its own.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The keys reserved for these tasks.
    pub keys: Range<Key>,
    /// What they may use.
    pub uses: MayUse,
    /// Weights that they may load: later runs with these wait too.
    pub loads: Vec<WeightsId>,
}

impl Growth {
    /// The declared uses; `None` for anything.
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

/// What tasks that are not known yet may use. Tasks behind them that conflict with it wait until
/// they are known.
#[derive(Clone, Debug)]
pub enum MayUse {
    /// Anything: all tasks behind them wait.
    Anything,
    /// What a task with these views and this forward batch would use. Inputs are read; outputs may
    /// be read and written.
    Views(Bindings, Arc<ForwardBatch>),
}

/// A growth that was declared.
#[derive(Clone, Debug)]
struct Declared {
    by: u32,
    growth: Growth,
    /// Tasks that wait until its tasks are known.
    waiting: Vec<u32>,
}

/// A graph whose tasks are pushed in any order, before and while it runs. It runs once.
#[derive(Clone, Debug, Default)]
pub struct GrowingGraph {
    pub(super) graph: TaskGraph,
    conflicts: Conflicts,
    by_key: BTreeMap<Key, u32>,
    growths: Vec<Declared>,
    of_task: HashMap<u32, u32>,
    /// Growths whose tasks are not all known, by their first key.
    open: BTreeMap<Key, u32>,
    /// Those of them that may use anything.
    walls: Vec<u32>,
}

impl GrowingGraph {
    /// Makes an empty graph. `appended` gives the number of cached positions of sequences, else 0.
    /// Attention waits until tasks for all positions before its own are pushed.
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
    /// The key belongs to another task or growth.
    pub fn push(&mut self, key: Key, task: Task) -> Result<(), EngineError> {
        Ok(self.insert((key, task, None), None, None)?)
    }

    /// Adds a task that will add others when it is done.
    ///
    /// # Errors
    /// Those of [`GrowingGraph::push`]; growth keys that are taken or not behind the task's own.
    pub fn push_growing(
        &mut self,
        key: Key,
        task: Task,
        growth: Growth,
    ) -> Result<(), EngineError> {
        Ok(self.insert((key, task, Some(growth)), None, None)?)
    }

    /// The open growth of a finished task, if it has one.
    pub(super) fn growth_of(&self, task: u32) -> Option<u32> {
        self.of_task.get(&task).copied().filter(|g| {
            let keys = &self.growths[*g as usize].growth.keys;
            self.open.get(&keys.start) == Some(g)
        })
    }

    /// Number of open growths.
    #[cfg(test)]
    pub(super) fn open_growths(&self) -> usize {
        self.open.len()
    }

    /// What to report about a finished task.
    pub(super) fn grown(&self, task: u32) -> Grown {
        let data = match &self.graph.tasks[task as usize].work {
            Work::Host(host) => host.take_result(),
            _ => None,
        };
        Grown { key: self.graph.schedule.dag.keys[task as usize], name: self.name(task), data }
    }

    /// Closes a growth: all its tasks are known.
    pub(super) fn close(&mut self, growth: u32, state: &mut State) {
        let declared = &mut self.growths[growth as usize];
        self.open.remove(&declared.growth.keys.start);
        self.walls.retain(|w| *w != growth);
        self.conflicts.close(growth);
        for task in std::mem::take(&mut declared.waiting) {
            self.graph.schedule.dag.waits[task as usize] -= 1;
            state.unhold(&self.graph.schedule.dag, task);
        }
    }

    /// Adds a task, alone or as part of a growth, before or while the graph runs. A refused task
    /// changes nothing.
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
        self.graph.schedule.dag.add(task.device, key);
        self.graph.host |= task.is_host();
        self.graph.tasks.push(task);
        if let Some(state) = running.as_deref_mut() {
            state.add();
        }
        self.link(number, (&found, holds), running.as_deref_mut());
        for task in gaps.released {
            self.graph.schedule.dag.waits[task as usize] -= 1;
            if let Some(state) = running.as_deref_mut() {
                state.unhold(&self.graph.schedule.dag, task);
            }
        }
        if let Some(growth) = growth {
            self.declare(number, growth, running.as_deref_mut());
        }
        if let Some(state) = running {
            state.settle(&self.graph.schedule.dag, number);
        }
        Ok(())
    }

    /// Orders a new task between those that run before it and those that run after it.
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
        let dag = &mut self.graph.schedule.dag;
        dag.waits[task as usize] += holds;
        for &(earlier, later) in &edges {
            dag.depend(earlier, later);
        }
        if let Some(state) = running {
            (0..holds).for_each(|_| state.hold(&self.graph.schedule.dag, task));
            for (earlier, later) in edges {
                state.depend(&self.graph.schedule.dag, earlier, later);
            }
        }
    }

    /// Adds a growth that was checked.
    fn declare(&mut self, by: u32, growth: Growth, running: Option<&mut State>) {
        let waiting = self.behind(&growth);
        let number = self.growths.len() as u32;
        let touches_all = growth.touched().is_none();
        let touched = growth.touched().unwrap_or(Touched::NONE);
        self.conflicts.enter(growth_at(growth.keys.end), Node::Growth(number), touched);
        for &task in &waiting {
            self.graph.schedule.dag.waits[task as usize] += 1;
        }
        if let Some(state) = running {
            waiting.iter().for_each(|&task| state.hold(&self.graph.schedule.dag, task));
        }
        self.open.insert(growth.keys.start, number);
        self.walls.extend(touches_all.then_some(number));
        self.growths.push(Declared { by, growth, waiting });
        self.of_task.insert(by, number);
        // Its completion must be reported at once.
        self.graph.schedule.dag.awaited[by as usize] = true;
    }

    /// Tasks that must wait for a growth.
    fn behind(&mut self, growth: &Growth) -> Vec<u32> {
        match growth.touched() {
            Some(touched) => self.conflicts.find(growth_at(growth.keys.end), touched).later,
            None => self.by_key.range(growth.keys.end..).map(|(_, task)| *task).collect(),
        }
    }

    /// Checks that a task's key is free, and that a part of a growth uses only what it declared.
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

    /// Checks that a part of a growth uses only what it declared; `None` is anything.
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

    /// Checks that a growth's keys lie behind its task and are free, except for the growth that it
    /// is part of.
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
            // Only the growth that it is part of may enclose its keys.
            tasks || before.is_some_and(|(_, g)| meets(g)) || part_of.iter().any(meets)
        };
        if !behind || taken() {
            return Err(GrowError::Keys { task: task_name() });
        }
        self.check_declared(keys.start, task_name, growth.touched(), part_of)
    }

    /// Checks that no task that must run later was handed to a queue already.
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

    /// The innermost growth that contains a key.
    fn owner(&self, key: Key) -> Option<u32> {
        let (_, &last) = self.open.range(..=key).next_back()?;
        self.growths[last as usize].growth.keys.contains(&key).then_some(last)
    }

    fn name(&self, task: u32) -> Arc<str> {
        self.graph.tasks[task as usize].name.clone()
    }
}

/// A finished task that has a growth.
#[derive(Debug)]
pub struct Grown {
    /// Its key.
    pub key: Key,
    /// Its name.
    pub name: Arc<str>,
    /// The result of a host function, if it returned one. Devices that compute nothing return none.
    pub data: Option<HostData>,
}

/// Adds the tasks of a growth to the graph.
pub struct Additions<'a> {
    graph: &'a mut GrowingGraph,
    state: &'a mut State,
    growth: u32,
}

impl<'a> Additions<'a> {
    /// Starts adding the tasks of a growth; [`Additions::close`] ends it.
    pub(super) fn new(graph: &'a mut GrowingGraph, state: &'a mut State, growth: u32) -> Self {
        Additions { graph, state, growth }
    }

    /// Adds a task. With a key of the growth it is in time and may use what was declared. With any
    /// other key it is refused if a task that must run later was already handed to a queue.
    ///
    /// # Errors
    /// Those of [`GrowingGraph::push`]; a use that was not declared; a task that comes too late.
    pub fn push(&mut self, key: Key, task: Task) -> Result<(), EngineError> {
        self.insert(key, task, None)
    }

    /// Adds a task that will add others when it is done; otherwise like [`Additions::push`].
    ///
    /// # Errors
    /// Those of [`Additions::push`] and [`GrowingGraph::push_growing`].
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

    /// Closes the growth: what waited for it now waits for its tasks only.
    pub(super) fn close(self) {
        self.graph.close(self.growth, self.state);
    }
}
