//! Compares graphs that grow while they run with the same tasks run one by one in program order.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_device::{Bindings, Buffer, ForwardBatch, PageTable, Run, SeqRows, View, Work};
use troika_plan::Policy;

use super::fake::run;
use troika_program::schedule::{Costs, State};

use super::{Additions, GrowingGraph, Growth, Key, MayUse, Task, TaskGraph};
use crate::error::{EngineError, GrowError};

pub(super) fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

pub(super) fn shuffle<T>(list: &mut [T], rng: &mut ChaCha8Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, below(rng, i + 1));
    }
}

/// Buffers of 8 rows of 8 bytes.
const BUFFERS: usize = 3;
pub(super) type Bytes = [[u8; 64]; BUFFERS];

/// One task of a program: it computes bytes from others and from their old values.
pub(super) struct Op {
    pub key: Key,
    pub device: usize,
    /// Views with the index of their buffer.
    pub reads: Vec<(usize, View)>,
    pub writes: Vec<(usize, View)>,
    /// The task that adds this one.
    pub parent: Option<usize>,
    /// The keys of the tasks that it adds.
    pub keys: Option<std::ops::Range<Key>>,
    /// Whether its growth may use anything.
    pub anything: bool,
    /// Declared uses of its growth beyond those of its tasks.
    pub may_write: Vec<(usize, View)>,
}

impl Op {
    fn new(
        (key, device): (Key, usize),
        reads: Vec<(usize, View)>,
        writes: Vec<(usize, View)>,
        parent: Option<usize>,
    ) -> Op {
        let (keys, anything, may_write) = (None, false, Vec::new());
        Op { key, device, reads, writes, parent, keys, anything, may_write }
    }
}

pub(super) struct Program {
    pub buffers: [Buffer; BUFFERS],
    pub ops: Vec<Op>,
}

impl Program {
    pub fn new() -> Program {
        Program { buffers: std::array::from_fn(|_| Buffer::zeroed(64).unwrap()), ops: vec![] }
    }

    fn view(&self, buffer: usize, rows: (usize, usize), cols: (usize, usize)) -> (usize, View) {
        let all = View::dense(&self.buffers[buffer], 0, (8, 8)).unwrap();
        let rows = all.rows(rows.0..rows.1).unwrap();
        (buffer, rows.columns(cols.0..cols.1).unwrap())
    }

    fn random_view(&self, rng: &mut ChaCha8Rng) -> (usize, View) {
        let (row, col) = (below(rng, 8), below(rng, 8));
        let (rows, cols) = (row + 1 + below(rng, 8 - row), col + 1 + below(rng, 8 - col));
        // Half of them as wide as the buffer, as most views are.
        let cols = if below(rng, 2) == 0 { (0, 8) } else { (col, cols) };
        self.view(below(rng, BUFFERS), (row, rows.min(row + 3)), cols)
    }

    fn add(&mut self, rng: &mut ChaCha8Rng, key: Key, devices: usize, parent: Option<usize>) {
        let reads = (0..below(rng, 3)).map(|_| self.random_view(rng)).collect();
        let writes = (0..1 + below(rng, 2)).map(|_| self.random_view(rng)).collect();
        let device = below(rng, devices);
        self.ops.push(Op::new((key, device), reads, writes, parent));
    }

    /// Tasks, some of which add others, which again add others.
    pub fn random(seed: u64, tops: usize, devices: usize) -> Program {
        let (mut p, rng) = (Program::new(), &mut ChaCha8Rng::seed_from_u64(seed));
        for i in 0..tops {
            let key = Key::by_chunk(below(rng, 2) as u64, i as u64 / 4, 0, i as u64);
            let top = p.ops.len();
            p.add(rng, key, devices, None);
            if below(rng, 3) > 0 {
                continue;
            }
            p.ops[top].keys = Some(key.children());
            for n in 1..=below(rng, 4) as u64 {
                let child = p.ops.len();
                p.add(rng, key.child(10 * n), devices, Some(top));
                if below(rng, 4) > 0 {
                    continue;
                }
                p.ops[child].keys = Some(key.child(10 * n + 1)..key.child(10 * n + 10));
                for m in 1..=below(rng, 3) as u64 {
                    p.add(rng, key.child(10 * n + m), devices, Some(child));
                }
                p.ops[child].anything = false;
            }
            p.ops[top].anything = below(rng, 4) == 0;
            // Declare more than the tasks use.
            p.ops[top].may_write = (0..below(rng, 3)).map(|_| p.random_view(rng)).collect();
        }
        p
    }

