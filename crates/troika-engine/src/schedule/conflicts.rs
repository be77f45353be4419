//! Dependencies of tasks pushed in any order: conflicting tasks are ordered by key.
//!
//! [`super::HazardTracker`] does the same for tasks in program order, and can forget uses that a
//! later task covers. Here a task may be inserted between any two others, so all uses of a place
//! are kept, sorted by key.

use std::collections::{BTreeMap, HashMap};
use std::slice::from_ref;
use std::sync::Arc;

use troika_device::{Access, ForwardBatch, PagesView, Rect, View, WeightsId, Work};

use troika_program::schedule::Key;

/// A user of memory: a task, or a growth, whose future tasks may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Task(u32),
    Growth(u32),
}

/// The position of a node among the uses: a task's key, or the end of a growth's keys, just before
/// the task with that key. Nodes behind a growth run after all its tasks.
pub(super) type Place = (Key, bool);

pub(super) fn task_at(key: Key) -> Place {
    (key, true)
}

pub(super) fn growth_at(end: Key) -> Place {
    (end, false)
}

/// The memory that a task uses or a growth may use.
#[derive(Clone, Copy)]
pub(super) struct Touched<'a> {
    pub reads: &'a [View],
    pub writes: &'a [View],
    pub states: &'a [View],
    pub forward: Option<&'a Arc<ForwardBatch>>,
    /// The weights that it runs with.
    pub runs: Option<WeightsId>,
    /// Weights whose later runs need what it loads.
    pub loads: &'a [WeightsId],
}

impl<'a> Touched<'a> {
    /// Uses nothing.
    pub const NONE: Touched<'static> =
        Touched { reads: &[], writes: &[], states: &[], forward: None, runs: None, loads: &[] };

    pub fn of(work: &'a Work) -> Touched<'a> {
        match work {
            Work::Run(run) => Touched {
                reads: &run.bindings.inputs,
                writes: &run.bindings.outputs,
                states: &run.bindings.states,
                forward: Some(&run.forward),
                runs: Some(run.weights.id()),
                loads: &[],
            },
            Work::Copy(copy) => {
                Touched { reads: from_ref(&copy.from), writes: from_ref(&copy.to), ..Touched::NONE }
            }
            Work::Host(host) => {
                Touched { reads: host.reads(), writes: host.writes(), ..Touched::NONE }
            }
            Work::Load(load) => {
                Touched { writes: load.writes(), loads: load.weights(), ..Touched::NONE }
            }
        }
    }

    fn views(self) -> impl Iterator<Item = (&'a View, Access)> {
        let reads = self.reads.iter().map(|v| (v, Access::Read));
        let all = reads.chain(self.writes.iter().map(|v| (v, Access::Write)));
        all.filter(|(v, _)| !v.rect().is_empty())
    }

    /// The parts of states it uses: (state, sequence) and the sequence's positions.
    fn parts(self) -> impl Iterator<Item = ((usize, u64), std::ops::Range<usize>)> {
        let seqs = self.forward.into_iter().flat_map(|f| &f.seqs);
        seqs.flat_map(move |s| {
            let positions = s.pos..s.pos.saturating_add(s.rows.len());
            self.states.iter().map(move |b| ((b.buffer().id(), s.seq), positions.clone()))
        })
    }

    /// Whether `other` uses nothing beyond this.
    pub fn covers(self, other: Touched<'_>) -> bool {
        let covered = |(view, access): (&View, Access)| {
            self.views().any(|(mine, allowed)| {
                (allowed == Access::Write || access == Access::Read)
                    && mine.buffer().id() == view.buffer().id()
                    && mine.rect().covers(view.rect())
            })
        };
        let known = |(part, _)| self.parts().any(|(mine, _)| mine == part);
        let loads = |l: &WeightsId| self.loads.contains(l);
        other.views().all(covered) && other.parts().all(known) && other.loads.iter().all(loads)
    }
}

/// The nodes that a node conflicts with.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those that run before it.
    pub earlier: Vec<Node>,
    /// Tasks that run after it.
    pub later: Vec<u32>,
}

/// Attention over positions that no known task appends yet.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// How many such gaps the new task waits for.
    pub held: u32,
    /// Tasks whose gap the new task closes, once for each gap.
    pub released: Vec<u32>,
}

