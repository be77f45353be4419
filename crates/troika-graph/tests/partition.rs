//! Partition: every column is computed once, from what earlier stages wrote, and ops that cannot be
//! split are named.

#![allow(clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use troika_graph::partition::*;
use troika_graph::*;

fn weight(b: &mut SubgraphBuilder, name: &str, rows: usize, cols: usize) -> WeightRef {
    b.weight(WeightDecl::whole(name.into(), rows, cols, DType::F32))
}

fn linear(b: &mut SubgraphBuilder, name: &str, x: ValueId, rows: usize) -> ValueId {
    let cols = b.cols(x);
    let w = weight(b, name, rows, cols);
    let bias = weight(b, &format!("{name} bias"), 1, rows);
    b.op(
        name,
        Op::Linear { weight: w, bias: Some(bias), activations: ActivationFormat::F32, form: None },
        &[x],
        rows,
    )
}

fn norm(b: &mut SubgraphBuilder, name: &str, x: ValueId, group: usize) -> ValueId {
    let cols = b.cols(x);
    let w = weight(b, name, 1, group);
    b.op(name, Op::RmsNorm { weight: Some(w), eps: 1e-5, offset: 0.0, group }, &[x], cols)
}

fn rope(b: &mut SubgraphBuilder, x: ValueId, positions: ValueId, head_dim: usize) -> ValueId {
    let freqs = RopeFreqs { inv_freq: Arc::from([1.0, 0.5]), factor: 1.0, growth: None };
    let (offset, rotary_dim, style) = (0, 4, RopeStyle::Half);
    let op = Rope { head_dim, offset, rotary_dim, style, freqs, long: None };
    let cols = b.cols(x);
    b.op("rotated", Op::Rope(op), &[x, positions], cols)
}

/// Norm, gate and up, their product, down, and the residual.
fn feed_forward(hidden: usize, inter: usize, post: bool) -> Subgraph {
    let mut b = SubgraphBuilder::new("ffn", 8);
    let x = b.input("x", hidden, DType::F32);
    let n = norm(&mut b, "norm", x, hidden);
    let up = linear(&mut b, "up", n, inter);
    let gate = linear(&mut b, "gate", n, inter);
    let h = b.op("inner", Op::Gate(Activation::Silu), &[gate, up], inter);
    let mut y = linear(&mut b, "down", h, hidden);
    if post {
        y = norm(&mut b, "post", y, hidden);
    }
    let y = b.op("sum", Op::Add, &[x, y], hidden);
    b.output(y);
    b.finish().unwrap()
}

/// Norm, projections, and per-head norm and rope of queries and keys.
fn qkv(hidden: usize, heads: usize, kv_heads: usize, dim: usize) -> Subgraph {
    let mut b = SubgraphBuilder::new("qkv", 8);
    let x = b.input("x", hidden, DType::F32);
    let positions = b.input("positions", 1, DType::I32);
    let n = norm(&mut b, "norm", x, hidden);
    let q = linear(&mut b, "q", n, heads * dim);
    let k = linear(&mut b, "k", n, kv_heads * dim);
    let v = linear(&mut b, "v", n, kv_heads * dim);
    for t in [q, k] {
        let t = norm(&mut b, "per head", t, dim);
        let t = rope(&mut b, t, positions, dim);
        b.output(t);
    }
    b.output(v);
    b.finish().unwrap()
}

