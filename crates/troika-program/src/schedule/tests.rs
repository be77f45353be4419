//! The state machine in all orders of events, and the policies against exact search.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_plan::Policy;

use super::{Costs, Dag, LATE_DEPTH, Order, OrderWait, State};

/// A wait of the task at a place for so many tasks of a device.
fn wait(place: u32, device: usize, done: u64) -> OrderWait {
    OrderWait { place, device, done }
}

/// A number below `n`.
fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    rng.next_u64() % n
}

/// Tasks on random devices that wait for random earlier ones.
fn random_dag(seed: u64, tasks: usize, devices: usize) -> (Dag, Vec<Vec<u32>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let device = (0..tasks).map(|_| below(&mut rng, devices as u64) as usize).collect();
    let waits_for: Vec<Vec<u32>> = (0..tasks)
        .map(|task| (0..task as u32).filter(|_| below(&mut rng, 4) == 0).collect())
        .collect();
    (Dag::new(device, &waits_for), waits_for)
}

proptest! {
    /// Queues run their lists in order, whichever is faster: every task runs once, on its device,
    /// after all tasks it waits for.
    #[test]
    fn any_order_of_completions_runs_each_task_once_and_in_order(
        seed in any::<u64>(),
        tasks in 0usize..40,
        devices in 1usize..4,
        depth in 1usize..4,
        out_of_order in any::<bool>(),
        turns in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let (dag, waits_for) = random_dag(seed, tasks, devices);
        let policy = if out_of_order { Policy::OutOfOrder } else { Policy::InOrder };
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 1);
        let task_ns = (0..tasks).map(|_| below(&mut rng, 100)).collect();
        let costs = Costs { task_ns, critical: 0 };
        let mut state = State::new(policy, devices);
        // A reused state machine behaves like a new one.
        state.start(&random_dag(seed ^ 2, 9, devices).0);
        state.take(&random_dag(seed ^ 2, 9, devices).0, &costs, 0);
        state.start(&dag);
        let mut queues = vec![std::collections::VecDeque::new(); devices];
        let mut finished = vec![false; tasks];
        for turn in turns.iter().cycle() {
            for (device, queue) in queues.iter_mut().enumerate() {
                while queue.len() < depth {
                    match state.take(&dag, &costs, device) {
                        Some(list) => queue.push_back(list),
                        None => break,
                    }
                }
            }
            let busy: Vec<usize> = (0..devices).filter(|&d| !queues[d].is_empty()).collect();
            if busy.is_empty() {
                break;
            }
            let device = busy[*turn as usize % busy.len()];
            let list = queues[device].pop_front().unwrap();
            for &task in state.tasks(list) {
                prop_assert_eq!(dag.device[task as usize], device);
                prop_assert!(waits_for[task as usize].iter().all(|&t| finished[t as usize]));
                prop_assert!(!std::mem::replace(&mut finished[task as usize], true));
            }
            state.complete(&dag, list);
        }
        prop_assert!(finished.iter().all(|f| *f));
        prop_assert_eq!(state.left(), 0);
    }
}

