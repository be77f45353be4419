//! A task graph that runs again on several devices takes no memory from the heap.

#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]

#[path = "../src/schedule/fake.rs"]
mod fake;

use std::alloc::System;
use std::sync::Arc;

use fake::{Fake, idle, run, runner};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use troika_device::{Buffer, ForwardBatch, Waiting, Work};
use troika_engine::schedule::{Runner, Task, TaskGraph};
use troika_plan::Policy;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Heap allocations so far, of all threads.
fn count() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

/// Tasks of a token that cross between devices many times, with queues that can wait for each other
/// and with queues that cannot.
#[test]
fn a_token_over_several_devices_takes_no_memory() {
    let forward = [Arc::new(ForwardBatch::default()), Arc::new(ForwardBatch::default())];
    for (devices, queue_waits) in [(1, true), (2, true), (3, true), (2, false), (3, false)] {
        for policy in [Policy::InOrder, Policy::OutOfOrder] {
            let fakes = (0..devices).map(|_| Fake::new(queue_waits, &idle()));
            let mut runner = runner(fakes, policy);
            let buffers: Vec<Buffer> = (0..4).map(|_| Buffer::zeroed(4).unwrap()).collect();
            let task = |i: usize| Task {
                device: i % devices,
                name: "t".into(),
                chunk: 0,
                rows: 0..0,
                work: Work::Run(run(&[&buffers[i % 4]], &[&buffers[(i + 1) % 4]])),
            };
            let mut graph = Arc::new(TaskGraph::new((0..100).map(task).collect()));
            let mut tokens = |n: usize| {
                let before = count();
                for i in 0..n {
                    let waiting = [Waiting::Poll, Waiting::Block][i / 2 % 2];
                    runner.set_waiting(waiting);
                    let next = Arc::get_mut(&mut graph).unwrap();
                    next.set_forward_batches(|_| Some(&forward[i % 2]));
                    runner.run(&graph).unwrap();
                }
                count() - before
            };
            tokens(16);
            // The test harness's own thread allocates now and then.
            let fewest = (0..3).map(|_| tokens(64)).min();
            assert_eq!(fewest, Some(0), "{devices} devices, {queue_waits}, {policy:?}");
        }
    }
}