fn attention(heads: usize, kv_heads: usize, dim: usize) -> Subgraph {
    let mut b = SubgraphBuilder::new("attention", 8);
    let width = kv_heads * dim;
    let q = b.input("q", heads * dim, DType::F32);
    let k = b.input("k", width, DType::F32);
    let v = b.input("v", width, DType::F32);
    let mut state =
        |name| b.state(name, Shape(vec![Dim::KvLen(64), Dim::Fixed(width)]), DType::F16);
    let states = [state("k cache"), state("v cache")];
    for (x, s) in [k, v].into_iter().zip(states) {
        b.node(Op::KvAppend(KvAppend { width, page_group: 0 }), &[x], &[s], &[]);
    }
    let sinks = Some(weight(&mut b, "sinks", 1, heads));
    let op = Attention {
        heads,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        scale: 1.0,
        window: None,
        softcap: None,
        sinks,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let o = b.attention(op, q, &states);
    b.output(o);
    b.finish().unwrap()
}

fn head(hidden: usize, vocab: usize) -> Subgraph {
    let mut b = SubgraphBuilder::new("head", 8);
    let x = b.input("x", hidden, DType::F32);
    let n = norm(&mut b, "norm", x, hidden);
    let y = linear(&mut b, "logits", n, vocab);
    let y = b.op("scaled", Op::Scale { factor: 0.5 }, &[y], vocab);
    let y = b.op("capped", Op::SoftCap { cap: 30.0 }, &[y], vocab);
    b.output(y);
    b.finish().unwrap()
}

/// A router and experts with a shared expert behind its own gate.
fn experts() -> Subgraph {
    let mut b = SubgraphBuilder::new("experts", 8);
    let x = b.input("x", 64, DType::F32);
    let n = norm(&mut b, "norm", x, 64);
    let logits = linear(&mut b, "router", n, 4);
    let choose = Router {
        experts: 4,
        top_k: 2,
        score: Score::Softmax,
        normalize: true,
        scale: 1.0,
        groups: None,
        bias: Some(weight(&mut b, "choice", 1, 4)),
        expert_scales: Some(weight(&mut b, "scales", 1, 4)),
    };
    let (ids, weights) = b.router(choose, logits);
    let mut list = |name: &str, rows, cols| -> Vec<WeightRef> {
        (0..4).map(|i| weight(&mut b, &format!("{name} {i}"), rows, cols)).collect()
    };
    let op = Experts {
        gate: list("eg", 32, 64),
        up: list("eu", 32, 64),
        down: list("ed", 64, 32),
        gate_bias: Vec::new(),
        up_bias: Vec::new(),
        down_bias: Vec::new(),
        act: Activation::Silu,
        activations: ActivationFormat::F32,
    };
    let y = b.op("experts", Op::Experts(op), &[n, ids, weights], 64);
    let gate = linear(&mut b, "shared gate", n, 96);
    let up = linear(&mut b, "shared up", n, 96);
    let h = b.op("inner", Op::Gate(Activation::Silu), &[gate, up], 96);
    let s = linear(&mut b, "shared down", h, 64);
    let g = linear(&mut b, "out gate", n, 1);
    let s = b.op("gated", Op::SigmoidGate, &[s, g], 64);
    let y = b.op("both", Op::Add, &[y, s], 64);
    let y = b.op("sum", Op::Add, &[x, y], 64);
    b.output(y);
    b.finish().unwrap()
}

fn split(g: &Subgraph, shares: &[u32], tile: usize, groups: Option<usize>) -> Partitioned {
    split_columns(g, &ColumnSplit { shares: shares.to_vec(), tile, groups }).unwrap()
}

#[test]
fn experts_are_cut_from_what_is_around_them() {
    let g = experts();
    let around = around_experts(&g).unwrap();
    assert_eq!(names(around.before.as_ref().unwrap()), ["rms_norm", "linear", "router"]);
    assert_eq!(names(&around.experts), ["experts"]);
    let beside = ["linear", "linear", "gate", "linear", "linear", "sigmoid_gate"];
    assert_eq!(names(around.beside.as_ref().unwrap()), beside);
    let after = around.after.as_ref().unwrap();
    assert_eq!(names(after), ["add", "add"]);
    let mut written = Written::default();
    let pieces =
        [around.before.as_ref(), Some(&around.experts), around.beside.as_ref(), Some(after)];
    for piece in pieces.into_iter().flatten() {
        for c in &piece.inputs {
            let known = g.inputs.contains(&c.value) || written.of(&g, c.value).iter().all(|w| *w);
            assert!(known, "{c:?} is not there");
        }
        piece.outputs.iter().for_each(|c| written.of(&g, c.value).fill(true));
    }
    assert!(written.of(&g, g.outputs[0]).iter().all(|w| *w));
    let single = single_choices(&g).unwrap();
    assert_eq!(single.max_rows(), 16, "two of 8 rows each");
    assert!(single.inputs[1..].iter().all(|v| single.value(*v).shape.row_len() == 1));
    let none = head(8, 16);
    let refused = around_experts(&none).unwrap_err().to_string();
    assert!(refused.ends_with(" has no experts to share out"), "{refused}");
}

#[test]
fn a_group_has_the_experts_it_is_asked_for_in_that_order() {
    let g = experts();
    let group = expert_group(&g, &[3, 0], 5).unwrap();
    let names: Vec<&str> = group.weights.iter().map(|w| &*w.name).collect();
    assert_eq!(names, ["eg 3", "eg 0", "eu 3", "eu 0", "ed 3", "ed 0"]);
    let Op::ExpertGroup(op) = &group.nodes[0].op else { panic!() };
    assert_eq!((op.capacity, group.max_rows()), (5, 10));
    verify(&bind_static(&group, 10)).unwrap();
    assert!(verify(&bind_static(&group, 8)).unwrap_err().what.contains("8 rows, needs 5"));
    // Groups of one shape share code.
    assert!(group.same_code(&expert_group(&g, &[1, 2], 5).unwrap()));
    assert!(!group.same_code(&expert_group(&g, &[1, 2], 4).unwrap()));
    let missing = expert_group(&g, &[3, 4], 5).unwrap_err();
    assert!(missing.to_string().contains("has no expert 4 "), "{missing}");
    assert!(matches!(expert_group(&g, &[], 5), Err(PartitionError::Zero { .. })));
    assert!(matches!(expert_group(&g, &[1], 0), Err(PartitionError::Zero { .. })));
    // Halves reach it, and formats that a calibration would have to know its inputs for do not.
    let formats = [ActivationFormat::F16, ActivationFormat::of_tensor(8, ScaleOrigin::Static)];
    assert_eq!(formats.map(|f| convert_products(&group, f) == group), [false, true]);
    assert_eq!(restrict_activations(&convert_products(&group, formats[0]), &[]), group);
}

#[test]
fn the_products_of_an_expert_split_by_columns() {
    let g = experts();
    let whole = expert_products(&g, 2, 5).unwrap();
    let weights: Vec<&str> = whole.weights.iter().map(|w| &*w.name).collect();
    assert_eq!(weights, ["eg 2", "eu 2", "ed 2"]);
    assert_eq!(whole.max_rows(), 5);
    let split = split(&whole, &[1, 1], 2, None);
    let pieces: Vec<usize> = split.stages.iter().map(|s| s.pieces.len()).collect();
    assert_eq!(pieces, [2, 2]);
    assert!(kept(&whole, &split).is_empty());
    assert_eq!(names(&split.stages[0].pieces[1]), ["linear", "linear", "gate"]);
    assert_eq!(names(&split.stages[1].pieces[0]), ["linear"]);
    let missing = expert_products(&g, 4, 5).unwrap_err();
    assert!(missing.to_string().contains("has no expert 4 "), "{missing}");
    assert!(matches!(expert_products(&g, 1, 0), Err(PartitionError::Zero { .. })));
}

/// The columns of each value that were written.
#[derive(Default)]
struct Written(BTreeMap<u32, Vec<bool>>);

impl Written {
    fn of(&mut self, g: &Subgraph, v: ValueId) -> &mut Vec<bool> {
        self.0.entry(v.0).or_insert_with(|| vec![false; g.value(v).shape.row_len()])
    }
}

/// Properties of every partition: pieces are well formed, read only what exists, bind what fits,
/// write each column once, and together read each row of each weight.
fn check(g: &Subgraph, p: &Partitioned) {
    let mut written = Written::default();
    g.inputs.iter().for_each(|v| written.of(g, *v).fill(true));
    for stage in &p.stages {
        assert!(!stage.pieces.is_empty());
        assert!(stage.pieces.is_sorted_by(|a, b| a.part < b.part));
        for piece in &stage.pieces {
            verify(&piece.graph).unwrap();
            let bound = |ids: &[ValueId], at: &[Columns]| {
                assert_eq!(ids.len(), at.len());
                for (id, columns) in ids.iter().zip(at) {
                    let (part, all) = (piece.graph.value(*id), g.value(columns.value));
                    assert_eq!(part.shape.row_len(), columns.cols.len());
                    assert_eq!((part.dtype, part.shape.0[0]), (all.dtype, all.shape.0[0]));
                }
            };
            bound(&piece.graph.inputs, &piece.inputs);
            bound(&piece.graph.states, &piece.states);
            bound(&piece.graph.outputs, &piece.outputs);
            for c in &piece.inputs {
                let there = written.of(g, c.value)[c.cols.clone()].iter().all(|w| *w);
                assert!(there, "{} reads {c:?} too early", piece.graph.name);
            }
        }
        for c in stage.pieces.iter().flat_map(|piece| &piece.outputs) {
            for w in &mut written.of(g, c.value)[c.cols.clone()] {
                assert!(!*w || g.inputs.contains(&c.value), "{c:?} is written twice");
                *w = true;
            }
        }
    }
    let pieces = p.stages.iter().flat_map(|s| &s.pieces);
    let between: BTreeSet<ValueId> = pieces.flat_map(|p| &p.outputs).map(|c| c.value).collect();
    for v in g.outputs.iter().chain(&between) {
        assert!(written.of(g, *v).iter().all(|w| *w), "{} has gaps", g.value(*v).name);
    }
    check_weights(g, p);
    check_states(g, p);
}

/// Each row of each matrix is read by one part; vectors may be read by several.
fn check_weights(g: &Subgraph, p: &Partitioned) {
    let pieces = || p.stages.iter().flat_map(|s| &s.pieces);
    for whole in g.weights.iter().filter(|w| w.rows > 1) {
        let mut rows = vec![0; whole.rows];
        let parts = pieces().flat_map(|piece| &piece.graph.weights);
        for part in parts.filter(|w| w.name == whole.name) {
            assert_eq!(part.stored(), (whole.rows, whole.cols), "{}", whole.name);
            rows[part.stored_rows()].iter_mut().for_each(|n| *n += 1);
        }
        assert!(rows.iter().all(|n| *n == 1), "rows of {}: {rows:?}", whole.name);
    }
}

/// Each column of each cache is appended by one part.
fn check_states(g: &Subgraph, p: &Partitioned) {
    for state in &g.states {
        let mut columns = vec![0; g.value(*state).shape.row_len()];
        for piece in p.stages.iter().flat_map(|s| &s.pieces) {
            let appends = piece.graph.nodes.iter().filter(|n| matches!(n.op, Op::KvAppend(_)));
            for id in appends.flat_map(|n| &n.states) {
                let at = piece.graph.states.iter().position(|s| s == id).unwrap();
                let bound = &piece.states[at];
                if bound.value == *state {
                    columns[bound.cols.clone()].iter_mut().for_each(|n| *n += 1);
                }
            }
        }
        assert!(columns.iter().all(|n| *n == 1), "columns of a cache: {columns:?}");
    }
}

/// The ops that a single piece computes.
fn kept(g: &Subgraph, p: &Partitioned) -> Vec<&'static str> {
    let key = |g: &Subgraph, n: &Node| {
        let values = n.outputs.iter().chain(&n.states).map(|v| g.value(*v).name.clone());
        (n.op.name(), values.collect::<Vec<_>>())
    };
    let pieces = || p.stages.iter().flat_map(|s| &s.pieces);
    let alone = |n: &&Node| {
        let has = |p: &&Piece| p.graph.nodes.iter().any(|o| key(&p.graph, o) == key(g, n));
        pieces().filter(has).count() == 1
    };
    g.nodes.iter().filter(alone).map(|n| n.op.name()).collect()
}