/// Uses of memory and of states, sorted by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Conflicts {
    memory: HashMap<usize, Vec<Use>>,
    states: HashMap<(usize, u64), Vec<StateUse>>,
    forwards: Forwards,
    /// Runs with weights, and loads that they need.
    runs: HashMap<WeightsId, BTreeMap<Place, u32>>,
    loads: HashMap<WeightsId, BTreeMap<Place, Node>>,
    /// Number of positions each sequence had before anything ran.
    appended: HashMap<u64, usize>,
    /// Growths that get no further tasks.
    closed: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Use {
    at: Place,
    node: Node,
    rect: Rect,
    access: Access,
}

/// A forward batch's use of a sequence's part of a state: it reads the part and appends to it.
#[derive(Clone, Debug)]
struct StateUse {
    at: Place,
    node: Node,
    positions: std::ops::Range<usize>,
    forward: u32,
    /// The end of the gapless positions once this use and all before it are done.
    reach: usize,
    /// Whether it waits for a task that is not known yet.
    held: bool,
}

impl Conflicts {
    /// No uses; the given sequences have the given numbers of positions.
    pub fn new(appended: &[(u64, usize)]) -> Conflicts {
        Conflicts { appended: appended.iter().copied().collect(), ..Conflicts::default() }
    }

    /// Notes that a growth gets no further tasks.
    pub fn close(&mut self, growth: u32) {
        self.closed[growth as usize] = true;
    }

    /// The nodes that must run before a node at this position, and the tasks that must run after
    /// it. May leave out nodes that are ordered with other returned ones anyway.
    pub fn find(&mut self, at: Place, touched: Touched<'_>) -> Found {
        let mut found = Found::default();
        let Found { earlier, later } = &mut found;
        let open = |node: &Node| match node {
            Node::Task(_) => true,
            Node::Growth(g) => !self.closed[*g as usize],
        };
        let mut task = |node| later.extend(task_of(node));
        for (view, access) in touched.views() {
            let Some(uses) = self.memory.get(&view.buffer().id()) else { continue };
            let (before, behind) = uses.split_at(uses.partition_point(|u| u.at < at));
            let access = (view.rect(), access);
            walk(before.iter().rev().filter(|u| open(&u.node)), access, |n| earlier.push(n));
            walk(behind.iter().filter(|u| task_of(u.node).is_some()), access, &mut task);
        }
        if let Some(loads) = touched.runs.and_then(|run| self.loads.get(&run)) {
            earlier.extend(loads.range(..at).map(|(_, node)| *node).filter(open));
        }
        for runs in touched.loads.iter().filter_map(|load| self.runs.get(load)) {
            runs.range(at..).for_each(|(_, run)| task(Node::Task(*run)));
        }
        let forward = touched.forward.filter(|_| !touched.states.is_empty());
        let forward = forward.map(|f| self.forwards.number(f));
        for (part, _) in touched.parts() {
            if let Some(uses) = self.states.get(&part) {
                let (before, behind) = uses.split_at(uses.partition_point(|u| u.at < at));
                for u in before.iter().rev().filter(|u| open(&u.node)) {
                    earlier.push(u.node);
                    if task_of(u.node).is_some() {
                        break;
                    }
                }
                task_of_first(behind).into_iter().for_each(|t| task(Node::Task(t)));
            }
            for &(other, seq) in forward.map_or(&[][..], |f| self.forwards.meets(f)) {
                let Some(uses) = self.states.get(&(part.0, seq)) else { continue };
                for u in uses.iter().filter(|u| u.forward == other && open(&u.node)) {
                    if u.at < at { earlier.push(u.node) } else { task(u.node) }
                }
            }
        }
        earlier.sort_unstable();
        earlier.dedup();
        later.sort_unstable();
        later.dedup();
        found
    }

    /// Adds a node. Growths are numbered in the order in which they are added.
    pub fn enter(&mut self, at: Place, node: Node, touched: Touched<'_>) -> Gaps {
        if let Node::Growth(_) = node {
            self.closed.push(false);
        }
        for (view, access) in touched.views() {
            let uses = self.memory.entry(view.buffer().id()).or_default();
            let place = uses.partition_point(|u| u.at < at);
            uses.insert(place, Use { at, node, rect: *view.rect(), access });
        }
        for load in touched.loads {
            self.loads.entry(*load).or_default().insert(at, node);
        }
        if let (Some(run), Node::Task(task)) = (touched.runs, node) {
            self.runs.entry(run).or_default().insert(at, task);
        }
        let mut gaps = Gaps::default();
        let forward = touched.forward.filter(|_| !touched.states.is_empty());
        let forward = forward.map_or(u32::MAX, |f| self.forwards.number(f));
        for (part, positions) in touched.parts() {
            let before = self.appended.get(&part.1).copied().unwrap_or(0);
            let uses = self.states.entry(part).or_default();
            let place = uses.partition_point(|u| u.at < at);
            let new = StateUse { at, node, positions, forward, reach: 0, held: true };
            uses.insert(place, new);
            let reach = place.checked_sub(1).map_or(before, |p| uses[p].reach);
            join(&mut uses[place..], reach, |n| gaps.released.extend(task_of(n)));
            gaps.held += u32::from(uses[place].held);
        }
        if let Node::Task(own) = node {
            gaps.released.retain(|t| *t != own);
        }
        gaps
    }
}

