//! A task graph that runs again on several devices takes no memory from the heap.

#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]

#[path = "../src/schedule/fake.rs"]
mod fake;

use std::alloc::System;
use std::sync::Arc;

use fake::{Fake, Hook, run};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use troika_device::{Buffer, Clock, Device, ForwardBatch, RealClock, Waiting, Work};
use troika_engine::schedule::{Runner, Task, TaskGraph};
use troika_plan::Policy;
use troika_trace::Tracer;

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
    let hook: Hook = Arc::new(|_| Ok(()));
    let forward = [Arc::new(ForwardBatch::default()), Arc::new(ForwardBatch::default())];
    for (devices, queue_waits) in [(1, true), (2, true), (3, true), (2, false), (3, false)] {
        let fakes: Vec<Arc<dyn Device>> = (0..devices)
            .map(|_| Arc::new(Fake::new(queue_waits, &hook)) as Arc<dyn Device>)
            .collect();
        for policy in [Policy::InOrder, Policy::OutOfOrder] {
            let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
            let mut runner = Runner::new(&fakes, (policy, 0), &clock, Tracer::off()).unwrap();
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