fn names(piece: &Piece) -> Vec<&'static str> {
    piece.graph.nodes.iter().map(|n| n.op.name()).collect()
}

fn slices(piece: &Piece) -> Vec<(String, std::ops::Range<usize>)> {
    let matrices = piece.graph.weights.iter().filter(|w| w.rows > 1);
    matrices.map(|w| (w.name.to_string(), w.stored_rows())).collect()
}

/// The example of the README.
#[test]
fn a_feed_forward_is_two_stages() {
    let g = feed_forward(64, 160, false);
    let p = split(&g, &[3, 1], 16, None);
    check(&g, &p);
    assert!(kept(&g, &p).is_empty());
    let [first, second] = &p.stages[..] else { panic!("{} stages", p.stages.len()) };
    let rows = |w: &str, r| (w.to_string(), r);
    for (piece, r) in first.pieces.iter().zip([0..128, 128..160]) {
        // Each part normalises the row itself.
        assert_eq!(names(piece), ["rms_norm", "linear", "linear", "gate"]);
        assert_eq!(slices(piece), [rows("up", r.clone()), rows("gate", r.clone())]);
        assert_eq!(piece.inputs, [Columns { value: g.inputs[0], cols: 0..64 }]);
        assert_eq!(piece.outputs, [Columns { value: ValueId(4), cols: r.clone() }]);
        let bias = &piece.graph.weights[2];
        assert_eq!((bias.stored_cols(), bias.stored()), (r, (1, 160)));
    }
    for (piece, r) in second.pieces.iter().zip([0..48, 48..64]) {
        assert_eq!(names(piece), ["linear", "add"]);
        assert_eq!(slices(piece), [rows("down", r.clone())]);
        let inner = Columns { value: ValueId(4), cols: 0..160 };
        let residual = Columns { value: g.inputs[0], cols: r.clone() };
        assert_eq!(piece.inputs, [inner, residual]);
        assert_eq!(piece.outputs, [Columns { value: g.outputs[0], cols: r }]);
    }
}

