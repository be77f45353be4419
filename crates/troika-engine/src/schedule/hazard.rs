//! Derives dependencies from what tasks read and write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use troika_device::{
    Access, Bindings, CopyRows, ExecutableId, ForwardBatch, LoadTask, PagesView, Rect, Run, View,
};

/// Finds the earlier tasks that each task must wait for. Tasks come in program order. A task waits
/// for those whose rectangles overlap its own, if one of the two writes. Indirect dependencies may
/// be left out.
///
/// In a model's states the unit is a sequence: a task uses all rows of its forward batch's
/// sequences. Sequences wait for each other only where one gets pages that another had. All forward
/// batches of a sequence use the same states, and a state's buffer is bound only as a state.
#[derive(Debug, Default)]
pub struct HazardTracker {
    memory: HashMap<usize, Accesses>,
    states: HashMap<(usize, u64), Accesses>,
    pages: Pages,
    /// Tasks that load what runs of an executable need.
    loads: HashMap<ExecutableId, Vec<u32>>,
    deps: Vec<u32>,
}

/// Uses of a buffer, or of a sequence's part of it, that later tasks may have to wait for.
#[derive(Debug, Default)]
struct Accesses {
    writers: Vec<(Rect, u32)>,
    readers: Vec<(Rect, u32)>,
}

/// All of a sequence's rows in a state.
const ALL: std::ops::Range<usize> = 0..1;

impl HazardTracker {
    /// Makes a tracker without uses.
    pub fn new() -> HazardTracker {
        HazardTracker::default()
    }

    /// Adds a task that runs a forward batch on some memory. Returns the tasks it depends on,
    /// ascending and without duplicates.
    pub fn add(&mut self, task: u32, b: &Bindings, forward: &Arc<ForwardBatch>) -> &[u32] {
        self.deps.clear();
        b.inputs.iter().for_each(|view| self.memory(task, view, Access::Read));
        if !b.states.is_empty() {
            self.pages.enter(forward);
            for state in &b.states {
                self.state(task, state.buffer().id(), forward);
            }
        }
        b.outputs.iter().for_each(|view| self.memory(task, view, Access::Write));
        self.finish(task)
    }

    /// Adds a copy; otherwise like [`HazardTracker::add`]. Copies of states never run in one graph
    /// with other uses of them.
    pub fn add_copy(&mut self, task: u32, copy: &CopyRows) -> &[u32] {
        self.deps.clear();
        self.memory(task, &copy.from, Access::Read);
        self.memory(task, &copy.to, Access::Write);
        self.finish(task)
    }

    /// Adds a host function that reads and writes views; otherwise like [`HazardTracker::add`].
    pub fn add_views(&mut self, task: u32, reads: &[View], writes: &[View]) -> &[u32] {
        self.deps.clear();
        reads.iter().for_each(|view| self.memory(task, view, Access::Read));
        writes.iter().for_each(|view| self.memory(task, view, Access::Write));
        self.finish(task)
    }

    /// Adds a load that later runs of some executables need; otherwise like [`HazardTracker::add`].
    pub fn add_load(&mut self, task: u32, load: &LoadTask) -> &[u32] {
        for executable in load.executables() {
            self.loads.entry(*executable).or_default().push(task);
        }
        self.add_views(task, &[], load.writes())
    }

    /// Adds a run; otherwise like [`HazardTracker::add`].
    pub fn add_run(&mut self, task: u32, run: &Run) -> &[u32] {
        self.add(task, &run.bindings, &run.forward);
        if let Some(loads) = self.loads.get(&run.weights.executable().id()) {
            self.deps.extend(loads);
        }
        self.finish(task)
    }

    fn finish(&mut self, task: u32) -> &[u32] {
        self.deps.retain(|&d| d != task);
        self.deps.sort_unstable();
        self.deps.dedup();
        &self.deps
    }

    fn memory(&mut self, task: u32, view: &View, access: Access) {
        let (buffer, rect) = (view.buffer().id(), view.rect());
        if !rect.is_empty() {
            self.memory.entry(buffer).or_default().add((rect, access), task, &mut self.deps);
        }
    }

    /// Adds a forward batch's use of a state, which reads it and may append.
    fn state(&mut self, task: u32, buffer: usize, forward: &ForwardBatch) {
        let all = (&Rect::bytes(ALL), Access::Write);
        for other in &self.pages.taken {
            // Wait for uses of the other sequence's rows, but do not make its later tasks wait.
            if let Some(accesses) = self.states.get(&(buffer, *other)) {
                let before = accesses.writers.iter().chain(&accesses.readers);
                self.deps.extend(before.map(|w| w.1));
            }
        }
        for s in &forward.seqs {
            self.states.entry((buffer, s.seq)).or_default().add(all, task, &mut self.deps);
        }
    }
}

impl Accesses {
    fn add(&mut self, (rect, access): (&Rect, Access), task: u32, deps: &mut Vec<u32>) {
        let meets = |list: &[(Rect, u32)], deps: &mut Vec<u32>| {
            deps.extend(list.iter().filter(|(r, _)| r.overlaps(rect)).map(|(_, t)| *t));
        };
        meets(&self.writers, deps);
        if access == Access::Read {
            self.readers.push((*rect, task));
            return;
        }
        meets(&self.readers, deps);
        // A later task that overlaps a covered use also overlaps this one, and so waits for it.
        self.writers.retain(|(r, _)| !rect.covers(r));
        self.readers.retain(|(r, _)| !rect.covers(r));
        self.writers.push((*rect, task));
    }
}

/// Which sequences have had which pages.
#[derive(Debug, Default)]
struct Pages {
    /// By (group, page): the sequence that wrote it last, then those that have read it since.
    users: HashMap<(usize, u32), Vec<u64>>,
    /// Other sequences whose pages the current forward batch uses.
    taken: Vec<u64>,
    /// The current forward batch. Its tasks follow each other.
    forward: Option<Arc<ForwardBatch>>,
}

impl Pages {
    /// Notes the pages of a forward batch's sequences, once for all its consecutive tasks.
    fn enter(&mut self, forward: &Arc<ForwardBatch>) {
        if self.forward.as_ref().is_some_and(|s| Arc::ptr_eq(s, forward)) {
            return;
        }
        self.forward = Some(forward.clone());
        self.taken.clear();
        for rows in &forward.seqs {
            for group in 0..rows.tables.len() {
                let Some(pages) = PagesView::new(rows, group) else { continue };
                self.look(&pages, group);
            }
        }
        self.taken.sort_unstable();
        self.taken.dedup();
    }

    fn look(&mut self, pages: &PagesView<'_>, group: usize) {
        let (seq, table) = (pages.rows.seq, pages.table);
        let first_written = pages.rows.pos.checked_div(table.page_len).unwrap_or(0);
        for (i, &page) in table.pages.iter().enumerate() {
            let written = table.first + i >= first_written;
            let users = match self.users.entry((group, page)) {
                Entry::Vacant(free) => {
                    free.insert(vec![seq]);
                    continue;
                }
                Entry::Occupied(users) => users.into_mut(),
            };
            let others = users.iter().filter(|u| **u != seq);
            if written {
                self.taken.extend(others);
                users.clear();
                users.push(seq);
            } else if !users.contains(&seq) {
                // The first one wrote it.
                self.taken.extend(others.take(1));
                users.push(seq);
            }
        }
    }
}

#[cfg(test)]
mod tests;
