use std::collections::HashSet;
use std::slice::from_ref;
use std::sync::Arc;

use proptest::prelude::*;
use troika_device::{Access, Bindings, Buffer, ForwardBatch, PageTable, PagesView, SeqRows, View};
use troika_graph::StateKind;

use troika_program::schedule::HazardTracker;

/// Adds a run of a forward batch on some memory.
fn add<'a>(
    h: &'a mut HazardTracker<usize>,
    task: u32,
    b: &Bindings,
    forward: &Arc<ForwardBatch>,
) -> &'a [u32] {
    h.begin(task);
    b.inputs.iter().for_each(|v| h.memory(v.buffer().id(), v.rect(), Access::Read));
    b.outputs.iter().for_each(|v| h.memory(v.buffer().id(), v.rect(), Access::Write));
    if !b.states.is_empty() {
        h.states(b.states.iter().map(|s| s.buffer().id()), forward);
    }
    h.end()
}

fn buffer(len: usize) -> Buffer {
    Buffer::zeroed(len).unwrap()
}

fn bindings(inputs: &[View], states: &[View], outputs: &[View]) -> Bindings {
    Bindings { inputs: inputs.to_vec(), states: states.to_vec(), outputs: outputs.to_vec() }
}

#[test]
fn orders_writes_and_reads() {
    let (a, b, c) = (View::whole(&buffer(8)), View::whole(&buffer(8)), View::whole(&buffer(8)));
    let none = Arc::new(ForwardBatch::default());
    let mut h = HazardTracker::default();
    let mut add = |task, reads: &[&View], writes: &[&View]| {
        let list = |views: &[&View]| views.iter().map(|v| (*v).clone()).collect::<Vec<_>>();
        add(&mut h, task, &bindings(&list(reads), &[], &list(writes)), &none).to_vec()
    };
    assert!(add(0, &[], &[&a]).is_empty());
    assert_eq!(add(1, &[&a], &[&b]), [0]);
    assert_eq!(add(2, &[&a], &[&c]), [0], "readers do not wait for readers");
    assert_eq!(add(3, &[&b], &[&a]), [0, 1, 2], "a writer waits for readers and the writer");
    assert_eq!(add(4, &[&c], &[&c]), [2], "a task does not wait for itself");
    assert_eq!(add(5, &[&c], &[]), [4]);
}

#[test]
fn columns_do_not_wait_for_each_other() {
    let all = View::dense(&buffer(64), 0, (4, 16)).unwrap();
    let (left, right) = (all.columns(0..8).unwrap(), all.columns(8..16).unwrap());
    let none = Arc::new(ForwardBatch::default());
    let mut h = HazardTracker::default();
    let mut add = |task, reads: &[View], writes: &[View]| {
        add(&mut h, task, &bindings(reads, &[], writes), &none).to_vec()
    };
    assert!(add(0, &[], from_ref(&left)).is_empty());
    assert!(add(1, &[], from_ref(&right)).is_empty());
    assert_eq!(add(2, from_ref(&all), &[]), [0, 1]);
    assert_eq!(add(3, from_ref(&right), &[]), [1]);
    assert_eq!(add(4, &[], &[left]), [0, 2]);
    assert_eq!(add(5, &[], &[right]), [1, 2, 3]);
    assert_eq!(add(6, &[], &[all]), [2, 4, 5], "5 waited for 3");
}

/// A forward batch of sequences: (number, position, rows, pages).
fn forward(seqs: &[(u64, usize, usize, &[u32])]) -> Arc<ForwardBatch> {
    let mut forward = ForwardBatch::default();
    for (seq, pos, n, pages) in seqs {
        let start = forward.rows();
        let tables = vec![PageTable::new(StateKind::Paged(None), 4, pages.to_vec())];
        let (seq, pos, rows) = (*seq, *pos, start..start + n);
        forward.seqs.push(SeqRows { seq, rows, pos, known_len: 0, tables });
    }
    Arc::new(forward)
}

#[test]
fn sequences_wait_for_pages_only() {
    let cache = [View::whole(&buffer(1024))];
    let states = bindings(&[], &cache, &[]);
    let mut h = HazardTracker::default();
    let mut add = |task, s: &Arc<ForwardBatch>| add(&mut h, task, &states, s).to_vec();
    assert!(add(0, &forward(&[(0, 0, 4, &[0])])).is_empty());
    assert!(add(1, &forward(&[(1, 0, 4, &[1])])).is_empty(), "another sequence");
    assert_eq!(add(2, &forward(&[(0, 4, 4, &[0, 2])])), [0]);
    assert_eq!(add(3, &forward(&[(0, 8, 1, &[0, 2, 3]), (1, 4, 1, &[1, 4])])), [1, 2], "both");
    assert!(add(4, &forward(&[(2, 0, 1, &[5])])).is_empty());
    // A page of sequence 1 passes to sequence 2.
    assert_eq!(add(5, &forward(&[(2, 1, 4, &[5, 1])])), [3, 4]);
    assert_eq!(add(6, &forward(&[(2, 5, 1, &[5, 1])])), [5]);
    assert_eq!(add(7, &forward(&[(0, 9, 1, &[0, 2, 3])])), [3]);
    // Sequence 3 reads a page that another sequence wrote.
    assert_eq!(add(8, &forward(&[(3, 4, 1, &[0, 9])])), [7]);
    assert_eq!(add(9, &forward(&[(4, 4, 1, &[0, 8])])), [7], "readers share");
}