fn task_of(node: Node) -> Option<u32> {
    match node {
        Node::Task(t) => Some(t),
        Node::Growth(_) => None,
    }
}

fn task_of_first(uses: &[StateUse]) -> Option<u32> {
    uses.iter().find_map(|u| task_of(u.node))
}

/// Visits uses, the nearest first, and reports those that conflict with a node's own use. Leaves
/// out uses behind a task that writes all their bytes: that task orders them.
fn walk<'a>(
    uses: impl Iterator<Item = &'a Use>,
    (rect, access): (&Rect, Access),
    mut found: impl FnMut(Node),
) {
    let bytes = |r: &Rect| r.rows() * r.row_bytes();
    let (mut writers, mut written): (Vec<&Rect>, usize) = (Vec::new(), 0);
    for u in uses.filter(|u| u.access.conflicts(access) && u.rect.overlaps(rect)) {
        if writers.iter().any(|w| w.covers(&u.rect)) {
            continue;
        }
        found(u.node);
        // A growth may or may not write.
        if u.access == Access::Read || task_of(u.node).is_none() {
            continue;
        }
        if rect.covers(&u.rect) && !writers.iter().any(|w| w.overlaps(&u.rect)) {
            written += bytes(&u.rect);
        }
        if u.rect.covers(rect) || written == bytes(rect) {
            return;
        }
        writers.push(&u.rect);
    }
}

/// Visits a sequence's uses from a new one on. `reach` is the end of the positions that those
/// before it append. Reports the uses that now have all positions before their own.
fn join(uses: &mut [StateUse], mut reach: usize, mut released: impl FnMut(Node)) {
    for u in uses {
        if task_of(u.node).is_none() {
            u.held = false;
        } else if u.positions.start <= reach {
            reach = reach.max(u.positions.end);
            if std::mem::take(&mut u.held) {
                released(u.node);
            }
        }
        u.reach = reach;
    }
}

/// Forward batch, sequence, and whether the page is written.
type PageUse = (u32, u64, bool);

/// Forward batches, and which of them share pages of different sequences.
#[derive(Clone, Debug, Default)]
struct Forwards {
    /// Held, so that no other batch gets its address.
    known: HashMap<usize, (u32, Arc<ForwardBatch>)>,
    /// By (group, page).
    users: HashMap<(usize, u32), Vec<PageUse>>,
    /// For each forward batch, the others that have a page in common with it, and their sequence.
    meets: Vec<Vec<(u32, u64)>>,
}

impl Forwards {
    /// The number of a forward batch.
    fn number(&mut self, forward: &Arc<ForwardBatch>) -> u32 {
        let address = Arc::as_ptr(forward) as usize;
        if let Some((number, _)) = self.known.get(&address) {
            return *number;
        }
        let number = self.meets.len() as u32;
        self.known.insert(address, (number, forward.clone()));
        self.meets.push(Vec::new());
        for rows in &forward.seqs {
            for group in 0..rows.tables.len() {
                if let Some(pages) = PagesView::new(rows, group) {
                    self.look(&pages, group, number);
                }
            }
        }
        for list in &mut self.meets {
            list.sort_unstable();
            list.dedup();
        }
        number
    }

    fn look(&mut self, pages: &PagesView<'_>, group: usize, number: u32) {
        let (seq, table) = (pages.rows.seq, pages.table);
        let first_written = pages.rows.pos.checked_div(table.page_len).unwrap_or(0);
        for (i, &page) in table.pages.iter().enumerate() {
            let writes = table.first + i >= first_written;
            let users = self.users.entry((group, page)).or_default();
            for &(other, other_seq, written) in users.iter() {
                if other_seq != seq && (writes || written) && other != number {
                    self.meets[number as usize].push((other, other_seq));
                    self.meets[other as usize].push((number, seq));
                }
            }
            users.push((number, seq, writes));
        }
    }

    /// The forward batches that share pages with this one, where one of the two writes.
    fn meets(&self, number: u32) -> &[(u32, u64)] {
        self.meets.get(number as usize).map_or(&[], Vec::as_slice)
    }
}
