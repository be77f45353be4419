//! What the host spends on a token: no memory of our own for a layer that runs again, and little
//! time for a dispatch. Figures are printed.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/open.rs"]
mod open;

use std::alloc::System;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use common::{Runner, needed};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use troika_device::{
    Bindings, CommandList, Completion, Device, DeviceError, ForwardBatch, PackFn, PackLayout,
    Packed, PageTable, Queue, RealClock, Run, SeqRows, Submission, View, WeightBytes, WeightData,
    WeightSource, Weights, Work,
};
use troika_gpu::kernels::{self, Around, Dispatch, Loc, Matrix, WeightFormat};
use troika_gpu::{GpuDevice, kernels_of};
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Dim, KvAppend, Op, Rope, RopeFreqs, RopeStyle,
    Shape, StateKind, Subgraph, SubgraphBuilder, ValueId, WeightDecl,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const COLS: usize = 64;
const KEYS: usize = 32;
const POSITIONS: usize = 64;

/// Heap allocations so far, of all threads.
fn count() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn product(b: &mut SubgraphBuilder, name: &str, x: ValueId, rows: usize) -> ValueId {
    let cols = b.cols(x);
    let weight = b.weight(WeightDecl::whole(name.into(), rows, cols, DType::F32));
    let activations = ActivationFormat::F32;
    b.op(name, Op::Linear { weight, bias: None, activations, form: None }, &[x], rows)
}

fn norm(b: &mut SubgraphBuilder, name: &str, x: ValueId, group: usize) -> ValueId {
    let cols = b.cols(x);
    let weight = b.weight(WeightDecl::whole(name.into(), 1, group, DType::F32));
    let op = Op::RmsNorm { weight: Some(weight), eps: 1e-5, offset: 0.0, group };
    b.op(name, op, &[x], cols)
}

/// A whole layer with norms of heads.
fn layer() -> Subgraph {
    let mut b = SubgraphBuilder::new("layer", 4);
    let x = b.input("x", COLS, DType::F32);
    let positions = b.input("positions", 1, DType::I32);
    let state = |b: &mut SubgraphBuilder, name: &str| {
        b.state(name, Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(KEYS)]), DType::F32)
    };
    let caches = [state(&mut b, "keys"), state(&mut b, "values")];
    let n = norm(&mut b, "attention norm", x, COLS);
    let [q, k, v] =
        [("q", COLS), ("k", KEYS), ("v", KEYS)].map(|(name, rows)| product(&mut b, name, n, rows));
    let freqs = RopeFreqs { inv_freq: vec![0.5; 8].into(), factor: 1.0, growth: None };
    let style = RopeStyle::Half;
    let rope = Rope { head_dim: 16, offset: 0, rotary_dim: 16, style, freqs, long: None };
    let [q, k] = [("q norm", q), ("k norm", k)].map(|(name, x)| {
        let n = norm(&mut b, name, x, 16);
        let cols = b.cols(n);
        b.op("rotated", Op::Rope(rope.clone()), &[n, positions], cols)
    });
    for (x, cache) in [k, v].into_iter().zip(caches) {
        b.node(Op::KvAppend(KvAppend { width: KEYS, page_group: 0 }), &[x], &[cache], &[]);
    }
    let attention = Attention {
        heads: 4,
        kv_heads: 2,
        k_dim: 16,
        v_dim: 16,
        scale: 0.25,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let o = b.attention(attention, q, &caches);
    let o = product(&mut b, "o", o, COLS);
    let after = b.op("after attention", Op::Add, &[x, o], COLS);
    let n = norm(&mut b, "norm", after, COLS);
    let [gate, up] = ["gate", "up"].map(|name| product(&mut b, name, n, 96));
    let inner = b.op("inner", Op::Gate(Activation::Silu), &[gate, up], 96);
    let down = product(&mut b, "down", inner, COLS);
    let y = b.op("y", Op::Add, &[after, down], COLS);
    b.output(y);
    b.finish().unwrap()
}

/// Weights that are small numbers.
struct Small(Subgraph);

impl WeightSource for Small {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let decl = self.0.weights.iter().find(|w| &*w.name == name).unwrap();
        let (rows, cols) = (decl.rows, decl.cols);
        let bytes = (0..rows * cols).flat_map(|i| ((i % 7) as f32 / 50.0).to_le_bytes()).collect();
        Ok(WeightData { dtype: DType::F32, rows, cols, bytes: WeightBytes::owned(bytes) })
    }

    fn packed(&self, _: &str, _: PackLayout<'_>, _: PackFn<'_>) -> Result<Packed, DeviceError> {
        Err(DeviceError::Cancelled)
    }
}

/// A queue, and the list that goes there and comes back.
struct Running {
    queue: Box<dyn Queue>,
    completions: Receiver<Completion>,
    list: CommandList,
    run: Run,
    batches: [Arc<ForwardBatch>; 2],
}

