//! Views: columns of a product side by side, sequences in one cache, and refusals.

use std::sync::Arc;

use troika_device::*;
use troika_graph::*;

use super::store::{Store, linear};
use super::{Bench, floats, ints, read, small, small_attention, submissions, task};

/// Weight types with activation formats.
const TYPES: [(DType, ActivationFormat); 7] = [
    (DType::F32, ActivationFormat::F32),
    (DType::F16, ActivationFormat::F32),
    (DType::BF16, ActivationFormat::F32),
    (DType::BF16, ActivationFormat::Bf16),
    (DType::Q8_0, ActivationFormat::F32),
    (DType::Q8_0, ActivationFormat::INT8),
    (DType::Q4_K, ActivationFormat::INT8),
];
const K: usize = 256;
const N: usize = 104;

/// Bytes of a weight without the exponents of infinities.
fn weight(dtype: DType) -> Vec<u8> {
    if dtype == DType::F32 {
        let floats: Vec<f32> = (0..N * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        return bytemuck::cast_slice(&floats).to_vec();
    }
    (0..dtype.row_bytes(K).unwrap() * N).map(|b| (b * 29 % 60) as u8).collect()
}

/// `y = x * w^T + b` with some rows of the weight.
fn product(
    dtype: DType,
    activations: ActivationFormat,
    rows: std::ops::Range<usize>,
) -> (Subgraph, Store) {
    let mut store = Store::default();
    let each = dtype.row_bytes(K).unwrap();
    let bytes = &weight(dtype)[rows.start * each..rows.end * each];
    let mut b = SubgraphBuilder::new("product", 64);
    let w = b.weight(store.add_as("w", dtype, (rows.len(), K), bytes));
    let bias = b.weight(store.add("b", 1, rows.len(), |i| (rows.start + i) as f32 * 0.125));
    let x = b.input("x", K, DType::F32);
    let y = b.op(
        "y",
        Op::Linear { weight: w, bias: Some(bias), activations, form: None },
        &[x],
        rows.len(),
    );
    b.output(y);
    (b.finish().unwrap(), store)
}

/// A task whose only result goes to a view.
fn into(exe: &Arc<Weights>, rows: usize, inputs: &[&Buffer], output: View) -> Run {
    let mut t = task(exe, rows, inputs, &[]);
    Arc::make_mut(&mut t.bindings).outputs.push(output);
    t
}

fn send(bench: &mut Bench, runs: Vec<Run>) {
    let tasks = submissions(runs);
    bench.queue.submit(CommandList { tasks, ..CommandList::default() }).unwrap();
}

#[test]
fn columns_of_a_product_are_computed_side_by_side() {
    let mut benches = [Bench::new("a", 2), Bench::new("b", 1)];
    for (dtype, activations) in TYPES {
        let (whole, store) = product(dtype, activations, 0..N);
        let whole = Weights::compiled(&benches[0].device, &whole, &store).unwrap();
        for cut in [64, 37] {
            let halves = [0..cut, cut..N].map(|r| product(dtype, activations, r));
            let compile = |b: &Bench| {
                halves
                    .each_ref()
                    .map(|(graph, store)| Weights::compiled(&b.device, graph, store).unwrap())
            };
            let (first, second) = (compile(&benches[0]), compile(&benches[1]));
            for rows in [1, 3, 8, 40] {
                let what = format!("{dtype} {activations:?} cut at {cut}, {rows} rows");
                let x: Vec<f32> =
                    (0..rows * K).map(|i| (i * 31 % 97) as f32 / 97.0 - 0.4).collect();
                let (x, y) = (floats(&x), floats(&vec![0.0; rows * N]));
                benches[0].run(vec![task(&whole, rows, &[&x], &[&y])]).outcome.unwrap();
                let y = read(&y);
                assert!(y.iter().any(|y| *y != 0.0 && y.is_finite()), "{what}");
                // On one queue; the first half must leave the second's columns unchanged.
                let both = floats(&vec![f32::MAX; rows * N]);
                let all = View::dense(&both, 0, (rows, 4 * N)).unwrap();
                let views = [0..4 * cut, 4 * cut..4 * N].map(|c| all.columns(c).unwrap());
                let run = |i: usize| into(&first[i], rows, &[&x], views[i].clone());
                benches[0].run(vec![run(0)]).outcome.unwrap();
                let columns = || read(&both).chunks(N).map(<[f32]>::to_vec).collect::<Vec<_>>();
                for (got, want) in columns().iter().zip(y.chunks(N)) {
                    assert!(got[..cut] == want[..cut], "{what}");
                    assert!(got[cut..].iter().all(|x| *x == f32::MAX), "{what}");
                }
                benches[0].run(vec![run(1)]).outcome.unwrap();
                assert!(read(&both) == y, "{what}, one after another");
                // On two devices at once.
                for _ in 0..5 {
                    both.write().unwrap().fill(0xff);
                    let run = |i: usize, exe| vec![into(exe, rows, &[&x], views[i].clone())];
                    send(&mut benches[0], run(0, &first[0]));
                    send(&mut benches[1], run(1, &second[1]));
                    benches.iter().for_each(|b| b.done.recv().unwrap().outcome.unwrap());
                    assert!(read(&both) == y, "{what}, at once");
                }
            }
        }
    }
}

#[test]
fn heads_write_columns_of_a_wider_value() {
    let mut bench = Bench::new("cpu", 2);
    let mut store = Store::default();
    let mut b = SubgraphBuilder::new("heads", 8);
    let weights =
        (0..3).map(|h| b.weight(store.add(&format!("w{h}"), 5, 4, |i| (i + h) as f32))).collect();
    let x = b.input("x", 12, DType::F32);
    let y = b.op("y", Op::HeadLinear(HeadLinear { weights }), &[x], 15);
    b.output(y);
    let exe = Weights::compiled(&bench.device, &b.finish().unwrap(), &store).unwrap();
    let x = floats(&(0..48).map(|i| i as f32).collect::<Vec<_>>());
    let (y, wide) = (floats(&[0.0; 60]), floats(&[7.0; 4 * 20]));
    bench.run(vec![task(&exe, 4, &[&x], &[&y])]).outcome.unwrap();
    let view = View::new(&wide, 8, (4, 60), 80).unwrap();
    bench.run(vec![into(&exe, 4, &[&x], view)]).outcome.unwrap();
    for (got, want) in read(&wide).chunks(20).zip(read(&y).chunks(15)) {
        assert_eq!((&got[..2], &got[2..17], &got[17..]), (&[7.0; 2][..], want, &[7.0; 3][..]));
    }
}

#[test]
fn what_overlaps_at_the_same_time_is_an_error() {
    let mut bench = Bench::new("cpu", 1);
    let (graph, store) = product(DType::F32, ActivationFormat::F32, 0..8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (x, both) = (floats(&[0.5; 4 * K]), floats(&[0.0; 4 * 16]));
    let all = View::dense(&both, 0, (4, 64)).unwrap();
    let left = all.columns(0..32).unwrap();
    let mut run = |rows| bench.run(vec![into(&exe, rows, &[&x], left.clone())]).outcome;
    let beside = all.columns(32..64).unwrap();
    let held = beside.write().unwrap();
    run(4).unwrap();
    drop(held);
    let across = all.columns(28..36).unwrap();
    let held = across.rows(3..4).unwrap();
    let guard = held.write().unwrap();
    assert!(matches!(run(4), Err(DeviceError::Busy(_))));
    // Three rows do not reach it.
    run(3).unwrap();
    drop(guard);
    let guard = across.read().unwrap();
    assert!(matches!(run(1), Err(DeviceError::Busy(_))));
    drop(guard);
    run(4).unwrap();
    assert!(both.write().is_ok() && x.write().is_ok(), "what failed claims nothing");
}

#[test]
fn all_values_may_lie_apart() {
    let mut bench = Bench::new("cpu", 1);
    let (graph, store) = small(8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    assert!(bench.device.caps().strided_rows);
    let input: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let (x, y) = (floats(&input), floats(&[7.0; 16]));
    let dense = floats(&[0.0; 8]);
    let apart = |b: &Buffer, columns: usize| View::new(b, columns * 4, (2, 16), 32).unwrap();
    let gathered: Vec<f32> = [&input[2..6], &input[10..14]].concat();
    bench.run(vec![task(&exe, 2, &[&floats(&gathered)], &[&dense])]).outcome.unwrap();
    let mut t = into(&exe, 2, &[&x], apart(&y, 3));
    Arc::make_mut(&mut t.bindings).inputs[0] = apart(&x, 2);
    bench.run(vec![t]).outcome.unwrap();
    let (y, dense) = (read(&y), read(&dense));
    assert_eq!((&y[3..7], &y[11..15]), (&dense[..4], &dense[4..8]));
    let gaps = [&y[..3], &y[7..11], &y[15..]].concat();
    assert!(gaps.iter().all(|v| *v == 7.0), "{gaps:?}");
    assert_eq!(read(&x), input);
    // A single row has no gap.
    let y = floats(&[0.0; 16]);
    let mut t = into(&exe, 1, &[&x], apart(&y, 0));
    Arc::make_mut(&mut t.bindings).inputs[0] = apart(&floats(&[1.0; 16]), 0);
    bench.run(vec![t]).outcome.unwrap();
    assert_eq!(read(&y)[..5], [1.0, 5.0, 9.0, 13.0, 0.0]);
    let mut t = into(&exe, 2, &[&x], View::whole(&y));
    let own = Buffer::in_space(SpaceId::unique(), 64, 0).unwrap();
    Arc::make_mut(&mut t.bindings).inputs[0] = View::whole(&own);
    let text = bench.run(vec![t]).outcome.unwrap_err().to_string();
    assert!(text.contains("value x is bound to memory that is not the host's"), "{text}");

    // A product that an op also reads; its second output is a copy.
    let mut b = SubgraphBuilder::new("read", 8);
    let mut store = Store::default();
    let w = b.weight(store.add("w", 4, 4, |i| i as f32));
    let xv = b.input("x", 4, DType::F32);
    let p = b.op("p", linear(w, ActivationFormat::F32), &[xv], 4);
    let z = b.op("z", Op::Scale { factor: 2.0 }, &[p], 4);
    b.output(p);
    b.output(z);
    b.output(p);
    let exe = Weights::compiled(&bench.device, &b.finish().unwrap(), &store).unwrap();
    let x = floats(&[1.0; 16]);
    let apart = |b: &Buffer| apart(b, 0);
    let outputs = [floats(&[0.0; 8]), floats(&[0.0; 8]), floats(&[0.0; 16])];
    let mut t = task(&exe, 2, &[&x], &[&outputs[0], &outputs[1], &outputs[2]]);
    Arc::make_mut(&mut t.bindings).outputs[2] = apart(&outputs[2]);
    bench.run(vec![t.clone()]).outcome.unwrap();
    let (p, copy) = (read(&outputs[0]), read(&outputs[2]));
    assert_eq!((&copy[..4], &copy[8..12], &copy[4..8]), (&p[..4], &p[4..], &[0.0; 4][..]));
    let wide = floats(&[0.0; 16]);
    Arc::make_mut(&mut t.bindings).outputs[0] = apart(&wide);
    bench.run(vec![t.clone()]).outcome.unwrap();
    let (wide, copy) = (read(&wide), read(&outputs[2]));
    assert_eq!((&wide[..4], &wide[8..12], &wide[4..8]), (&p[..4], &p[4..], &[0.0; 4][..]));
    assert_eq!(copy, wide);
    // The copy must not overlap the value itself.
    let b = Arc::make_mut(&mut t.bindings);
    b.outputs[0] = View::whole(&outputs[0]);
    b.outputs[2] = View::whole(&outputs[0]);
    let text = bench.run(vec![t]).outcome.unwrap_err().to_string();
    assert!(text.contains("values p and p overlap"), "{text}");
}

#[test]
fn rows_narrower_than_the_value_and_odd_strides_are_refused() {
    let mut bench = Bench::new("cpu", 1);
    let (graph, store) = product(DType::F32, ActivationFormat::F32, 0..8);
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    let (x, wide) = (floats(&[0.5; 4 * K]), floats(&[0.0; 4 * 16]));
    for (rows, bytes, stride) in [(4, 28, 64), (4, 36, 64), (3, 32, 64), (4, 32, 50), (1, 31, 31)] {
        let view = View::new(&wide, 0, (rows, bytes), stride).unwrap();
        let e = bench.run(vec![into(&exe, 4, &[&x], view)]).outcome.unwrap_err();
        assert!(matches!(e, DeviceError::Submission { .. }) && e.to_string().contains("value y"));
    }
    let view = View::new(&wide, 0, (4, 32), 64).unwrap();
    bench.run(vec![into(&exe, 4, &[&x], view)]).outcome.unwrap();
}

/// Positions of a page, and pages of the caches.
const PAGE: usize = 4;
const PAGES: usize = 6;

/// Appends keys and values, and attends to them.
fn attention() -> Subgraph {
    let mut b = SubgraphBuilder::new("attn", 8);
    let (q, k) = (b.input("q", 8, DType::F32), b.input("k", 4, DType::F32));
    let shape = Shape(vec![Dim::KvLen(64), Dim::Fixed(4)]);
    let states = ["keys", "values"].map(|n| b.state(n, shape.clone(), DType::F16));
    for s in states {
        b.node(Op::KvAppend(KvAppend { width: 4, page_group: 0 }), &[k], &[s], &[]);
    }
    let out = b.attention(small_attention(), q, &states);
    b.output(out);
    b.finish().unwrap()
}

/// Rows of one sequence with the given pages.
fn sequence(
    exe: &Arc<Weights>,
    caches: &[Buffer; 2],
    (seq, pages): (u64, &[u32]),
    (pos, rows): (usize, usize),
) -> (Run, Buffer) {
    let at = |n: usize| -> Vec<f32> {
        let all = pos * n..(pos + rows) * n;
        all.map(|i| ((i + 7 * seq as usize) as f32 * 0.37).sin()).collect()
    };
    let out = floats(&vec![0.0; rows * 8]);
    let mut t = task(exe, rows, &[&floats(&at(8)), &floats(&at(4))], &[&out]);
    Arc::make_mut(&mut t.bindings).states = caches.iter().map(View::whole).collect();
    let tables = vec![PageTable::new(StateKind::Paged(None), PAGE, pages.to_vec())];
    t.forward = Arc::new(ForwardBatch {
        seqs: vec![SeqRows { seq, rows: 0..rows, pos, known_len: 0, tables }],
    });
    (t, out)
}

fn caches() -> [Buffer; 2] {
    [0, 1].map(|_| Buffer::zeroed(PAGES * PAGE * 4 * 2).unwrap())
}

#[test]
fn sequences_share_a_cache_and_claim_their_pages() {
    let mut bench = Bench::new("cpu", 1);
    let exe = Weights::compiled(&bench.device, &attention(), &Store::default()).unwrap();
    let caches = caches();
    let mut run = |pos, rows| {
        let (t, out) = sequence(&exe, &caches, (0, &[1, 2, 5]), (pos, rows));
        bench.run(vec![t]).outcome.map(|()| read(&out))
    };
    run(0, 6).unwrap();
    // Rows of pages, of 8 bytes each.
    let rows = |at: usize, n: usize| View::dense(&caches[1], at * 8, (n, 8)).unwrap();
    let others = [rows(0, PAGE), rows(3 * PAGE, 2 * PAGE), rows(2 * PAGE + 3, 1)];
    let held: Vec<_> = others.iter().map(|v| v.write().unwrap()).collect();
    let earlier = rows(PAGE, PAGE);
    let reads = earlier.read().unwrap();
    run(6, 1).unwrap();
    drop((held, reads));
    for (busy, write) in [(rows(PAGE + 1, 1), true), (rows(2 * PAGE + 2, 1), true)] {
        let guard = busy.write().unwrap();
        assert!(write && matches!(run(6, 1), Err(DeviceError::Busy(_))));
        drop(guard);
    }
    let appended = rows(2 * PAGE + 2, 1);
    let guard = appended.read().unwrap();
    assert!(matches!(run(6, 1), Err(DeviceError::Busy(_))), "someone reads what is appended");
    drop(guard);
    run(6, 1).unwrap();
    assert!(caches.iter().all(|c| c.write().is_ok()));
}

/// Two devices append to and read one cache at once, each for its own sequence.
#[test]
fn sequences_on_two_devices_have_the_bits_they_have_alone() {
    let graph = attention();
    let mut benches = [Bench::new("a", 1), Bench::new("b", 2)];
    let exes = benches
        .each_ref()
        .map(|b| Weights::compiled(&b.device, &graph, &Store::default()).unwrap());
    let pages: [&[u32]; 2] = [&[1, 3, 4], &[0, 5, 2]];
    let chunks = [(0, 5), (5, 1), (6, 1), (7, 3), (10, 2)];
    for _ in 0..20 {
        let (shared, mut want, mut got) = (caches(), Vec::new(), Vec::new());
        for i in 0..2 {
            let alone = caches();
            for c in chunks {
                let (t, out) = sequence(&exes[i], &alone, (i as u64, pages[i]), c);
                benches[i].run(vec![t]).outcome.unwrap();
                want.push(read(&out));
            }
        }
        for (i, bench) in benches.iter_mut().enumerate() {
            let tasks = chunks.map(|c| sequence(&exes[i], &shared, (i as u64, pages[i]), c));
            let (tasks, outs): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
            send(bench, tasks);
            got.extend(outs);
        }
        benches.iter().for_each(|b| b.done.recv().unwrap().outcome.unwrap());
        assert!(got.iter().map(read).eq(want));
        assert!(want_differs(&got));
    }
}

fn want_differs(outs: &[Buffer]) -> bool {
    let (a, b) = outs.split_at(outs.len() / 2);
    a.iter().map(read).ne(b.iter().map(read))
}

/// Dropping weights frees them, also if later ones cannot be loaded.
#[test]
fn nothing_is_left_of_what_was_compiled() {
    let mut bench = Bench::scalar(1);
    let (graph, mut store) = small(8);
    let owner: WeightOwner = Arc::new(ZeroedBytes::new(64).unwrap());
    store.edit("w", |w| w.bytes = WeightBytes::whole(owner.clone()));
    let users = || Arc::strong_count(&owner);
    let before = users();
    let exe = Weights::compiled(&bench.device, &graph, &store).unwrap();
    assert_eq!(users(), before + 1);
    let all = || -> Result<Vec<Arc<Weights>>, DeviceError> {
        let mut wrong = graph.clone();
        wrong.weights[0].name = "missing".into();
        [&graph, &graph, &wrong]
            .map(|g| Weights::compiled(&bench.device, g, &store))
            .into_iter()
            .collect()
    };
    assert!(matches!(all(), Err(DeviceError::Weight { .. })));
    assert_eq!(users(), before + 1, "those before the one that failed are gone");
    // A run keeps its weights alive.
    let (x, y) = (ints(&[0; 8]), floats(&[1.0; 8]));
    let t = task(&exe, 2, &[&x], &[&y]);
    drop(exe);
    assert_eq!(users(), before + 1);
    bench.run(vec![t]).outcome.unwrap();
    assert_eq!((users(), &read(&y)[..]), (before, &[0.0; 8][..]));
}
