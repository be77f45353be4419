//! A warm queue runs without heap allocations.

#![allow(clippy::unwrap_used, unsafe_code)]
#![allow(missing_docs)]

#[path = "device/bench.rs"]
mod bench;
#[path = "device/store.rs"]
mod store;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bench::Bench;
use store::{Store, linear};
use troika_device::*;
use troika_graph::*;

struct Counting;
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A feed-forward with a router and experts, on 64 columns.
fn graph() -> (Subgraph, Store) {
    let mut store = Store::default();
    let mut b = SubgraphBuilder::new("moe", 8);
    let weight = |i: usize| (i % 7) as f32 * 0.01;
    let router = b.weight(store.add("router", 4, 64, weight));
    let norm = b.weight(store.add("norm", 1, 64, weight));
    let mut list = |name: &str, rows, cols| -> Vec<WeightRef> {
        (0..4).map(|e| b.weight(store.add(&format!("{name}{e}"), rows, cols, weight))).collect()
    };
    let (gate, up, down) = (list("g", 96, 64), list("u", 96, 64), list("d", 64, 96));
    let none = Vec::new;
    let experts = Experts {
        gate,
        up,
        down,
        gate_bias: none(),
        up_bias: none(),
        down_bias: none(),
        act: Activation::Silu,
        activations: ActivationFormat::F32,
    };
    let x = b.input("x", 64, DType::F32);
    let rms = Op::RmsNorm { weight: Some(norm), eps: 1e-6, offset: 1.0, group: 64 };
    let n = b.op("n", rms, &[x], 64);
    let logits = b.op("logits", linear(router, ActivationFormat::F32), &[n], 4);
    let score = Score::Softmax;
    let (groups, bias, expert_scales) = (None, None, None);
    let (top_k, normalize, scale) = (2, true, 1.0);
    let r = Router { experts: 4, top_k, score, normalize, scale, groups, bias, expert_scales };
    let (ids, w) = b.router(r, logits);
    let y = b.op("y", Op::Experts(experts), &[n, ids, w], 64);
    let z = b.op("z", Op::Add, &[y, x], 64);
    b.output(z);
    (b.finish().unwrap(), store)
}

#[test]
fn a_warm_queue_allocates_nothing_per_op() {
    let mut bench = Bench::new("cpu", 2);
    let (graph, store) = graph();
    let weights = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let bind = || vec![View::whole(&Buffer::zeroed(8 * 64 * 4).unwrap())];
    let bindings = Arc::new(Bindings { inputs: bind(), states: vec![], outputs: bind() });
    let forward = Arc::new(ForwardBatch::default());
    let mut list = CommandList::default();
    let mut runs = |n: usize| {
        let before = COUNT.load(Ordering::Relaxed);
        for _ in 0..n {
            for _ in 0..2 {
                let (bindings, forward) = (bindings.clone(), forward.clone());
                let weights = weights.clone();
                let work = Work::Run(Run { weights, bindings, rows: 8, forward });
                list.tasks.push(Submission { tag: 0, work });
            }
            let completion = bench.complete(std::mem::take(&mut list));
            completion.outcome.unwrap();
            list = completion.list;
        }
        COUNT.load(Ordering::Relaxed) - before
    };
    runs(10);
    // The test harness's own thread allocates now and then.
    let fewest = (0..3).map(|_| runs(100)).min();
    assert_eq!(fewest, Some(0), "allocations in 100 lists of 10 ops");
}