impl Running {
    fn new(device: &GpuDevice) -> Running {
        let graph = layer();
        let weights = Weights::compiled(device, &graph, &Small(graph.clone())).unwrap();
        let view = |rows: usize, cols: usize| {
            let buffer = device.allocate(rows * cols * 4).unwrap();
            View::dense(&buffer, 0, (rows, cols * 4)).unwrap()
        };
        let bindings = Bindings {
            inputs: vec![view(1, COLS), view(1, 1)],
            states: vec![view(POSITIONS, KEYS), view(POSITIONS, KEYS)],
            outputs: vec![view(1, COLS)],
        };
        let batches = [20, 21].map(|pos| {
            let table = PageTable::new(StateKind::Paged(None), 16, vec![2, 0, 1, 3]);
            let seq = SeqRows { seq: 0, rows: 0..1, pos, known_len: 60, tables: vec![table] };
            Arc::new(ForwardBatch { seqs: vec![seq] })
        });
        let (bindings, forward) = (Arc::new(bindings), batches[0].clone());
        let run = Run { weights, bindings, rows: 1, forward };
        let (done, completions) = sync_channel(4);
        let queue = device.queue(0, Arc::new(RealClock::new()), done).unwrap();
        Running { queue, completions, list: CommandList::default(), run, batches }
    }

    /// Records and submits a token of so many layers; returns the time until it is on its way.
    fn token(&mut self, layers: usize, number: usize) -> Duration {
        self.run.forward = self.batches[number % 2].clone();
        let took = self.submit(layers, false);
        // Waits until all is done, so that no next token waits for it.
        self.submit(1, true);
        took
    }

    fn submit(&mut self, layers: usize, timed: bool) -> Duration {
        let mut list = std::mem::take(&mut self.list);
        let task = |_| Submission { tag: 0, work: Work::Run(self.run.clone()) };
        list.tasks.extend((0..layers).map(task));
        list.timed = timed;
        let began = Instant::now();
        self.queue.submit(list).unwrap();
        let completion = self.completions.recv().unwrap();
        let took = began.elapsed();
        completion.outcome.unwrap();
        self.list = CommandList { times: completion.times, ..completion.list };
        took
    }
}

/// Products in a chain, recorded with nothing but the interface: what it costs by itself.
struct Bare {
    runner: &'static Runner,
    pipeline: wgpu::ComputePipeline,
    groups: [wgpu::BindGroup; 2],
    dispatch: Dispatch,
}

impl Bare {
    fn new() -> Bare {
        let runner = common::runner().unwrap();
        let at = Loc { offset: 0, stride: COLS as u32 };
        let (rows, cols) = (COLS as u32, COLS as u32);
        let weight = Matrix { format: WeightFormat::F32, rows, cols, first: 0, eight_bits: false };
        let dispatch = kernels::linear(weight, 1, &Around::default(), at, at).unwrap();
        let (pipeline, layout) = runner.pipeline(&dispatch);
        let [w, x, y] = [0, 1, 2].map(|_| runner.floats(&[0.0; COLS * COLS]));
        let groups =
            [[&x, &y], [&y, &x]].map(|[x, y]| runner.group(&layout, &[&w, &w, x, y, x, x, x, x]));
        Bare { runner, pipeline, groups, dispatch }
    }

    /// Records and submits so many dispatches; returns the time until they are on their way.
    fn run(&self, dispatches: usize) -> Duration {
        let began = Instant::now();
        let mut encoder = self.runner.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let [x, y, z] = self.dispatch.grid;
        for i in 0..dispatches {
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &self.groups[i % 2], &[]);
            pass.set_immediates(0, bytemuck::cast_slice(&self.dispatch.params));
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        let index = self.runner.queue.submit([encoder.finish()]);
        let took = began.elapsed();
        self.runner.wait(index);
        took
    }
}

/// Allocations and time of the cheapest of several runs.
fn least(mut run: impl FnMut(usize) -> Duration) -> (usize, Duration) {
    let mut least = (usize::MAX, Duration::MAX);
    for i in 0..20 {
        let before = count();
        let took = run(i);
        least = (least.0.min(count() - before), least.1.min(took));
    }
    least
}

#[test]
fn a_layer_that_runs_again_takes_no_memory_and_little_time() {
    let graph = layer();
    let names = kernels_of(&graph, 1, POSITIONS).unwrap();
    assert!(names.len() <= 7, "{names:?}");
    let Some(device) = open::device(open::options()) else { return };
    let mut running = Running::new(&device);
    let (few, many) = (8, 40);
    for i in 0..8 {
        running.token(many, i);
    }
    let bare = Bare::new();
    bare.run(many * names.len());
    let [own, of_wgpu] = [
        [few, many].map(|layers| least(|i| running.token(layers, i))),
        [few, many].map(|layers| least(|_| bare.run(layers * names.len()))),
    ];
    let dispatches = ((many - few) * names.len()) as f64;
    let each = |of: [(usize, Duration); 2]| {
        let time = of[1].1.saturating_sub(of[0].1).as_secs_f64() * 1e6;
        ((of[1].0 as f64 - of[0].0 as f64) / dispatches, time / dispatches)
    };
    let (own, of_wgpu) = (each(own), each(of_wgpu));
    println!(
        "{:.2} allocations and {:.2} us a dispatch; wgpu by itself: {:.2} and {:.2} us",
        own.0, own.1, of_wgpu.0, of_wgpu.1
    );
    assert!(own.0 < of_wgpu.0 + 0.1, "{} and {} allocations", own.0, of_wgpu.0);
}
