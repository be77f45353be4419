//! Derives dependencies from what tasks read and write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use troika_device::{Access, ForwardBatch, PagesView, Rect};

/// Finds the earlier tasks that each task must wait for. Tasks come in program order. A task waits
/// for those whose rectangles overlap its own, if one of the two writes. Indirect dependencies may
/// be left out.
///
/// Tasks that *share* a rectangle use parts of it that only run time knows, to read and to write. They
/// do not wait for each other; all others that use it wait for them, and they for all others.
///
/// Buffers are told by `B`, and states by their buffers: names for tasks that are not bound yet,
/// numbers for views. One buffer has one name.
///
/// In a model's states the unit is a sequence: a task uses all rows of its forward batch's
/// sequences. Sequences wait for each other only where one gets pages that another had. All forward
/// batches of a sequence use the same states, and a state's buffer is used only as a state.
#[derive(Debug)]
pub struct HazardTracker<B> {
    memory: HashMap<B, Accesses>,
    states: HashMap<(B, u64), Accesses>,
    pages: Pages,
    /// The task at hand, and those that it waits for.
    task: u32,
    deps: Vec<u32>,
}

/// Uses of a buffer, or of a sequence's part of it, that later tasks may have to wait for.
#[derive(Debug, Default)]
struct Accesses {
    writers: Vec<(Rect, u32)>,
    readers: Vec<(Rect, u32)>,
    sharers: Vec<(Rect, u32)>,
}

/// All of a sequence's rows in a state.
const ALL: std::ops::Range<usize> = 0..1;

impl<B> Default for HazardTracker<B> {
    fn default() -> HazardTracker<B> {
        let (memory, states) = (HashMap::new(), HashMap::new());
        HazardTracker { memory, states, pages: Pages::default(), task: 0, deps: Vec::new() }
    }
}

impl<B: Clone + Eq + Hash> HazardTracker<B> {
    /// Begins a task. Its uses follow; [`HazardTracker::end`] gives what it depends on.
    pub fn begin(&mut self, task: u32) {
        self.task = task;
        self.deps.clear();
    }

    /// The task uses a rectangle of a buffer.
    pub fn memory(&mut self, buffer: B, rect: &Rect, access: Access) {
        if !rect.is_empty() {
            let accesses = self.memory.entry(buffer).or_default();
            accesses.add(rect, access, self.task, &mut self.deps);
        }
    }

    /// The task shares a rectangle of a buffer with others.
    pub fn shared(&mut self, buffer: B, rect: &Rect) {
        if !rect.is_empty() {
            self.memory.entry(buffer).or_default().share(rect, self.task, &mut self.deps);
        }
    }

    /// The task runs a forward batch on some states: it reads them, and may append to them.
    pub fn states(&mut self, states: impl IntoIterator<Item = B>, forward: &Arc<ForwardBatch>) {
        self.pages.enter(forward);
        for state in states {
            for other in &self.pages.taken {
                // Wait for uses of the other sequence's rows, but do not make its later tasks wait.
                if let Some(accesses) = self.states.get(&(state.clone(), *other)) {
                    let before = accesses.writers.iter().chain(&accesses.readers);
                    self.deps.extend(before.map(|w| w.1));
                }
            }
            for s in &forward.seqs {
                let accesses = self.states.entry((state.clone(), s.seq)).or_default();
                accesses.add(&Rect::bytes(ALL), Access::Write, self.task, &mut self.deps);
            }
        }
    }

    /// The tasks that the task depends on, ascending and without duplicates.
    pub fn end(&mut self) -> &[u32] {
        let task = self.task;
        self.deps.retain(|&d| d != task);
        self.deps.sort_unstable();
        self.deps.dedup();
        &self.deps
    }
}

impl Accesses {
    fn add(&mut self, rect: &Rect, access: Access, task: u32, deps: &mut Vec<u32>) {
        let meets = |list: &[(Rect, u32)], deps: &mut Vec<u32>| {
            deps.extend(list.iter().filter(|(r, _)| r.overlaps(rect)).map(|(_, t)| *t));
        };
        meets(&self.writers, deps);
        meets(&self.sharers, deps);
        if access == Access::Read {
            forget(&mut self.readers, rect, &self.sharers);
            self.readers.push((*rect, task));
            return;
        }
        meets(&self.readers, deps);
        // A later task that overlaps a covered use also overlaps this one, and so waits for it.
        self.writers.retain(|(r, _)| !rect.covers(r));
        self.readers.retain(|(r, _)| !rect.covers(r));
        self.sharers.retain(|(r, _)| !rect.covers(r));
        self.writers.push((*rect, task));
    }

    fn share(&mut self, rect: &Rect, task: u32, deps: &mut Vec<u32>) {
        let before = self.writers.iter().chain(&self.readers);
        deps.extend(before.filter(|(r, _)| r.overlaps(rect)).map(|(_, t)| *t));
        forget(&mut self.sharers, rect, &self.readers);
        self.sharers.push((*rect, task));
    }
}

/// Forgets uses that a new one of the same kind covers and, by one of the other kind in between,
/// waits for: whoever has to wait for them waits for the new one.
fn forget(uses: &mut Vec<(Rect, u32)>, rect: &Rect, others: &[(Rect, u32)]) {
    uses.retain(|(r, task)| {
        !rect.covers(r) || !others.iter().any(|(o, later)| later > task && o.overlaps(r))
    });
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
        let held = (table.first..).zip(&table.pages).map(|(i, page)| (*page, i >= first_written));
        for (page, written) in held.chain(table.checkpoint.map(|c| (c.page, false))) {
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