/// With a fixed order: whichever queue proceeds next, each task runs after all it waits for, and
/// some queue can always proceed. Visits all states of the queues; a queue's state is what it has
/// signalled.
#[test]
fn queues_in_program_order_never_deadlock_nor_run_early() {
    let mut waits = 0;
    for seed in 0..300 {
        let (tasks, devices) = (seed as usize % 18, 1 + seed as usize % 3);
        let (dag, waits_for) = random_dag(seed, tasks, devices);
        let order = Order::new(&dag.device, &waits_for).devices;
        waits += order.iter().map(|d| d.waits.len()).sum::<usize>();
        let reached = |at: &[usize], device: usize| {
            let signals = order[device].signals.iter();
            signals.copied().filter(|s| *s <= at[device] as u64).max().unwrap_or(0)
        };
        let mut seen = std::collections::HashSet::new();
        let mut open = vec![vec![0; order.len()]];
        while let Some(at) = open.pop() {
            let done = |task: u32| {
                let mut lists = order.iter().zip(&at);
                lists.any(|(d, n)| d.tasks[..*n].contains(&task))
            };
            let mut stuck = true;
            for (device, d) in order.iter().enumerate() {
                let Some(&task) = d.tasks.get(at[device]) else { continue };
                assert_eq!(dag.device[task as usize], device);
                let of_task = d.waits.iter().filter(|w| w.place as usize == at[device]);
                if of_task.clone().any(|w| reached(&at, w.device) < w.done) {
                    continue;
                }
                assert!(waits_for[task as usize].iter().all(|&t| done(t)), "{seed}: {task}");
                stuck = false;
                let mut next = at.clone();
                next[device] += 1;
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            let all = order.iter().zip(&at).all(|(d, n)| d.tasks.len() == *n);
            assert!(stuck == all, "seed {seed} at {at:?}");
        }
        let listed: usize = order.iter().map(|d| d.tasks.len()).sum();
        assert_eq!(listed, tasks);
    }
    // Most dependencies between devices follow from others.
    println!("{waits} waits");
    assert!(waits > 300, "{waits}");
}

/// A queue does not wait again for what an earlier wait implies.
#[test]
fn a_fixed_order_waits_for_what_is_not_known_alone() {
    let waits_for = [vec![], vec![0], vec![0, 1], vec![1], vec![0, 2, 3], vec![3, 4]];
    let order = Order::new(&[0, 1, 0, 1, 1, 2], &waits_for).devices;
    assert_eq!(
        (order[0].tasks.as_slice(), order[0].waits.as_slice()),
        (&[0, 2][..], &[wait(1, 1, 1)][..])
    );
    assert_eq!(order[1].waits, [wait(0, 0, 1), wait(2, 0, 2)]);
    assert_eq!(order[2].waits, [wait(0, 1, 3)]);
    let signals: Vec<_> = order.iter().map(|d| d.signals.clone()).collect();
    assert_eq!(signals, [vec![1, 2], vec![1, 3], vec![]]);
    assert!(Order::new(&[], &[]).devices.is_empty());
}

/// Chunks of a prompt on two devices as in llm.npu: segments alternate between them. Each waits for
/// the one before it in its chunk; every second one (attention) also for the same one of the
/// previous chunk.
fn prompt(chunks: usize, segments: usize) -> Dag {
    let mut waits_for = Vec::new();
    for chunk in 0..chunks {
        for segment in 0..segments {
            let at = (chunk * segments + segment) as u32;
            let mut waits = Vec::new();
            if chunk > 0 && segment % 2 == 0 {
                waits.push(at - segments as u32);
            }
            if segment > 0 {
                waits.push(at - 1);
            }
            waits_for.push(waits);
        }
    }
    let device = (0..chunks * segments).map(|i| i % segments % 2).collect();
    Dag::new(device, &waits_for)
}

/// The time when all is done. Each device runs the lists of its queue in order.
fn makespan(dag: &Dag, costs: &Costs, policy: Policy, depth: usize) -> u64 {
    let mut state = State::new(policy, 2);
    state.start(dag);
    // When the list at a queue's front is done, and the lists behind it.
    let mut queues: [std::collections::VecDeque<usize>; 2] = Default::default();
    let mut ends = [0; 2];
    let mut now = 0;
    loop {
        for device in 0..2 {
            while queues[device].len() < depth
                && let Some(list) = state.take(dag, costs, device)
            {
                queues[device].push_back(list);
                if queues[device].len() == 1 {
                    ends[device] = now + time(&state, costs, list);
                }
            }
        }
        let busy = (0..2).filter(|&d| !queues[d].is_empty());
        let Some(device) = busy.min_by_key(|&d| ends[d]) else { break };
        now = ends[device];
        let done = queues[device].pop_front().unwrap();
        if let Some(&next) = queues[device].front() {
            ends[device] = now + time(&state, costs, next);
        }
        state.complete(dag, done);
    }
    assert_eq!(state.left(), 0);
    now
}

fn time(state: &State, costs: &Costs, list: usize) -> u64 {
    state.tasks(list).iter().map(|&t| costs.task_ns[t as usize]).sum()
}

/// The time when all is done if each device runs its tasks strictly in program order, as in
/// llm.npu's baseline.
fn chunk_after_chunk(dag: &Dag, costs: &Costs) -> u64 {
    let (mut ready_at, mut free) = (vec![0; dag.len()], [0; 2]);
    for task in 0..dag.len() {
        let device = dag.device[task];
        free[device] = free[device].max(ready_at[task]) + costs.task_ns[task];
        for &d in &dag.dependents[task] {
            ready_at[d as usize] = ready_at[d as usize].max(free[device]);
        }
    }
    free[0].max(free[1])
}

/// Lists in a queue, as [`super::Runner`] has them.
const DEPTHS: [(Policy, usize); 2] = [(Policy::InOrder, 64), (Policy::OutOfOrder, LATE_DEPTH)];

/// The shortest possible makespan, by trying all orders (branch and bound).
struct Exact<'a> {
    dag: &'a Dag,
    cost: &'a [u64],
    best: u64,
}