#[test]
fn a_norm_behind_a_split_ends_it() {
    let g = feed_forward(64, 160, true);
    let p = split(&g, &[1, 2], 16, None);
    check(&g, &p);
    let sizes: Vec<usize> = p.stages.iter().map(|s| s.pieces.len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
    assert_eq!(p.stages[2].pieces[0].part, 1);
    assert_eq!(names(&p.stages[2].pieces[0]), ["rms_norm", "add"]);
    assert_eq!(kept(&g, &p), ["rms_norm", "add"]);
}

#[test]
fn query_heads_stay_with_the_keys_they_read() {
    let (heads, kv_heads, dim) = (12, 4, 16);
    let g = qkv(64, heads, kv_heads, dim);
    let a = attention(heads, kv_heads, dim);
    assert_eq!(partition::kv_heads(&a), Some(4));
    let (p, q) = (split(&g, &[1, 3], 16, Some(4)), split(&a, &[1, 3], 16, None));
    check(&g, &p);
    check(&a, &q);
    assert_eq!((p.stages.len(), q.stages.len()), (1, 1));
    assert!(kept(&g, &p).is_empty() && kept(&a, &q).is_empty());
    for part in 0..2 {
        let (p, q) = (&p.stages[0].pieces[part], &q.stages[0].pieces[part]);
        let cols = |c: &[Columns]| c.iter().map(|c| c.cols.clone()).collect::<Vec<_>>();
        let cut = [0..48, 48..192][part].clone();
        let kv = [0..16, 16..64][part].clone();
        for (v, cols) in g.outputs.iter().zip([&cut, &kv, &kv]) {
            assert!(p.outputs.contains(&Columns { value: *v, cols: cols.clone() }));
        }
        // In the order in which ops read them: keys, values, queries.
        assert_eq!(cols(&q.inputs), [kv.clone(), kv.clone(), cut.clone()]);
        assert_eq!(cols(&q.states), [kv.clone(), kv]);
        assert_eq!(cols(&q.outputs), [cut]);
        let Op::Attention(op) = &q.graph.nodes[2].op else { panic!() };
        assert_eq!((op.heads, op.kv_heads), ([3, 9][part], [1, 3][part]));
    }
    // Without groups, keys and queries may be cut at different places.
    check(&g, &split(&g, &[1, 3], 16, None));
}

/// With one cache head, one part appends and all read.
#[test]
fn a_cache_of_one_head_is_not_split() {
    let g = attention(8, 1, 16);
    let p = split(&g, &[1, 1], 16, None);
    check(&g, &p);
    assert_eq!(kept(&g, &p), ["kv_append", "kv_append"]);
    assert_eq!(p.stages[0].pieces.len(), 1);
    let [a, b] = &p.stages[1].pieces[..] else { panic!() };
    for (piece, q) in [(a, 0..64), (b, 64..128)] {
        assert_eq!(names(piece), ["attention"]);
        assert_eq!(piece.inputs[0].cols, q);
        assert!(piece.states.iter().all(|s| s.cols == (0..16)));
    }
    // An append alone does not show the number of heads.
    let first = &cut_at(&g, &[1]).unwrap()[0];
    assert!(!split(&first.graph, &[1, 1], 16, None).is_split());
}

#[test]
fn the_head_is_split_by_words() {
    let g = head(64, 1000);
    let p = split(&g, &[2, 1, 1], 64, None);
    check(&g, &p);
    let cols: Vec<_> = p.stages[0].pieces.iter().map(|p| p.outputs[0].cols.clone()).collect();
    assert_eq!((p.stages.len(), cols), (1, vec![0..512, 512..768, 768..1000]));
}

#[test]
fn experts_stay_whole_beside_a_shared_expert_that_is_split() {
    let g = experts();
    let p = split(&g, &[2, 3], 16, None);
    check(&g, &p);
    assert!(p.is_split());
    // The router's product of 4 columns, the router, the experts, and a gate of one column.
    assert_eq!(kept(&g, &p), ["linear", "router", "experts", "linear"]);
}

#[test]
fn what_cannot_be_split_is_kept_as_it_is() {
    // Narrower than two tiles; a single part with a share; a part that gets everything by rounding.
    let g = feed_forward(31, 31, false);
    let p = split(&g, &[1, 1], 16, None);
    assert_eq!(p.stages[0].pieces[0].graph, g);
    for (shares, part) in [(&[0, 5][..], 1), (&[1000, 1], 0)] {
        let g = feed_forward(64, 64, false);
        let p = split(&g, shares, 16, None);
        assert_eq!((p.stages.len(), p.stages[0].pieces.len()), (1, 1));
        assert_eq!((&p.stages[0].pieces[0].graph, p.stages[0].pieces[0].part), (&g, part));
    }
    let mut b = SubgraphBuilder::new("embed", 8);
    let ids = b.input("ids", 1, DType::I32);
    let table = weight(&mut b, "table", 100, 64);
    let x = b.op("rows", Op::Embed { table, scale: 1.0 }, &[ids], 64);
    b.output(x);
    let g = b.finish().unwrap();
    let p = split(&g, &[1, 1], 16, None);
    assert_eq!((p.is_split(), &p.stages[0].pieces[0].graph), (false, &g));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let g = head(64, 100);
    let refused = |shares: &[u32], tile| {
        split_columns(&g, &ColumnSplit { shares: shares.to_vec(), tile, groups: None }).unwrap_err()
    };
    assert_eq!(refused(&[], 16), PartitionError::Shares);
    assert_eq!(refused(&[0, 0], 16), PartitionError::Shares);
    assert_eq!(refused(&[1, 1], 0), PartitionError::Zero { what: "tile" });
    let uncut = |after: &[usize]| cut_at(&g, after).unwrap_err().to_string();
    assert!(uncut(&[3]).ends_with(" has 4 ops: it cannot be cut after op 3"));
    assert!(uncut(&[usize::MAX]).contains(": it cannot be cut after op "));
    assert!(uncut(&[1, 1]).ends_with(": ops to cut after are not in ascending order"));
    assert!(uncut(&[2, 0]).ends_with(": ops to cut after are not in ascending order"));
    let rows = Partition::Rows { lengths: vec![4, 0], standard: 0, rest: 1 };
    assert_eq!(rows.areas(9), Err(PartitionError::Zero { what: "standard length" }));
    let mut wrong = g.clone();
    wrong.nodes[0].inputs.clear();
    assert!(matches!(cut_at(&wrong, &[0]), Err(PartitionError::Graph(_))));
    let columns = ColumnSplit { shares: vec![1, 1], tile: 16, groups: None };
    assert!(matches!(split_columns(&wrong, &columns), Err(PartitionError::Graph(_))));
}

#[test]
fn a_cut_hands_over_what_crosses() {
    let g = feed_forward(64, 160, false);
    let [a, b] = &cut_at(&g, &[3]).unwrap()[..] else { panic!() };
    assert_eq!(names(a), ["rms_norm", "linear", "linear", "gate"]);
    assert_eq!(names(b), ["linear", "add"]);
    let whole = |v: u32, n| Columns { value: ValueId(v), cols: 0..n };
    assert_eq!((&a.inputs[..], &a.outputs[..]), (&[whole(0, 64)][..], &[whole(4, 160)][..]));
    // The residual is an input of both.
    assert_eq!(b.inputs, [whole(4, 160), whole(0, 64)]);
    assert_eq!((a.graph.weights.len(), b.graph.weights.len()), (5, 2));
    // States go to the pieces that use them.
    let [a, b] = &cut_at(&attention(4, 2, 16), &[0]).unwrap()[..] else { panic!() };
    assert_eq!((a.states.len(), b.states.len(), a.outputs.len()), (1, 2, 0));
}

#[test]
fn slices_are_part_of_a_graph_and_of_the_checks() {
    let g = head(64, 1024);
    let p = split(&g, &[1, 1], 8, None);
    let [a, b] = &p.stages[0].pieces[..] else { panic!() };
    // Two halves: only the slices differ.
    let mut moved = a.graph.clone();
    moved.weights = b.graph.weights.clone();
    assert_eq!(moved, Subgraph { name: moved.name.clone(), ..b.graph.clone() });
    assert_ne!(a.graph.weights, b.graph.weights);
    let matrix = |s| a.graph.weights.iter().position(|w| (w.rows > 1) == s && w.slice.is_some());
    let cases = [
        (matrix(true), WeightSlice::Rows { first: 513, of: 1024 }, "do not lie inside"),
        (matrix(true), WeightSlice::Rows { first: usize::MAX, of: 1024 }, "do not lie inside"),
        (matrix(true), WeightSlice::Cols { first: 0, of: 64 }, "only vectors"),
        (matrix(false), WeightSlice::Cols { first: 513, of: 1024 }, "do not lie inside"),
        (matrix(true), WeightSlice::Rows { first: 0, of: usize::MAX }, "dimensions are 1 to"),
    ];
    for (at, slice, says) in cases {
        let mut wrong = a.graph.clone();
        wrong.weights[at.unwrap()].slice = Some(slice);
        let e = verify(&wrong).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
}

/// A piece can be split again: slices of slices.
#[test]
fn pieces_are_split_again() {
    let g = head(64, 1024);
    let p = split(&g, &[1, 1], 16, None);
    let second = &p.stages[0].pieces[1];
    let again = split(&second.graph, &[1, 3], 16, None);
    let rows: Vec<_> = again.stages[0].pieces.iter().flat_map(slices).map(|(_, r)| r).collect();
    assert_eq!(rows, [512..640, 640..1024]);
}

#[test]
fn rows_are_cut_into_standard_lengths_and_a_rest() {
    let columns = ColumnSplit { shares: vec![2, 1], tile: 16, groups: Some(8) };
    let p = Partition::Hybrid { lengths: vec![128, 256], standard: 1, columns: columns.clone() };
    assert_eq!(p.columns(), Some(&columns));
    let areas = p.areas(700).unwrap();
    let rows: Vec<_> = areas.iter().map(|a| a.rows.clone()).collect();
    assert_eq!(rows, [0..256, 256..512, 512..640, 640..700]);
    assert!(areas[..3].iter().all(|a| a.by == Computed::Part(1)));
    assert_eq!(areas[3].by, Computed::Columns);
}

proptest! {
    #[test]
    fn every_column_is_computed_once(
        shares in prop::collection::vec(0u32..9, 1..5),
        tile in 1usize..70,
        (kv_heads, group, dim) in (1usize..5, 1usize..4, prop::sample::select(vec![4, 8, 24, 64])),
        (hidden, inter) in (1usize..200, 1usize..300),
        grouped: bool,
        post: bool,
    ) {
        let groups = grouped.then_some(kv_heads);
        let graphs = [
            feed_forward(hidden, inter, post),
            qkv(hidden, kv_heads * group, kv_heads, dim),
            attention(kv_heads * group, kv_heads, dim),
            head(hidden, inter),
            experts(),
        ];
        for g in &graphs {
            let split = ColumnSplit { shares: shares.clone(), tile, groups };
            match split_columns(g, &split) {
                Ok(p) => {
                    check(g, &p);
                    prop_assert!(p.is_split() || kept(g, &p).len() == g.nodes.len());
                    let ops = |piece: &Piece| piece.graph.nodes.len();
                    let pieces = p.stages.iter().flat_map(|s| &s.pieces);
                    prop_assert!(pieces.map(ops).sum::<usize>() >= g.nodes.len());
                    for piece in p.stages.iter().flat_map(|s| &s.pieces) {
                        prop_assert!(shares[piece.part] > 0);
                        for w in &piece.graph.weights {
                            let rows = w.stored_rows();
                            prop_assert!(rows.start.is_multiple_of(tile));
                        }
                    }
                }
                Err(e) => prop_assert!(shares.iter().all(|s| *s == 0), "{e}"),
            }
        }
    }

    #[test]
    fn cuts_hold_together(at in prop::collection::btree_set(0usize..9, 0..5), which in 0usize..5) {
        let g = [
            feed_forward(64, 96, true),
            qkv(64, 4, 2, 16),
            attention(4, 2, 16),
            head(64, 96),
            experts(),
        ][which].clone();
        let at: Vec<usize> = at.into_iter().filter(|op| op + 1 < g.nodes.len()).collect();
        let pieces = cut_at(&g, &at).unwrap();
        prop_assert_eq!(pieces.len(), at.len() + 1);
        let stages = pieces.into_iter().map(|p| Stage { pieces: vec![p] }).collect();
        let p = Partitioned { stages };
        check(&g, &p);
        let ops: usize = p.stages.iter().map(|s| s.pieces[0].graph.nodes.len()).sum();
        prop_assert_eq!(ops, g.nodes.len());
    }

    #[test]
    fn every_row_is_computed_once(
        rows in 0usize..2000,
        lengths in prop::collection::vec(1usize..400, 0..4),
    ) {
        let cut = Partition::Rows { lengths: lengths.clone(), standard: 0, rest: 1 };
        for area in cut.areas(rows).unwrap() {
            match area.by {
                Computed::Part(0) => prop_assert!(lengths.contains(&area.rows.len())),
                _ => prop_assert!(lengths.iter().all(|l| area.rows.len() < *l)),
            }
        }
        let columns = ColumnSplit { shares: vec![1, 1], tile: 16, groups: None };
        for p in [
            Partition::Whole { part: 0 },
            Partition::Columns(columns.clone()),
            Partition::Rows { lengths: lengths.clone(), standard: 0, rest: 1 },
            Partition::Hybrid { lengths: lengths.clone(), standard: 0, columns },
        ] {
            let mut at = 0;
            for area in p.areas(rows).unwrap() {
                prop_assert!(area.rows.start == at && !area.rows.is_empty());
                at = area.rows.end;
            }
            prop_assert_eq!(at, rows);
        }
    }
}