/// Five segments of a layer on memory that all chunks use, in program order.
#[test]
fn many_chunks_leave_few_accesses_to_look_at() {
    let (chunks, layers) = (64, 30);
    let slots: Vec<View> = (0..5).map(|_| View::whole(&buffer(4096))).collect();
    let caches: Vec<View> = (0..2 * layers).map(|_| View::whole(&buffer(64))).collect();
    let mut h = HazardTracker::default();
    let (mut task, mut deps) = (0, 0);
    for chunk in 0..chunks {
        let pages: Vec<u32> = (0..=chunk as u32).collect();
        let forward = forward(&[(0, chunk * 4, 4, &pages)]);
        for layer in 0..layers {
            for segment in 0..5 {
                let (x, y) = (slots[segment].clone(), slots[(segment + 1) % 5].clone());
                let states = if segment == 1 { &caches[2 * layer..2 * layer + 2] } else { &[] };
                deps += add(&mut h, task, &bindings(&[x], states, &[y]), &forward).len();
                task += 1;
            }
        }
    }
    // Each task waits for few others, since covered uses are dropped.
    assert!(deps < 4 * task as usize, "{deps} dependencies of {task} tasks");
}

/// The uses of a task in the model.
#[derive(Clone, Debug)]
struct Plan {
    /// Rectangles: (buffer, row, rows, column, columns, written).
    memory: Vec<(usize, usize, usize, usize, usize, bool)>,
    /// Whether a new forward batch begins, and its sequences with their numbers of rows.
    forward: Option<Vec<(u64, usize)>>,
    /// A sequence that returns its pages before the forward batch.
    gives: Option<u64>,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let rect = (0..2_usize, 0..4_usize, 1..3_usize, 0..6_usize, 1..4_usize, any::<bool>());
    let seqs = prop::collection::btree_map(0..3_u64, 1..4_usize, 1..3);
    let seqs = seqs.prop_map(|s| s.into_iter().collect::<Vec<_>>());
    let plan = (
        prop::collection::vec(rect, 0..3),
        prop::option::of(seqs),
        prop::option::weighted(0.2, 0..3_u64),
    );
    let plan = plan.prop_map(|(memory, forward, gives)| Plan { memory, forward, gives });
    prop::collection::vec(plan, 1..25)
}

/// A few sequences and their pages.
#[derive(Default)]
struct Cache {
    seqs: [(usize, Vec<u32>); 3],
    free: Vec<u32>,
    begun: u32,
    /// Pages that passed from one sequence to another.
    exchanged: bool,
}

impl Cache {
    fn forward(&mut self, parts: &[(u64, usize)]) -> Arc<ForwardBatch> {
        let mut made: Vec<(u64, usize, usize, Vec<u32>)> = Vec::new();
        for &(seq, n) in parts {
            let (len, pages) = &mut self.seqs[seq as usize];
            while pages.len() * 4 < *len + n {
                pages.push(self.free.pop().unwrap_or_else(|| {
                    self.begun += 1;
                    self.begun - 1
                }));
            }
            made.push((seq, *len, n, pages.clone()));
            *len += n;
        }
        let list: Vec<_> = made.iter().map(|(s, p, n, pages)| (*s, *p, *n, &pages[..])).collect();
        forward(&list)
    }

    fn give(&mut self, seq: u64) {
        let (len, pages) = std::mem::take(&mut self.seqs[seq as usize]);
        self.exchanged |= len > 0;
        self.free.extend(pages);
    }
}

/// A byte or cache row as (where, index), and whether it is written.
type Touch = ((usize, usize), bool);