impl Exact<'_> {
    /// Appends each ready task in turn. `ready_at`: when each task's last dependency is done.
    fn search(&mut self, waits: &mut [u32], ready_at: &[u64], done: &mut [bool], free: [u64; 2]) {
        let left = |device: usize| {
            let of = |&t: &usize| !done[t] && self.dag.device[t] == device;
            (0..done.len()).filter(of).map(|t| self.cost[t]).sum::<u64>()
        };
        if (0..2).any(|d| free[d] + left(d) >= self.best) && done.iter().any(|d| !d) {
            return;
        }
        if done.iter().all(|d| *d) {
            self.best = self.best.min(free[0].max(free[1]));
            return;
        }
        for task in 0..done.len() {
            if done[task] || waits[task] > 0 {
                continue;
            }
            let device = self.dag.device[task];
            let end = free[device].max(ready_at[task]) + self.cost[task];
            let mut free = free;
            free[device] = end;
            let mut ready_at = ready_at.to_vec();
            done[task] = true;
            for &d in &self.dag.dependents[task] {
                waits[d as usize] -= 1;
                ready_at[d as usize] = ready_at[d as usize].max(end);
            }
            self.search(waits, &ready_at, done, free);
            for &d in &self.dag.dependents[task] {
                waits[d as usize] += 1;
            }
            done[task] = false;
        }
    }
}

fn shortest(dag: &Dag, costs: &Costs) -> u64 {
    let known = DEPTHS.map(|(policy, depth)| makespan(dag, costs, policy, depth));
    let mut exact = Exact { dag, cost: &costs.task_ns, best: known[0].min(known[1]) + 1 };
    let n = dag.len();
    exact.search(&mut dag.waits.clone(), &vec![0; n], &mut vec![false; n], [0, 0]);
    exact.best
}

/// Mean makespans of random cases relative to the shortest: strictly chunk after chunk, `in-order`,
/// and `out-of-order`.
fn ratios(load: u64, cases: u64) -> [f64; 3] {
    let dag = prompt(3, 6);
    let mut sums = [0.0; 3];
    for seed in 0..cases {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The critical device's segments take `load` times as long on average.
        let cost = |task: usize, rng: &mut ChaCha8Rng| {
            let scale = if dag.device[task] == 1 { load } else { 1 };
            (1 + below(rng, 20)) * scale
        };
        let task_ns = (0..dag.len()).map(|task| cost(task, &mut rng)).collect();
        let costs = Costs { task_ns, critical: 1 };
        let best = shortest(&dag, &costs) as f64;
        sums[0] += chunk_after_chunk(&dag, &costs) as f64 / best;
        for (sum, (policy, depth)) in sums[1..].iter_mut().zip(DEPTHS) {
            *sum += makespan(&dag, &costs, policy, depth) as f64 / best;
        }
    }
    sums.map(|sum| sum / cases as f64)
}

/// Number of random cases, enough to make the difference of the policies significant.
const CASES: u64 = 300;

#[test]
fn policies_are_near_the_best_there_is() {
    for load in [1, 2] {
        let [strict, in_order, out_of_order] = ratios(load, CASES);
        println!("{load}: {strict:.3} chunk after chunk, {in_order:.3}, {out_of_order:.3}");
        assert!(out_of_order <= 1.10 && out_of_order < strict, "{out_of_order} {strict}");
        // It takes the earliest ready task, which is nearly optimal when queues hold several lists.
        assert!(in_order <= 1.10 && in_order < strict, "{in_order} {strict}");
    }
}
