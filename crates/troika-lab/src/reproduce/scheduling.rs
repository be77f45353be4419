//! Claims of llm.npu about the order of subgraphs (section 3.4), on random prompts: the scheduler's
//! own decisions, in integer time.

use std::collections::VecDeque;

use troika::plan::Policy;
use troika::program::schedule::{Costs, Dag, LATE_DEPTH, ListId, State};
use troika_check::Random;

use super::lab::Lab;
use super::outcome::Outcome;
use crate::Result;

/// Lists in a queue, as the engine has them.
const DEPTHS: [(Policy, usize); 3] =
    [(Policy::InOrder, 64), (Policy::OutOfOrder, LATE_DEPTH), (Policy::CriticalPath, LATE_DEPTH)];

/// Random prompts to check, and to search exactly.
const CHECKED: u64 = 500;
const SEARCHED: u64 = 100;

/// What a prompt's tasks wait for: each for the one before it in its chunk, every second one
/// (attention) also for the same one of the chunk before.
fn waits(chunks: usize, segments: usize) -> Vec<Vec<u32>> {
    let of = |chunk: usize, segment: usize| {
        let at = (chunk * segments + segment) as u32;
        let before = (chunk > 0 && segment.is_multiple_of(2)).then(|| at - segments as u32);
        before.into_iter().chain((segment > 0).then(|| at - 1)).collect()
    };
    (0..chunks).flat_map(|c| (0..segments).map(move |s| of(c, s))).collect()
}

/// Segments go to devices in turn.
fn prompt(chunks: usize, segments: usize, devices: usize) -> Dag {
    let device = (0..chunks * segments).map(|i| i % segments % devices).collect();
    Dag::new(device, &waits(chunks, segments))
}

/// What a policy is told of tasks.
fn known_to(policy: Policy, dag: &Dag, task_ns: &[u64], critical: usize) -> Costs {
    let mut costs = Costs::new(critical);
    costs.set(policy, dag, task_ns.iter().copied());
    costs
}

/// When each task starts and ends. Each device runs the lists of its queue in order.
fn timeline(dag: &Dag, costs: &Costs, policy: Policy, depth: usize) -> Vec<(u64, u64)> {
    let devices = dag.device.iter().max().map_or(1, |d| d + 1);
    let mut state = State::new(policy, devices);
    state.start(dag);
    let mut times = vec![(0, 0); dag.len()];
    let mut queues: Vec<VecDeque<(ListId, u64)>> = vec![VecDeque::new(); devices];
    let mut free = vec![0; devices];
    let mut now = 0;
    loop {
        for device in 0..devices {
            while queues[device].len() < depth
                && let Some(list) = state.take(dag, costs, device)
            {
                let mut at = free[device].max(now);
                for &task in state.tasks(list) {
                    let end = at + costs.task_ns[task as usize];
                    times[task as usize] = (at, end);
                    at = end;
                }
                free[device] = at;
                queues[device].push_back((list, at));
            }
        }
        let first = |d: &usize| queues[*d].front().map(|(_, end)| *end);
        let Some(device) = (0..devices).filter(|d| first(d).is_some()).min_by_key(first) else {
            return times;
        };
        if let Some((list, end)) = queues[device].pop_front() {
            now = end;
            state.complete(dag, list);
        }
    }
}

/// Checks the times of random prompts.
pub fn in_order(_: &mut Lab) -> Result<Outcome> {
    let (mut tasks, mut early, mut together) = (0, 0, 0);
    for seed in 0..CHECKED {
        let mut random = Random(seed);
        let [chunks, segments, devices] = [8, 12, 3].map(|most| 1 + random.below(most));
        let dag = prompt(chunks, segments, devices);
        let task_ns: Vec<u64> = (0..dag.len()).map(|_| 1 + random.below(50) as u64).collect();
        let critical = random.below(devices);
        for (policy, depth) in DEPTHS {
            let costs = known_to(policy, &dag, &task_ns, critical);
            let times = timeline(&dag, &costs, policy, depth);
            tasks += times.len();
            let inputs = waits(chunks, segments);
            early += inputs
                .iter()
                .zip(&times)
                .filter(|(of, (start, end))| {
                    start == end || of.iter().any(|i| times[*i as usize].1 > *start)
                })
                .count();
            for device in 0..devices {
                let mut own: Vec<(u64, u64)> = (0..times.len())
                    .filter(|t| dag.device[*t] == device)
                    .map(|t| times[t])
                    .collect();
                own.sort_unstable();
                together += own.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
            }
        }
    }
    let ours = format!(
        "of {tasks} tasks of {} schedules {early} started early, {together} beside another",
        CHECKED as usize * DEPTHS.len()
    );
    Ok(Outcome::words("none", ours, early == 0 && together == 0))
}

/// The time when all is done if each device runs its tasks strictly in program order, as in
/// llm.npu's baseline.
fn chunk_after_chunk(dag: &Dag, task_ns: &[u64]) -> u64 {
    let (mut ready_at, mut free) = (vec![0; dag.len()], [0; 2]);
    for task in 0..dag.len() {
        let device = dag.device[task];
        free[device] = free[device].max(ready_at[task]) + task_ns[task];
        for &d in &dag.dependents[task] {
            ready_at[d as usize] = ready_at[d as usize].max(free[device]);
        }
    }
    free[0].max(free[1])
}

/// The shortest possible time, by trying all orders (branch and bound).
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

/// Mean times of random prompts relative to the shortest: strictly chunk after chunk, and by each
/// policy.
fn ratios(load: u64) -> [f64; 4] {
    let dag = prompt(3, 6, 2);
    let mut sums = [0.0; 4];
    for seed in 0..SEARCHED {
        let mut random = Random(seed);
        // The critical device's segments take `load` times as long on average.
        let scale = |task: usize| if dag.device[task] == 1 { load } else { 1 };
        let time = |task| (1 + random.below(20) as u64) * scale(task);
        let task_ns: Vec<u64> = (0..dag.len()).map(time).collect();
        let known = DEPTHS.map(|(policy, depth)| {
            let costs = known_to(policy, &dag, &task_ns, 1);
            let times = timeline(&dag, &costs, policy, depth);
            times.iter().map(|(_, end)| *end).max().unwrap_or(0)
        });
        let best = known.iter().min().map_or(0, |least| least + 1);
        let mut exact = Exact { dag: &dag, cost: &task_ns, best };
        let (mut waits, mut done) = (dag.waits.clone(), vec![false; dag.len()]);
        exact.search(&mut waits, &vec![0; dag.len()], &mut done, [0, 0]);
        let best = exact.best as f64;
        sums[0] += chunk_after_chunk(&dag, &task_ns) as f64 / best;
        for (sum, time) in sums[1..].iter_mut().zip(known) {
            *sum += time as f64 / best;
        }
    }
    sums.map(|sum| sum / SEARCHED as f64)
}

/// 3 chunks of 6 segments on two devices, of like and unlike speed.
pub fn near_the_best(_: &mut Lab) -> Result<Outcome> {
    let of = [1, 2].map(ratios);
    let words = ["alike", "one twice as slow"].into_iter().zip(of).map(|(what, ratios)| {
        let [strict, in_order, out_of_order, path] = ratios;
        format!("{what}: {strict:.3} chunk after chunk, {in_order:.3} in order, {out_of_order:.3} out of order, {path:.3} by the critical path")
    });
    let pass =
        of.iter().all(|[strict, policies @ ..]| policies.iter().all(|r| *r <= 1.10 && r < strict));
    let items: Vec<String> = words.collect();
    Ok(Outcome::words("at most 1.1", items.join("; "), pass))
}
