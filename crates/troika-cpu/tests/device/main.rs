//! The device: subgraphs through compiling, queues and completions.

#![allow(clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs)]

mod bench;
mod load;
mod store;
mod views;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use proptest::prelude::*;
use troika_cpu::{CpuDevice, CpuOptions, Isa};
use troika_device::*;
use troika_graph::*;

use bench::Bench;
use store::{Store, linear};

impl Bench {
    /// A device that uses float weights as stored, without packing them.
    fn scalar(threads: usize) -> Bench {
        let isa = Some(Isa::Scalar);
        Bench::with(CpuOptions { name: "cpu".into(), threads, isa, ..CpuOptions::default() })
    }

    fn run(&mut self, runs: Vec<Run>) -> Completion {
        let tasks = submissions(runs);
        let list = CommandList { id: 9, tasks, timed: true, ..CommandList::default() };
        let c = self.complete(list);
        assert_eq!((c.queue, c.list.id, c.list.tasks.len()), (3, 9, 0));
        c
    }
}

fn floats(x: &[f32]) -> Buffer {
    let b = Buffer::zeroed(x.len() * 4).unwrap();
    b.write().unwrap().as_mut_slice::<f32>().copy_from_slice(x);
    b
}

fn ints(x: &[i32]) -> Buffer {
    let b = Buffer::zeroed(x.len() * 4).unwrap();
    b.write().unwrap().as_mut_slice::<i32>().copy_from_slice(x);
    b
}

fn read(b: &Buffer) -> Vec<f32> {
    b.read().unwrap().as_slice().to_vec()
}

fn submissions(runs: Vec<Run>) -> Vec<Submission> {
    runs.into_iter().map(|run| Submission { tag: 5, work: Work::Run(run) }).collect()
}

fn task(exe: &Arc<Weights>, rows: usize, inputs: &[&Buffer], outputs: &[&Buffer]) -> Run {
    let bind = |b: &[&Buffer]| b.iter().map(|b| View::whole(b)).collect();
    let bindings = Bindings { inputs: bind(inputs), states: vec![], outputs: bind(outputs) };
    let (bindings, forward) = (Arc::new(bindings), Arc::new(ForwardBatch::default()));
    Run { weights: exe.clone(), bindings, rows, forward }
}

/// `out = x * w^T + x`, with `w` all ones times its row.
fn small(max_rows: usize) -> (Subgraph, Store) {
    let mut store = Store::default();
    let mut b = SubgraphBuilder::new("small", max_rows);
    let w = b.weight(store.add("w", 4, 4, |i| (i / 4) as f32));
    let x = b.input("x", 4, DType::F32);
    let y = b.op("y", linear(w, ActivationFormat::F32), &[x], 4);
    let z = b.op("z", Op::Add, &[y, x], 4);
    b.output(z);
    (b.finish().unwrap(), store)
}

#[test]
fn a_batch_runs_in_order_and_reports() {
    let mut bench = Bench::new("cpu", 2);
    let (graph, store) = small(8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (x, y, z) = (floats(&[1.0; 8]), floats(&[0.0; 8]), floats(&[0.0; 8]));
    let c = bench.run(vec![task(&exe, 2, &[&x], &[&y]), task(&exe, 2, &[&y], &[&z])]);
    c.outcome.unwrap();
    assert_eq!(c.times.len(), 2);
    assert!(c.times[0].end <= c.times[1].start && c.times[0].tag == 5);
    assert_eq!(read(&y)[..4], [1.0, 5.0, 9.0, 13.0]);
    assert_eq!(read(&z)[..4], [1.0, 33.0, 65.0, 97.0]);
}

/// Adjacent products of one input run as one. Each has the same bits as alone, whatever the other
/// types, also if its result is not read.
#[test]
fn products_of_one_input_have_the_bits_they_have_alone() {
    let mut bench = Bench::new("cpu", 2);
    let mut store = Store::default();
    let (k, types) = (256, [DType::Q4_K, DType::Q8_0, DType::Q6_K, DType::Q8_0]);
    let widths = [40, 16, 33, 7];
    let x: Vec<f32> = (0..3 * k).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.4).collect();
    let (input, mut outputs) = (floats(&x), Vec::new());
    let mut decls = Vec::new();
    for (i, (dtype, n)) in types.into_iter().zip(widths).enumerate() {
        let len = dtype.row_bytes(k).unwrap() * n;
        // Bytes without the exponents of infinities.
        let bytes: Vec<u8> = (0..len).map(|b| ((b * 29 + i) % 60) as u8).collect();
        decls.push(store.add_as(&format!("w{i}"), dtype, (n, k), &bytes));
    }
    for used in [vec![0, 1, 2, 3], vec![0], vec![1], vec![2], vec![3]] {
        let mut b = SubgraphBuilder::new("products", 3);
        let x = b.input("x", k, DType::F32);
        for i in used.clone() {
            let w = b.weight(decls[i].clone());
            let op = linear(w, ActivationFormat::INT8);
            let y = b.op("y", op.clone(), &[x], widths[i]);
            b.op("unused", op, &[x], widths[i]);
            b.output(y);
        }
        let exe = Weights::compiled(&bench.device, &b.finish().unwrap(), &store).unwrap();
        let ys: Vec<Buffer> = used.iter().map(|i| floats(&vec![0.0; 3 * widths[*i]])).collect();
        let c = bench.run(vec![task(&exe, 3, &[&input], &ys.iter().collect::<Vec<_>>())]);
        c.outcome.unwrap();
        outputs.push(ys.iter().map(read).collect::<Vec<_>>());
    }
    let (together, alone) = outputs.split_first().unwrap();
    for (i, y) in together.iter().enumerate() {
        assert_eq!(*y, alone[i][0], "{}", types[i]);
        assert!(y.iter().any(|y| *y != 0.0));
    }
}