    pub fn children(&self, of: Option<usize>) -> Vec<usize> {
        (0..self.ops.len()).filter(|&i| self.ops[i].parent == of).collect()
    }

    /// Everything that a task's growth uses, as it declares.
    fn uses(&self, op: usize, b: &mut Bindings) {
        b.outputs.extend(self.ops[op].may_write.iter().map(|v| v.1.clone()));
        for child in self.children(Some(op)) {
            b.inputs.extend(self.ops[child].reads.iter().map(|v| v.1.clone()));
            b.outputs.extend(self.ops[child].writes.iter().map(|v| v.1.clone()));
            self.uses(child, b);
        }
    }

    pub fn growth(&self, op: usize) -> Option<Growth> {
        let keys = self.ops[op].keys.clone()?;
        let mut b = Bindings::default();
        self.uses(op, &mut b);
        let views = MayUse::Views(b, Arc::default());
        let uses = if self.ops[op].anything { MayUse::Anything } else { views };
        Some(Growth { keys, uses, loads: vec![] })
    }

    pub fn task(&self, op: usize) -> Task {
        let views = |list: &[(usize, View)]| list.iter().map(|v| v.1.clone()).collect();
        let (inputs, outputs) = (views(&self.ops[op].reads), views(&self.ops[op].writes));
        let bindings = Arc::new(Bindings { inputs, states: vec![], outputs });
        Task {
            device: self.ops[op].device,
            name: format!("op {op}").into(),
            chunk: 0,
            rows: 0..0,
            work: Work::Run(Run { bindings, ..run(&[], &[]) }),
        }
    }

    /// The operations in program order.
    pub fn ordered(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.ops.len()).collect();
        all.sort_by_key(|&i| self.ops[i].key);
        all
    }

    fn read(&self, op: usize, bytes: &Bytes) -> u8 {
        let mut sum = op as u8;
        for (buffer, view) in &self.ops[op].reads {
            for i in 0..view.rect().rows() {
                let row = &bytes[*buffer][view.rect().row(i).unwrap()];
                sum = row.iter().fold(sum, |s, b| s.wrapping_mul(31).wrapping_add(*b));
            }
        }
        sum
    }

    fn write(&self, op: usize, sum: u8, bytes: &mut Bytes) {
        for (buffer, view) in &self.ops[op].writes {
            for i in 0..view.rect().rows() {
                for b in &mut bytes[*buffer][view.rect().row(i).unwrap()] {
                    *b = b.wrapping_mul(17).wrapping_add(sum);
                }
            }
        }
    }

    /// The result of running tasks one after another.
    pub fn sequential(&self) -> Bytes {
        let mut bytes = [[1; 64]; BUFFERS];
        for op in self.ordered() {
            let sum = self.read(op, &bytes);
            self.write(op, sum, &mut bytes);
        }
        bytes
    }
}

/// A queue: its lists, which task of the first list runs, and what that task has read.
#[derive(Default)]
struct Lane {
    lists: VecDeque<usize>,
    at: usize,
    read: Option<u8>,
}

/// Devices that run lists in order, one event at a time. A task reads when it begins and writes
/// when it ends, so any task that runs in between matters.
struct Machine<'a> {
    program: &'a Program,
    graph: GrowingGraph,
    state: State,
    costs: Costs,
    lanes: Vec<Lane>,
    depth: usize,
    /// The operation of each task.
    ops: Vec<usize>,
    bytes: Bytes,
    ran: usize,
}

