//! The state machine through orders of events, and the policies against exact search.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_plan::Policy;

use super::{Costs, Dag, State};

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
    /// Queues that run their lists in order, whichever of them is faster: every task runs once, on
    /// its device, after all it waits for.
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
        // A state machine that ran before is as good as a new one.
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

/// Chunks of a prompt on two devices in the manner of llm.npu: segments alternate between them,
/// each waits for the one before it of its chunk, and every second one (attention) also for that
/// one of the chunk before.
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

/// When all is done, by a policy that is asked whenever a device is free.
fn makespan(dag: &Dag, costs: &Costs, policy: Policy) -> u64 {
    let mut state = State::new(policy, 2);
    state.start(dag);
    let mut running: [Option<(u64, usize)>; 2] = [None; 2];
    let mut now = 0;
    loop {
        for (device, slot) in running.iter_mut().enumerate() {
            if slot.is_none()
                && let Some(list) = state.take(dag, costs, device)
            {
                let time: u64 = state.tasks(list).iter().map(|&t| costs.task_ns[t as usize]).sum();
                *slot = Some((now + time, list));
            }
        }
        let next = running.iter_mut().filter(|r| r.is_some()).min_by_key(|r| r.unwrap().0);
        let Some((end, list)) = next.and_then(Option::take) else { break };
        now = end;
        state.complete(dag, list);
    }
    assert_eq!(state.left(), 0);
    now
}

/// The shortest makespan there is, by trying all orders (branch and bound).
struct Exact<'a> {
    dag: &'a Dag,
    cost: &'a [u64],
    best: u64,
}

impl Exact<'_> {
    /// Appends each ready task in turn. `ready_at` says when the last task before each is done.
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
    let known = [Policy::InOrder, Policy::OutOfOrder].map(|p| makespan(dag, costs, p));
    let mut exact = Exact { dag, cost: &costs.task_ns, best: known[0].min(known[1]) + 1 };
    let n = dag.len();
    exact.search(&mut dag.waits.clone(), &vec![0; n], &mut vec![false; n], [0, 0]);
    exact.best
}

/// Mean makespans of random cases, relative to the shortest: in order, out of order.
fn ratios(load: u64, cases: u64) -> (f64, f64) {
    let dag = prompt(3, 6);
    let (mut in_order, mut out_of_order) = (0.0, 0.0);
    for seed in 0..cases {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The critical device's segments take `load` times as long in the mean.
        let cost = |task: usize, rng: &mut ChaCha8Rng| {
            let scale = if dag.device[task] == 1 { load } else { 1 };
            (1 + below(rng, 20)) * scale
        };
        let task_ns = (0..dag.len()).map(|task| cost(task, &mut rng)).collect();
        let costs = Costs { task_ns, critical: 1 };
        let best = shortest(&dag, &costs) as f64;
        in_order += makespan(&dag, &costs, Policy::InOrder) as f64 / best;
        out_of_order += makespan(&dag, &costs, Policy::OutOfOrder) as f64 / best;
    }
    (in_order / cases as f64, out_of_order / cases as f64)
}

/// Random cases whose mean is taken: enough that the difference of the policies is no chance.
const CASES: u64 = 300;

#[test]
fn out_of_order_is_near_the_best_there_is() {
    let (in_order, out_of_order) = ratios(1, CASES);
    println!("load 1: in order {in_order:.3}, out of order {out_of_order:.3}");
    assert!(out_of_order <= 1.10, "{out_of_order}");
    let (in_order, out_of_order) = ratios(2, CASES);
    println!("load 2: in order {in_order:.3}, out of order {out_of_order:.3}");
    assert!(out_of_order <= 1.10, "{out_of_order}");
    assert!(out_of_order < in_order, "{out_of_order} {in_order}");
}