#[test]
fn two_devices_work_side_by_side() {
    let (graph, store) = small(8);
    let mut benches = [Bench::new("a", 2), Bench::new("b", 1)];
    let (x, y, z) = (floats(&[1.0; 8]), floats(&[0.0; 8]), floats(&[0.0; 8]));
    for (bench, out) in benches.iter_mut().zip([&y, &z]) {
        let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
        let list = CommandList {
            tasks: submissions(vec![task(&exe, 2, &[&x], &[out])]),
            ..CommandList::default()
        };
        bench.queue.submit(list).unwrap();
    }
    for bench in &benches {
        bench.done.recv().unwrap().outcome.unwrap();
    }
    assert_eq!(read(&y), read(&z));
}

#[test]
fn wrong_submissions_are_errors_and_the_queue_goes_on() {
    let mut bench = Bench::new("cpu", 2);
    let (graph, store) = small(8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (x, y) = (floats(&[1.0; 8]), floats(&[0.0; 8]));
    let (short, big) = (floats(&[1.0; 7]), floats(&[0.0; 64]));
    let mut odd = task(&exe, 1, &[&x], &[&y]);
    Arc::make_mut(&mut odd.bindings).inputs[0] = View::dense(&x, 2, (1, 16)).unwrap();
    let other = Bench::new("other", 1);
    let theirs = Weights::compiled(&other.device, &graph, &store).unwrap();
    let wrong = vec![
        task(&exe, 2, &[&short], &[&y]),
        task(&exe, 2, &[&x], &[&short]),
        task(&exe, 9, &[&big], &[&floats(&[0.0; 64])]),
        task(&exe, 2, &[], &[&y]),
        task(&exe, 2, &[&x], &[]),
        task(&exe, 2, &[&x], &[&x]),
        task(&theirs, 2, &[&x], &[&y]),
        odd,
    ];
    for (i, t) in wrong.into_iter().enumerate() {
        // Tasks after a failure are skipped.
        let c = bench.run(vec![t, task(&exe, 2, &[&x], &[&y])]);
        let e = c.outcome.unwrap_err();
        assert!(matches!(e, DeviceError::Submission { .. }), "{i}: {e}");
        assert_eq!(c.times.len(), 1);
    }
    assert_eq!(read(&y), [0.0; 8]);
    let guard = x.write().unwrap();
    let c = bench.run(vec![task(&exe, 2, &[&x], &[&y])]);
    assert!(matches!(c.outcome, Err(DeviceError::Busy(_))));
    drop(guard);
    bench.run(vec![task(&exe, 2, &[&x], &[&y])]).outcome.unwrap();
}

/// Cached bindings serve only the same bindings, rows and executable: not others at the same
/// address, and not after the queue's memory was reallocated.
#[test]
fn bindings_are_told_apart() {
    let mut bench = Bench::new("cpu", 1);
    let (graph, store) = small(64);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let mut wide = SubgraphBuilder::new("wide", 64);
    let x = wide.input("x", 4, DType::F32);
    let twice = wide.op("twice", Op::ConcatCols { groups: 1 }, &[x, x], 8);
    let last = wide.op("last", Op::SliceCols { group: 8, start: 4, len: 4 }, &[twice], 4);
    wide.output(last);
    let wide = Weights::compiled(&bench.device, &wide.finish().unwrap(), &store).unwrap();
    let mut at = std::collections::HashSet::new();
    let kept = [floats(&[1.0; 256]), floats(&[0.0; 256])];
    let again = task(&exe, 1, &[&kept[0]], &[&kept[1]]);
    for i in 0..64 {
        let (value, rows) = (i as f32, 1 + i % 7 * 9);
        let (x, y) = (floats(&vec![value; rows * 4]), floats(&vec![-1.0; rows * 4]));
        let short = floats(&vec![0.0; rows * 4 - 1]);
        let run = task(if i % 3 == 0 { &wide } else { &exe }, rows, &[&x], &[&y]);
        at.insert(Arc::as_ptr(&run.bindings));
        let more = Run { rows: rows + 1, ..run.clone() };
        let small = task(&exe, rows, &[&x], &[&short]);
        bench.run(vec![run]).outcome.unwrap();
        let factor = if i % 3 == 0 { 1.0 } else { 13.0 };
        let read = read(&y);
        assert_eq!((read[3], read[rows * 4 - 1]), (value * factor, value * factor), "{i}");
        for wrong in [more, small] {
            assert!(bench.run(vec![wrong]).outcome.is_err(), "{i}");
        }
        // Submitted again after others made the queue's memory grow.
        kept[0].write().unwrap().as_mut_slice::<f32>()[..4].fill(value);
        bench.run(vec![again.clone()]).outcome.unwrap();
        assert_eq!(self::read(&kept[1])[..4], [0.0, 4.0, 8.0, 12.0].map(|f| value * (f + 1.0)));
    }
    assert!(at.len() > 1, "the queue keeps the place of bindings, so that no others take it");
}

#[test]
fn parts_of_one_buffer_may_be_read_and_written() {
    let mut bench = Bench::new("cpu", 1);
    let (graph, store) = small(8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let both = floats(&[1.0; 16]);
    let mut t = task(&exe, 2, &[&both], &[&both]);
    Arc::make_mut(&mut t.bindings).outputs[0] = View::dense(&both, 32, (2, 16)).unwrap();
    bench.run(vec![t]).outcome.unwrap();
    assert_eq!(read(&both)[8..12], [1.0, 5.0, 9.0, 13.0]);
}

#[test]
fn a_panic_inside_a_kernel_is_an_error() {
    let mut bench = Bench::scalar(2);
    let (graph, mut store) = small(8);
    let short = Arc::new(AtomicBool::new(false));
    store.shrink("w", &short);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (x, y) = (floats(&[1.0; 8]), floats(&[0.0; 8]));
    let run = |bench: &mut Bench| bench.run(vec![task(&exe, 2, &[&x], &[&y])]).outcome;
    run(&mut bench).unwrap();
    // The owner of a weight's bytes may withdraw them: their length is checked on every use.
    short.store(true, Ordering::Relaxed);
    let failed = run(&mut bench).unwrap_err();
    assert!(matches!(failed, DeviceError::System { .. }), "{failed}");
    short.store(false, Ordering::Relaxed);
    run(&mut bench).unwrap();
}

/// A size beyond the address space is an error that names what it was for.
#[test]
fn too_much_memory_is_refused_and_the_queue_goes_on() {
    let mut bench = Bench::new("cpu", 2);
    let rows = 1 << 16;
    let mut b = SubgraphBuilder::new("wide", rows);
    let x = b.input("x", 1, DType::F32);
    let mut wide = x;
    for i in 1..=30 {
        wide = b.op("wide", Op::ConcatCols { groups: 1 }, &[wide, wide], 1 << i);
    }
    let y = b.op("y", Op::SliceCols { group: 1 << 30, start: 5, len: 1 }, &[wide], 1);
    b.output(y);
    let exe = Weights::compiled(&bench.device, &b.finish().unwrap(), &Store::default()).unwrap();
    let (x, y) = (floats(&vec![1.0; rows]), floats(&vec![0.0; rows]));
    let refused = bench.run(vec![task(&exe, rows, &[&x], &[&y])]).outcome.unwrap_err();
    let DeviceError::Memory { bytes, .. } = &refused else { panic!("{refused}") };
    assert!(*bytes >= 4 << 46, "{bytes}");
    let text = refused.to_string();
    assert!(text.contains("no memory for wide on device cpu") && text.contains("65536 rows"));
    let (graph, store) = small(8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    bench.run(vec![task(&exe, 2, &[&x], &[&y])]).outcome.unwrap();
}

#[test]
fn weights_must_be_what_the_graph_says() {
    let bench = Bench::new("cpu", 1);
    let (mut graph, store) = small(8);
    graph.weights[0].rows = 5;
    // Then the graph itself is inconsistent.
    let refused = Weights::compiled(&bench.device, &graph, &store);
    assert!(matches!(refused, Err(DeviceError::Graph { .. })), "{refused:?}");
    graph.weights[0].rows = 4;
    graph.weights[0].name = "v".into();
    assert!(matches!(
        Weights::compiled(&bench.device, &graph, &store),
        Err(DeviceError::Weight { .. })
    ));
}

#[test]
fn bad_ids_are_the_submissions_fault() {
    let mut bench = Bench::new("cpu", 2);
    let mut store = Store::default();
    let mut b = SubgraphBuilder::new("embed", 4);
    let table = b.weight(store.add("t", 3, 5, |i| i as f32));
    let ids = b.input("ids", 1, DType::I32);
    let y = b.op("y", Op::Embed { table, scale: 2.0 }, &[ids], 5);
    b.output(y);
    // The input itself is also an output, and the result is one twice.
    b.output(ids);
    b.output(y);
    let graph = b.finish().unwrap();
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (y, copy, again) = (floats(&[0.0; 10]), ints(&[0; 2]), floats(&[0.0; 10]));
    let outputs = [&y, &copy, &again];
    bench.run(vec![task(&exe, 2, &[&ints(&[2, 1])], &outputs)]).outcome.unwrap();
    assert_eq!(read(&y)[..6], [20.0, 22.0, 24.0, 26.0, 28.0, 10.0]);
    assert_eq!(copy.read().unwrap().as_slice::<i32>(), [2, 1]);
    assert_eq!(read(&again), read(&y));
    let c = bench.run(vec![task(&exe, 2, &[&ints(&[2, 3])], &outputs)]);
    assert!(matches!(c.outcome, Err(DeviceError::Submission { .. })));
}

#[test]
fn device_options_are_checked_and_told() {
    let none = CpuOptions { name: "cpu".into(), ..CpuOptions::default() };
    assert!(matches!(CpuDevice::new(none.clone()), Err(DeviceError::System { .. })));
    let pinned = CpuOptions { threads: 2, cores: Some(vec![0]), isa: Some(Isa::Scalar), ..none };
    let device = CpuDevice::new(pinned).unwrap();
    let fact = |name: &str| {
        let facts = &device.caps().facts;
        facts.iter().find(|f| f.0 == name).map(|f| f.1.clone()).unwrap_or_default()
    };
    assert_eq!((fact("threads"), fact("kernels")), ("2".into(), "scalar".into()));
    assert_eq!(fact("pinned to cores"), "0");
    let (send, done) = sync_channel(8);
    let queue = device.queue(0, Arc::new(RealClock::new()), send).unwrap();
    // Dropping the queue ends its thread, which holds the other end of the channel.
    drop(queue);
    assert!(done.recv().is_err());
}

fn small_attention() -> Attention {
    Attention {
        heads: 2,
        kv_heads: 1,
        k_dim: 4,
        v_dim: 4,
        scale: 0.5,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    }
}

/// One layer's attention through cache states: in one step, and row by row.
#[test]
fn a_cached_prompt_continues() {
    for kv in [DType::F32, DType::F16, DType::BF16] {
        let mut bench = Bench::new("cpu", 2);
        let mut b = SubgraphBuilder::new("attn", 8);
        let (q, k) = (b.input("q", 8, DType::F32), b.input("k", 4, DType::F32));
        let positions = b.input("positions", 1, DType::I32);
        let shape = Shape(vec![Dim::KvLen(64), Dim::Fixed(4)]);
        let (ks, vs) = (b.state("k", shape.clone(), kv), b.state("v", shape, kv));
        let freqs = RopeFreqs { inv_freq: Arc::from([1.0, 0.1]), factor: 1.0, growth: None };
        let rope = Rope {
            head_dim: 4,
            offset: 0,
            rotary_dim: 4,
            style: RopeStyle::Half,
            freqs,
            long: None,
        };
        let q = b.op("rq", Op::Rope(rope.clone()), &[q, positions], 8);
        let rk = b.op("rk", Op::Rope(rope), &[k, positions], 4);
        b.node(Op::KvAppend(KvAppend { width: 4, page_group: 0 }), &[rk], &[ks], &[]);
        b.node(Op::KvAppend(KvAppend { width: 4, page_group: 0 }), &[k], &[vs], &[]);
        let out = b.attention(small_attention(), q, &[ks, vs]);
        b.output(out);
        let graph = b.finish().unwrap();
        let exe = Weights::compiled(&bench.device, &graph, &Store::default()).unwrap();
        let at = |r: Range<usize>, n: usize, s: f32| -> Vec<f32> {
            (r.start * n..r.end * n).map(|i| (i as f32 * s).sin()).collect()
        };
        let mut run = |cache: &[Buffer; 2], r: Range<usize>| {
            let y = floats(&vec![0.0; r.len() * 8]);
            let positions: Vec<i32> = r.clone().map(|p| p as i32).collect();
            let (q, k) = (floats(&at(r.clone(), 8, 0.7)), floats(&at(r.clone(), 4, 0.3)));
            let mut t = task(&exe, r.len(), &[&q, &k, &ints(&positions)], &[&y]);
            Arc::make_mut(&mut t.bindings).states = cache.iter().map(View::whole).collect();
            let tables = vec![PageTable::new(StateKind::Paged(None), 4, vec![2, 0])];
            let seqs =
                vec![SeqRows { seq: 0, rows: 0..r.len(), pos: r.start, known_len: 8, tables }];
            t.forward = Arc::new(ForwardBatch { seqs });
            bench.run(vec![t]).outcome.map(|()| read(&y))
        };
        let cache = || [48, 48].map(|len| Buffer::zeroed(4 * len).unwrap());
        let whole = run(&cache(), 0..8).unwrap();
        let (parts, mut joined) = (cache(), Vec::new());
        for r in [0..3, 3..4, 4..8] {
            joined.extend(run(&parts, r).unwrap());
        }
        assert_eq!(whole, joined);
        // A ninth position has no page, and a step of another length does not fit.
        assert!(matches!(run(&parts, 8..9), Err(DeviceError::Submission { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random graphs of element-wise ops: sharing memory by lifetimes does not mix up values.
    #[test]
    fn values_keep_apart_while_they_live(
        ops in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..40),
        rows in 1usize..6,
        wanted in any::<prop::sample::Index>(),
    ) {
        let mut bench = Bench::new("cpu", 1);
        let mut b = SubgraphBuilder::new("random", 8);
        let mut values = vec![b.input("x", 3, DType::F32)];
        let mut want: Vec<Vec<f32>> = vec![(0..rows * 3).map(|i| i as f32 * 0.25 - 1.0).collect()];
        // Different widths, so that rooms are split and joined.
        let mut widths = vec![3];
        for (kind, i, j) in ops {
            let (i, j) = (i.index(values.len()), j.index(values.len()));
            let (op, ins, cols, y): (Op, Vec<_>, usize, Vec<f32>) = match kind {
                0 if widths[i] == widths[j] => {
                    let y = want[i].iter().zip(&want[j]).map(|(a, b)| a + b).collect();
                    (Op::Add, vec![values[i], values[j]], widths[i], y)
                }
                1 if widths[i] + widths[j] < 60 => {
                    let rows = want[i].chunks(widths[i]).zip(want[j].chunks(widths[j]));
                    let y = rows.flat_map(|(a, b)| [a, b].concat()).collect();
                    (Op::ConcatCols { groups: 1 }, vec![values[i], values[j]], widths[i] + widths[j], y)
                }
                2 if widths[i] > 3 => {
                    let y = want[i].chunks(widths[i]).flat_map(|r| r[..3].to_vec()).collect();
                    let op = Op::SliceCols { group: widths[i], start: 0, len: 3 };
                    (op, vec![values[i]], 3, y)
                }
                _ => {
                    let y = want[i].iter().map(|a| a * 0.5).collect();
                    (Op::Scale { factor: 0.5 }, vec![values[i]], widths[i], y)
                }
            };
            values.push(b.op("v", op, &ins, cols));
            widths.push(cols);
            want.push(y);
        }
        let (wanted, last) = (wanted.index(values.len()), values.len() - 1);
        b.output(values[wanted]);
        b.output(values[last]);
        let exe = Weights::compiled(&bench.device, &b.finish().unwrap(), &Store::default()).unwrap();
        let x = floats(&want[0]);
        let (y, z) = (floats(&vec![0.0; rows * widths[wanted]]), floats(&vec![0.0; rows * widths[last]]));
        bench.run(vec![task(&exe, rows, &[&x], &[&y, &z])]).outcome.unwrap();
        assert_eq!(read(&y), want[wanted]);
        assert_eq!(read(&z), want[last]);
    }
}