impl<'a> Machine<'a> {
    /// Pushes the tasks that are known from the start in the given order.
    fn new(program: &'a Program, known: &[usize], devices: usize, policy: Policy) -> Machine<'a> {
        let mut graph = GrowingGraph::new(&[]);
        for &op in known {
            let key = program.ops[op].key;
            match program.growth(op) {
                Some(growth) => graph.push_growing(key, program.task(op), growth).unwrap(),
                None => graph.push(key, program.task(op)).unwrap(),
            }
        }
        Machine::of(program, (graph, known.to_vec()), devices, policy)
    }

    /// The same for a graph whose tasks are all known beforehand.
    fn fixed(program: &'a Program, devices: usize, policy: Policy) -> Machine<'a> {
        let ops = program.ordered();
        let mut graph = GrowingGraph::new(&[]);
        graph.graph = TaskGraph::new(ops.iter().map(|&op| program.task(op)).collect());
        Machine::of(program, (graph, ops), devices, policy)
    }

    fn of(
        program: &'a Program,
        (graph, ops): (GrowingGraph, Vec<usize>),
        devices: usize,
        policy: Policy,
    ) -> Machine<'a> {
        let mut state = State::new(policy, devices);
        state.start(&graph.graph.schedule.dag);
        Machine {
            program,
            graph,
            state,
            costs: Costs { task_ns: (0..99).map(|i| i * 7 % 40).collect(), critical: 0 },
            lanes: (0..devices).map(|_| Lane::default()).collect(),
            depth: 2,
            ops,
            bytes: [[1; 64]; BUFFERS],
            ran: 0,
        }
    }

    /// Fills the queues. Returns those that have work.
    fn dispatch(&mut self) -> Vec<usize> {
        for (device, lane) in self.lanes.iter_mut().enumerate() {
            while lane.lists.len() < self.depth {
                let Some(list) =
                    self.state.take(&self.graph.graph.schedule.dag, &self.costs, device)
                else {
                    break;
                };
                lane.lists.push_back(list);
            }
        }
        (0..self.lanes.len()).filter(|&d| !self.lanes[d].lists.is_empty()).collect()
    }

    /// The operation that a device is running.
    fn current(&self, device: usize) -> usize {
        let lane = &self.lanes[device];
        self.ops[self.state.tasks(lane.lists[0])[lane.at] as usize]
    }

    /// The next event of a device; `order` arranges the tasks that it adds.
    fn event(&mut self, device: usize, order: impl FnOnce(&mut Vec<usize>)) {
        let (op, lane) = (self.current(device), &mut self.lanes[device]);
        assert_eq!(self.program.ops[op].device, device);
        let Some(sum) = lane.read.take() else {
            lane.read = Some(self.program.read(op, &self.bytes));
            return;
        };
        self.program.write(op, sum, &mut self.bytes);
        self.ran += 1;
        lane.at += 1;
        let list = lane.lists[0];
        let tasks = self.state.tasks(list).to_vec();
        if lane.at < tasks.len() {
            return;
        }
        lane.lists.pop_front();
        lane.at = 0;
        self.state.complete(&self.graph.graph.schedule.dag, list);
        let (last, others) = tasks.split_last().unwrap();
        assert!(others.iter().all(|t| self.graph.growth_of(*t).is_none()), "told too late");
        if let Some(growth) = self.graph.growth_of(*last) {
            let mut children = self.program.children(Some(op));
            order(&mut children);
            let mut additions = Additions::new(&mut self.graph, &mut self.state, growth);
            for child in children {
                let (key, task) = (self.program.ops[child].key, self.program.task(child));
                match self.program.growth(child) {
                    Some(growth) => additions.push_growing(key, task, growth).unwrap(),
                    None => additions.push(key, task).unwrap(),
                }
                self.ops.push(child);
            }
            additions.close();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Whatever is pushed when, and whichever device is faster: the result is that of program
    /// order, and every task runs once.
    #[test]
    fn graphs_that_grow_compute_what_program_order_does(
        seed in any::<u64>(),
        tops in 0usize..14,
        devices in 1usize..4,
        depth in 1usize..4,
        out_of_order in any::<bool>(),
    ) {
        let program = Program::random(seed, tops, devices);
        let rng = &mut ChaCha8Rng::seed_from_u64(seed ^ 1);
        let policy = if out_of_order { Policy::OutOfOrder } else { Policy::InOrder };
        let mut known = program.children(None);
        shuffle(&mut known, rng);
        let mut machine = Machine::new(&program, &known, devices, policy);
        machine.depth = depth;
        loop {
            let busy = machine.dispatch();
            if busy.is_empty() {
                break;
            }
            let device = busy[below(rng, busy.len())];
            machine.event(device, |children| shuffle(children, rng));
        }
        prop_assert_eq!((machine.ran, machine.state.left()), (program.ops.len(), 0));
        prop_assert!(machine.bytes == program.sequential());
    }
}

type Rectangle = (usize, (usize, usize), (usize, usize));

impl Program {
    /// Adds an operation on rectangles: (buffer, rows, columns).
    fn op(
        &mut self,
        (key, device): (Key, usize),
        reads: &[Rectangle],
        writes: &[Rectangle],
        parent: Option<usize>,
    ) -> usize {
        let views = |list: &[Rectangle]| list.iter().map(|r| self.view(r.0, r.1, r.2)).collect();
        let (reads, writes) = (views(reads), views(writes));
        self.ops.push(Op::new((key, device), reads, writes, parent));
        self.ops.len() - 1
    }
}

/// Devices of [`routed`]: a queue for each chunk's router, one for experts, one for the rest.
const ROUTERS: usize = 3;

/// Three chunks of a layer: attention, a router, the experts that it chooses (in buffers shared by
/// all chunks, or one per chunk), and what follows.
fn routed(shared: bool) -> Program {
    let mut p = Program::new();
    for c in 0..ROUTERS {
        let at = |place| Key::by_chunk(0, 8 * c as u64, 0, place);
        let hidden = (0, (c, c + 1), (0, 8));
        let row = if shared { 0 } else { 2 * c };
        let (gathered, made) = ((1, (row, row + 1), (0, 8)), (1, (row + 1, row + 2), (0, 8)));
        let (cache, next) = ((2, (7, 8), (0, 8)), (2, (c, c + 1), (0, 8)));
        p.op((at(0), ROUTERS + 1), &[cache], &[hidden, cache], None);
        let router = p.op((at(1), c), &[hidden], &[(2, (3 + c, 4 + c), (0, 4))], None);
        p.ops[router].keys = Some(at(1).children());
        p.ops[router].may_write = [hidden, gathered, made].map(|r| p.view(r.0, r.1, r.2)).into();
        for e in 0..[2_u64, 0, 3][c] {
            let child = |n| at(1).child(10 * (e + 1) + n);
            let cpu = ROUTERS + 1;
            p.op((child(0), cpu), &[hidden], &[gathered], Some(router));
            p.op((child(1), ROUTERS), &[gathered], &[made], Some(router));
            p.op((child(2), cpu), &[made], &[hidden], Some(router));
        }
        p.op((at(2), ROUTERS + 1), &[hidden], &[next], None);
    }
    p
}

/// A graph whose tasks are all known beforehand gives the same result.
#[test]
fn routers_of_three_chunks_may_finish_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (shared, order) in [true, false].into_iter().flat_map(|s| orders.map(|o| (s, o))) {
        let program = routed(shared);
        for (seed, policy) in (0..20).flat_map(|s| [(s, Policy::InOrder), (s, Policy::OutOfOrder)])
        {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let mut known = program.children(None);
            shuffle(&mut known, rng);
            let mut machine = Machine::new(&program, &known, ROUTERS + 2, policy);
            let (mut left, mut finished) = (order.as_slice(), Vec::new());
            loop {
                let busy = machine.dispatch();
                // Tasks behind a chunk's experts are not handed over while the experts are unknown.
                for lane in &machine.lanes {
                    for task in lane.lists.iter().flat_map(|l| machine.state.tasks(*l)) {
                        let op = &program.ops[machine.ops[*task as usize]];
                        let follows = |c: &usize| op.key == Key::by_chunk(0, 8 * *c as u64, 0, 2);
                        let c = (0..ROUTERS).find(follows);
                        assert!(c.is_none_or(|c| finished.contains(&c)));
                    }
                }
                // Routers end one by one in the given order, only when no other task is running.
                let others: Vec<usize> = busy.iter().copied().filter(|d| *d >= ROUTERS).collect();
                let device = match (others.as_slice(), left) {
                    ([], [next, ..]) if busy.contains(next) => *next,
                    ([], _) => {
                        assert!(busy.is_empty(), "{busy:?} of {left:?}");
                        break;
                    }
                    (others, _) => others[below(rng, others.len())],
                };
                let before = machine.graph.open_growths();
                machine.event(device, |children| shuffle(children, rng));
                if machine.graph.open_growths() < before {
                    finished.push(left[0]);
                    left = &left[1..];
                }
            }
            assert_eq!(finished, order, "all routers are reached before any of them is done");
            assert_eq!((machine.ran, machine.state.left()), (program.ops.len(), 0));
            assert!(machine.bytes == program.sequential(), "{order:?}, seed {seed}");
            let mut fixed = Machine::fixed(&program, ROUTERS + 2, policy);
            loop {
                let busy = fixed.dispatch();
                if busy.is_empty() {
                    break;
                }
                fixed.event(busy[below(rng, busy.len())], |_| unreachable!());
            }
            assert_eq!(fixed.ran, program.ops.len());
            assert!(fixed.bytes == machine.bytes, "{order:?}, seed {seed}");
        }
    }
}

fn forward(seq: u64, pos: usize, rows: usize) -> Arc<ForwardBatch> {
    let pages = (0..=(pos + rows) as u32 / 4).map(|page| page + 100 * seq as u32).collect();
    let tables = vec![PageTable { page_len: 4, first: 0, pages }];
    Arc::new(ForwardBatch { seqs: vec![SeqRows { seq, rows: 0..rows, pos, known_len: 0, tables }] })
}

/// Attention for some rows of a sequence, which appends them.
fn attention(cache: &Buffer, device: usize, forward: &Arc<ForwardBatch>) -> Task {
    let bindings = Bindings { states: vec![View::whole(cache)], ..Bindings::default() };
    let run = Run { bindings: Arc::new(bindings), forward: forward.clone(), ..run(&[], &[]) };
    let name = format!("attention at {}", forward.seqs[0].pos).into();
    Task { device, name, chunk: 0, rows: 0..0, work: Work::Run(run) }
}

/// Chunks in any order: attention runs once all positions before it are appended, whether the task
/// that appends them is known yet or not.
#[test]
fn attention_waits_for_positions_that_nobody_appends_so_far() {
    let cache = Buffer::zeroed(4096).unwrap();
    let costs = Costs::default();
    for seed in 0..100 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        // Positions 0..5 of one sequence are cached, and none of sequence 1.
        let mut chunks: Vec<(u64, usize)> =
            (0..6).map(|i| (0, 5 + 4 * i)).chain((0..3).map(|i| (1, 4 * i))).collect();
        let order = chunks.clone();
        shuffle(&mut chunks, rng);
        let known = below(rng, chunks.len());
        let mut graph = GrowingGraph::new(&[(0, 5)]);
        let key = |c: &(u64, usize)| Key::by_chunk(c.0, c.1 as u64, 0, 0);
        for c in &chunks[..known] {
            let task = attention(&cache, below(rng, 2), &forward(c.0, c.1, 4));
            graph.push(key(c), task).unwrap();
        }
        let mut state = State::new(Policy::InOrder, 2);
        state.start(&graph.graph.schedule.dag);
        let mut ran: Vec<(u64, usize)> = Vec::new();
        for n in known..=chunks.len() {
            loop {
                let lists = [0, 1].map(|d| state.take(&graph.graph.schedule.dag, &costs, d));
                for list in lists.into_iter().flatten() {
                    ran.extend(state.tasks(list).iter().map(|t| chunks[*t as usize]));
                    state.complete(&graph.graph.schedule.dag, list);
                }
                if lists == [None, None] {
                    break;
                }
            }
            // Run everything that is ready, and nothing else.
            for &(seq, start) in &order {
                let before = order.iter().filter(|c| c.0 == seq && c.1 <= start);
                let can = before.clone().all(|c| chunks[..n].contains(c));
                assert_eq!(ran.contains(&(seq, start)), can, "seed {seed}, {n} known");
            }
            if let Some(c) = chunks.get(n) {
                let task = attention(&cache, below(rng, 2), &forward(c.0, c.1, 4));
                graph.insert((key(c), task, None), None, Some(&mut state)).unwrap();
            }
        }
        for seq in [0, 1] {
            let of: Vec<_> = ran.iter().filter(|c| c.0 == seq).collect();
            assert!(of.is_sorted(), "{of:?}");
        }
        assert_eq!(state.left(), 0);
    }
}

/// A page passes from one sequence to another: tasks of the two are ordered, also if the first
/// sequence's are pushed last.
#[test]
fn sequences_wait_for_pages_in_any_order_of_pushes() {
    let cache = Buffer::zeroed(4096).unwrap();
    for (reversed, same_pages) in [(false, true), (true, true), (false, false)] {
        let mut graph = GrowingGraph::new(&[]);
        let mut moved = ForwardBatch::clone(&forward(1, 0, 4));
        if same_pages {
            moved.seqs[0].tables = forward(0, 0, 4).seqs[0].tables.clone();
        }
        let mut tasks = vec![(0, forward(0, 0, 4)), (1, Arc::new(moved))];
        if reversed {
            tasks.reverse();
        }
        for (seq, forward) in &tasks {
            let task = attention(&cache, *seq as usize, forward);
            graph.push(Key::by_chunk(*seq, 0, 0, 0), task).unwrap();
        }
        let mut state = State::new(Policy::InOrder, 2);
        state.start(&graph.graph.schedule.dag);
        let dag = &graph.graph.schedule.dag;
        assert_eq!(state.take(dag, &Costs::default(), 1).is_some(), !same_pages);
        let first = state.take(dag, &Costs::default(), 0).unwrap();
        state.complete(dag, first);
        assert_eq!(state.take(dag, &Costs::default(), 1).is_some(), same_pages);
    }
}

fn refusal(result: Result<(), EngineError>) -> GrowError {
    match result {
        Err(EngineError::Grow(e)) => e,
        other => panic!("{other:?}"),
    }
}

/// Every misfit is refused with the names of the tasks, and changes nothing.
#[test]
fn what_does_not_fit_is_refused() {
    let mut p = Program::new();
    let at = |place| Key::by_chunk(0, 0, 0, place);
    let row = |i| (0, (i, i + 1), (0, 8));
    let router = p.op((at(1), 0), &[row(0)], &[row(1)], None);
    let reader = p.op((at(3), 1), &[row(4)], &[row(5)], None);
    let declared = Bindings {
        inputs: vec![p.view(0, (1, 2), (0, 8)).1],
        outputs: vec![p.view(0, (2, 3), (0, 8)).1],
        states: vec![],
    };
    let growth = |keys| Growth {
        keys,
        uses: MayUse::Views(declared.clone(), Arc::default()),
        loads: vec![],
    };
    let mut graph = GrowingGraph::new(&[]);
    let keys = |from, to| at(1).child(from)..at(1).child(to);
    graph.push_growing(at(1), p.task(router), growth(keys(1, 20))).unwrap();
    graph.push(at(3), p.task(reader)).unwrap();

    let mut extra = |key, reads: &[Rectangle], writes: &[Rectangle]| {
        let op = p.op((key, 1), reads, writes, None);
        (key, p.task(op))
    };
    let name = |task: &Task| task.name.clone();
    let (router, reader): (Arc<str>, Arc<str>) = ("op 0".into(), "op 1".into());
    let (key, task) = extra(at(3), &[], &[row(7)]);
    let wanted = GrowError::SameKey { task: name(&task), other: reader.clone() };
    assert_eq!(refusal(graph.push(key, task)), wanted);
    let (key, task) = extra(at(1).child(5), &[], &[row(2)]);
    let wanted = GrowError::Reserved { task: name(&task), by: router.clone() };
    assert_eq!(refusal(graph.push(key, task)), wanted);
    for keys in [at(2)..at(2), at(1)..at(2), keys(19, 30), at(3)..at(4), at(2).child(1)..at(4)] {
        let (key, task) = extra(at(2), &[], &[row(7)]);
        let wanted = GrowError::Keys { task: name(&task) };
        assert_eq!(refusal(graph.push_growing(key, task, growth(keys))), wanted);
    }

    let mut state = State::new(Policy::InOrder, 2);
    state.start(&graph.graph.schedule.dag);
    let costs = Costs::default();
    let list = state.take(&graph.graph.schedule.dag, &costs, 0).unwrap();
    let begun = state.take(&graph.graph.schedule.dag, &costs, 1).unwrap();
    state.complete(&graph.graph.schedule.dag, list);
    let open = graph.growth_of(0).unwrap();
    let before = (graph.len(), state.left());
    let mut additions = Additions::new(&mut graph, &mut state, open);
    // Undeclared reads and writes, and a growth that may use more than the growth around it.
    for (reads, writes) in [(row(0), row(2)), (row(1), row(1))] {
        let (key, task) = extra(at(1).child(3), &[reads], &[writes]);
        let wanted = GrowError::Undeclared { task: name(&task), by: router.clone() };
        assert_eq!(refusal(additions.push(key, task)), wanted);
    }
    let (key, task) = extra(at(1).child(3), &[row(1)], &[row(2)]);
    let wanted = GrowError::Undeclared { task: name(&task), by: router.clone() };
    let anything = Growth { keys: keys(4, 5), uses: MayUse::Anything, loads: vec![] };
    assert_eq!(refusal(additions.push_growing(key, task, anything)), wanted);
    // A task, or its growth, that would have to run before a task already handed over.
    let (key, task) = extra(at(2), &[row(5)], &[row(7)]);
    let wanted = GrowError::TooLate { task: name(&task), begun: reader.clone() };
    assert_eq!(refusal(additions.push(key, task)), wanted);
    let (key, task) = extra(at(2), &[], &[row(7)]);
    let wanted = GrowError::TooLate { task: name(&task), begun: reader.clone() };
    let anything = Growth { keys: at(2).children(), uses: MayUse::Anything, loads: vec![] };
    assert_eq!(refusal(additions.push_growing(key, task, anything)), wanted);
    let (key, mut task) = extra(at(4), &[], &[row(7)]);
    task.device = 2;
    let wanted = GrowError::Device { task: name(&task), device: 2, devices: 2 };
    assert_eq!(refusal(additions.push(key, task)), wanted);
    assert_eq!((graph.len(), state.left()), before, "nothing was changed");

    // A task that fits is accepted, also behind the task that was handed over.
    let mut additions = Additions::new(&mut graph, &mut state, open);
    let (key, task) = extra(at(1).child(3), &[row(1)], &[row(2)]);
    additions.push(key, task).unwrap();
    let (key, task) = extra(at(2), &[row(4)], &[row(7)]);
    additions.push(key, task).unwrap();
    let (key, task) = extra(at(4), &[row(5)], &[row(6)]);
    additions.push(key, task).unwrap();
    additions.close();
    state.complete(&graph.graph.schedule.dag, begun);
    while let Some(list) = state.take(&graph.graph.schedule.dag, &costs, 1) {
        state.complete(&graph.graph.schedule.dag, list);
    }
    assert_eq!(state.left(), 0);
}

/// 64 chunks in 4 sets of buffers, 8 layers with 4 experts each: all run. Prints how long a
/// decision and a push take.
#[test]
fn graphs_of_64_chunks_grow() {
    let (chunks, layers, experts) = (64, 8_u64, 4_u64);
    let buffer = || View::dense(&Buffer::zeroed(64).unwrap(), 0, (8, 8)).unwrap();
    let sets: Vec<[View; 4]> = (0..4).map(|_| std::array::from_fn(|_| buffer())).collect();
    let cache = Buffer::zeroed(1 << 20).unwrap();
    let task = |device, reads: &[&View], writes: &[&View], states: Vec<View>, forward: &Arc<_>| {
        let views = |list: &[&View]| list.iter().map(|v| (*v).clone()).collect();
        let bindings = Bindings { inputs: views(reads), states, outputs: views(writes) };
        let run = Run {
            bindings: Arc::new(bindings),
            forward: ForwardBatch::clone(forward).into(),
            ..run(&[], &[])
        };
        Task { device, name: "t".into(), chunk: 0, rows: 0..0, work: Work::Run(run) }
    };
    let (mut graph, mut pushed, mut pushing) = (GrowingGraph::new(&[]), 0, 0);
    let mut timed = |push: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        push();
        pushing += start.elapsed().as_nanos();
        pushed += 1;
    };
    for (c, layer) in (0..chunks).flat_map(|c| (0..layers).map(move |l| (c, l))) {
        let [hidden, route, gathered, made] = &sets[c % 4];
        let at = |place| Key::by_chunk(0, 8 * c as u64, layer, place);
        let forward = forward(0, 8 * c, 8);
        let states = vec![View::new(&cache, layer as usize * 64, (1, 64), 64).unwrap()];
        let attention = task(0, &[hidden], &[hidden], states, &forward);
        let router = task(1, &[hidden], &[route], vec![], &forward);
        let next = task(0, &[hidden], &[hidden], vec![], &forward);
        let uses = Bindings {
            inputs: vec![],
            states: vec![],
            outputs: [hidden, gathered, made].map(View::clone).into(),
        };
        let growth = Growth {
            keys: at(1).children(),
            uses: MayUse::Views(uses, Arc::default()),
            loads: vec![],
        };
        timed(&mut || graph.push(at(0), attention.clone()).unwrap());
        timed(&mut || graph.push_growing(at(1), router.clone(), growth.clone()).unwrap());
        timed(&mut || graph.push(at(2), next.clone()).unwrap());
    }
    let mut state = State::new(Policy::InOrder, 2);
    state.start(&graph.graph.schedule.dag);
    let (costs, mut decisions, mut deciding, mut worst) = (Costs::default(), 0, 0, 0);
    let mut queues: [VecDeque<usize>; 2] = Default::default();
    while state.left() > 0 {
        let start = std::time::Instant::now();
        for (device, queue) in queues.iter_mut().enumerate() {
            if queue.len() < 4
                && let Some(list) = state.take(&graph.graph.schedule.dag, &costs, device)
            {
                queue.push_back(list);
            }
        }
        let device = usize::from(queues[0].is_empty());
        let list = queues[device].pop_front().unwrap();
        let last = *state.tasks(list).last().unwrap();
        state.complete(&graph.graph.schedule.dag, list);
        let took = start.elapsed().as_nanos();
        (decisions, deciding, worst) = (decisions + 1, deciding + took, worst.max(took));
        let Some(growth) = graph.growth_of(last) else { continue };
        let key = graph.grown(last).key;
        let c = (0..chunks).find(|c| key < Key::by_chunk(0, 8 * *c as u64 + 8, 0, 0)).unwrap();
        let [hidden, _, gathered, made] = &sets[c % 4];
        let mut additions = Additions::new(&mut graph, &mut state, growth);
        for e in 0..experts {
            let mut push = |n, device, reads: &View, writes: &View| {
                let task = task(device, &[reads], &[writes], vec![], &Arc::default());
                timed(&mut || additions.push(key.child(3 * e + n), task.clone()).unwrap());
            };
            push(1, 0, hidden, gathered);
            push(2, 1, gathered, made);
            push(3, 0, made, hidden);
        }
        additions.close();
    }
    assert_eq!(graph.len(), chunks * layers as usize * (3 + 3 * experts as usize));
    let us = |ns: u128, n: u128| ns as f64 / n as f64 / 1e3;
    println!(
        "{pushed} pushes, {:.2} us each; {decisions} decisions, {:.2} us each, {:.2} at most",
        us(pushing, pushed),
        us(deciding, decisions),
        us(worst, 1)
    );
}