/// Everything that a task touches.
fn touched(b: &Bindings, forward: &ForwardBatch) -> Vec<Touch> {
    let mut all = Vec::new();
    for (views, written) in [(&b.inputs, false), (&b.outputs, true)] {
        for v in views {
            let rows = (0..v.rect().rows()).flat_map(|i| v.rect().row(i).unwrap());
            all.extend(rows.map(|byte| ((v.buffer().id(), byte), written)));
        }
    }
    for (i, s) in b.states.iter().flat_map(|s| forward.seqs.iter().map(|q| (s.buffer().id(), q))) {
        let pages = PagesView::new(s, 0).unwrap();
        pages.runs(|rows, written| all.extend(rows.map(|r| ((i, r), written))));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn whatever_conflicts_is_ordered_and_nothing_else(plans in plans()) {
        let memory = [buffer(64), buffer(64)].map(|b| View::dense(&b, 0, (8, 8)).unwrap());
        let states = [View::whole(&buffer(64)), View::whole(&buffer(64))];
        let (mut cache, mut h) = (Cache::default(), HazardTracker::default());
        let mut current = Arc::new(ForwardBatch::default());
        let mut tasks: Vec<(Bindings, Arc<ForwardBatch>)> = Vec::new();
        for plan in &plans {
            // Every forward batch first uses every state, then runs its other tasks.
            let mut bound = Vec::new();
            if let Some(parts) = &plan.forward {
                if let Some(seq) = plan.gives {
                    cache.give(seq);
                }
                current = cache.forward(parts);
                bound = states.to_vec();
            }
            let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
            for (b, row, rows, col, cols, written) in &plan.memory {
                let rows = memory[*b].rows(*row..row + rows).unwrap();
                let view = rows.columns(*col..(col + cols).min(8)).unwrap();
                if *written { outputs.push(view) } else { inputs.push(view) }
            }
            tasks.push((bindings(&inputs, &bound, &outputs), current.clone()));
        }
        let touched: Vec<_> = tasks.iter().map(|(b, s)| touched(b, s)).collect();
        let mut before: Vec<HashSet<usize>> = Vec::new();
        for (j, (b, s)) in tasks.iter().enumerate() {
            let deps = add(&mut h, j as u32, b, s);
            let mut all: HashSet<usize> = deps.iter().map(|d| *d as usize).collect();
            let direct = all.clone();
            direct.iter().for_each(|&d| all.extend(&before[d]));
            before.push(all);
            for i in 0..j {
                let meets = |x: &Touch, y: &Touch| x.0 == y.0 && (x.1 || y.1);
                let clash = touched[i].iter().any(|x| touched[j].iter().any(|y| meets(x, y)));
                prop_assert!(!clash || before[j].contains(&i), "{j} does not wait for {i}");
                // Forward batches of a sequence are a chain; other dependencies must be conflicts.
                let same = |x: &SeqRows| s.seqs.iter().any(|y| x.seq == y.seq);
                let chain = !b.states.is_empty()
                    && !tasks[i].0.states.is_empty()
                    && (cache.exchanged || tasks[i].1.seqs.iter().any(same));
                let needless = direct.contains(&i) && !clash && !chain;
                prop_assert!(!needless, "{j} waits for {i} without need");
            }
        }
    }
}

/// What a task does with some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reads,
    Writes,
    Shares,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn sharers_wait_for_all_others_and_not_for_each_other(
        tasks in prop::collection::vec((0..6_usize, 1..5_usize, 0..3_usize), 1..30),
    ) {
        let all = View::dense(&buffer(80), 0, (10, 8)).unwrap();
        let mut h = HazardTracker::default();
        let kind = |k: usize| [Kind::Reads, Kind::Writes, Kind::Shares][k];
        let mut before: Vec<HashSet<usize>> = Vec::new();
        for (j, &(first, rows, k)) in tasks.iter().enumerate() {
            let view = all.rows(first..first + rows).unwrap();
            h.begin(j as u32);
            match kind(k) {
                Kind::Reads => h.memory(0, view.rect(), Access::Read),
                Kind::Writes => h.memory(0, view.rect(), Access::Write),
                Kind::Shares => h.shared(0, view.rect()),
            }
            let direct: HashSet<usize> = h.end().iter().map(|d| *d as usize).collect();
            let mut waits = direct.clone();
            direct.iter().for_each(|&d| waits.extend(&before[d]));
            before.push(waits);
            for (i, &(other, others, o)) in tasks[..j].iter().enumerate() {
                let alone = kind(k) == Kind::Writes || kind(o) == Kind::Writes;
                let overlap = other < first + rows && first < other + others;
                let clash = overlap && (alone || k != o);
                prop_assert!(!clash || before[j].contains(&i), "{j} does not wait for {i}");
                prop_assert!(clash || !direct.contains(&i), "{j} waits for {i} without need");
            }
        }
    }
}

/// Layers whose chunks all share a buffer, and then read it.
#[test]
fn many_sharers_leave_few_accesses_to_look_at() {
    let all = View::whole(&buffer(64));
    let (mut h, mut deps) = (HazardTracker::default(), 0);
    let chunks = 16;
    for task in 0..chunks * 2 * 100_u32 {
        h.begin(task);
        match task / chunks % 2 {
            0 => h.shared(0, all.rect()),
            _ => h.memory(0, all.rect(), Access::Read),
        }
        deps += h.end().len();
    }
    assert!(deps <= (chunks * chunks * 200) as usize, "{deps}");
}
