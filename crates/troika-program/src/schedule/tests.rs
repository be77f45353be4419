//! The state machine in all orders of events.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_device::{Point, Wait};
use troika_plan::Policy;

use super::{Costs, Dag, Order, State};

/// A wait of a task until a queue has done `value` tasks.
fn wait(task: u32, queue: u32, value: u64) -> Wait {
    Wait { task, on: Point { queue, value } }
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

/// Three ready tasks of a device free a task of the other one each, the last of which frees another.
#[test]
fn policies_choose_by_order_by_what_is_freed_and_by_the_way_to_the_end() {
    let waits_for = [vec![], vec![], vec![], vec![0], vec![1], vec![2], vec![5]];
    for (own, freed, by_freed) in [(1, [5, 30, 10], 1), (0, [50, 5, 20], 1)] {
        // Device 0 must not stall: others free much for it, and it frees little for others.
        let device = (0..7).map(|task| if task < 3 { own } else { 1 - own }).collect();
        let dag = Dag::new(device, &waits_for);
        let chosen = |policy| {
            let mut costs = Costs::new(0);
            costs.set(policy, &dag, [1, 1, 1].into_iter().chain(freed).chain([100]));
            let mut state = State::new(policy, 2);
            state.start(&dag);
            let list = state.take(&dag, &costs, own).unwrap();
            state.tasks(list)[0]
        };
        let all = Policy::ALL.map(chosen);
        assert_eq!(all, [0, 0, by_freed, 2], "device {own}");
    }
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
        policy in prop::sample::select(Policy::ALL.to_vec()),
        turns in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let (dag, waits_for) = random_dag(seed, tasks, devices);
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 1);
        let mut costs = Costs::new(0);
        costs.set(policy, &dag, (0..tasks).map(|_| below(&mut rng, 100)));
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
        prop_assert_eq!(state.remaining, 0);
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
                let of_task = d.waits.iter().filter(|w| w.task as usize == at[device]);
                if of_task.clone().any(|w| reached(&at, w.on.queue as usize) < w.on.value) {
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
