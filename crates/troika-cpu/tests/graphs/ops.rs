//! A well-formed subgraph for every op, and ways to break it.

use std::sync::Arc;

use troika_graph::*;

use crate::store::Store;

/// A subgraph that ends with an op, and its weights.
pub struct Case {
    pub name: &'static str,
    pub graph: Subgraph,
    pub store: Store,
}

/// A builder with its weights.
struct Build {
    name: &'static str,
    b: SubgraphBuilder,
    store: Store,
}

impl Build {
    fn new(name: &'static str) -> Build {
        Build { name, b: SubgraphBuilder::new(name, 4), store: Store::default() }
    }

    fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> WeightRef {
        let decl = self.stored(dtype, rows, cols);
        self.b.weight(decl)
    }

    fn stored(&mut self, dtype: DType, rows: usize, cols: usize) -> WeightDecl {
        let name = format!("w{}", self.store.names().len());
        let bytes = dtype.row_bytes(cols).unwrap() * rows;
        // Any bytes are valid blocks; small ones give small numbers.
        let bytes: Vec<u8> = match dtype {
            DType::F32 => (0..rows * cols).flat_map(|i| (i as f32 * 0.01).to_le_bytes()).collect(),
            _ => (0..bytes).map(|i| (i % 40) as u8).collect(),
        };
        self.store.add_as(&name, dtype, (rows, cols), &bytes)
    }

    fn floats(&mut self, cols: usize) -> ValueId {
        self.b.input("x", cols, DType::F32)
    }

    fn op(mut self, op: Op, inputs: &[ValueId], cols: usize) -> Case {
        let y = self.b.op("y", op, inputs, cols);
        self.b.output(y);
        self.done()
    }

    fn done(self) -> Case {
        Case { name: self.name, graph: self.b.finish().unwrap(), store: self.store }
    }

    fn cache(&mut self, cols: usize, dtype: DType) -> ValueId {
        self.b.state("cache", Shape(vec![Dim::KvLen(64), Dim::Fixed(cols)]), dtype)
    }
}

fn unary(name: &'static str, op: Op) -> Case {
    let mut b = Build::new(name);
    let x = b.floats(6);
    b.op(op, &[x], 6)
}

fn convert() -> Case {
    let mut b = Build::new("convert");
    let x = b.b.input("x", 6, DType::BF16);
    b.op(Op::Convert, &[x], 6)
}

fn binary(name: &'static str, op: Op) -> Case {
    let mut b = Build::new(name);
    let (x, y) = (b.floats(6), b.floats(6));
    b.op(op, &[x, y], 6)
}

fn linear(name: &'static str, dtype: DType, activations: ActivationFormat) -> Case {
    let mut b = Build::new(name);
    let (weight, bias) = (b.weight(dtype, 5, 256), b.weight(DType::F32, 1, 5));
    let x = b.floats(256);
    b.op(Op::Linear { weight, bias: Some(bias), activations, form: None }, &[x], 5)
}

/// Five of forty columns of a product: a slice of its weight and one of its bias.
fn linear_part(name: &'static str, dtype: DType, activations: ActivationFormat) -> Case {
    let mut b = Build::new(name);
    let rows = b.stored(dtype, 40, 256);
    let slice = Some(WeightSlice::Rows { first: 16, of: 40 });
    let weight = b.b.weight(WeightDecl { rows: 5, slice, ..rows });
    let cols = b.stored(DType::F32, 1, 40);
    let slice = Some(WeightSlice::Cols { first: 16, of: 40 });
    let bias = Some(b.b.weight(WeightDecl { cols: 5, slice, ..cols }));
    let x = b.floats(256);
    b.op(Op::Linear { weight, bias, activations, form: None }, &[x], 5)
}

/// A norm, two products of its result, and a gate, which the device fuses.
fn feed_forward() -> Case {
    let mut b = Build::new("add of a feed-forward");
    let norm = b.weight(DType::F32, 1, 64);
    let (gate, up) = (b.weight(DType::Q8_0, 96, 64), b.weight(DType::Q8_0, 96, 64));
    let down = b.weight(DType::Q8_0, 64, 96);
    let x = b.floats(64);
    let product = |weight| crate::store::linear(weight, ActivationFormat::INT8);
    let op = Op::RmsNorm { weight: Some(norm), eps: 1e-5, offset: 0.0, group: 64 };
    let n = b.b.op("n", op, &[x], 64);
    let g = b.b.op("g", product(gate), &[n], 96);
    let u = b.b.op("u", product(up), &[n], 96);
    let h = b.b.op("h", Op::Gate(Activation::Silu), &[g, u], 96);
    let d = b.b.op("d", product(down), &[h], 64);
    b.op(Op::Add, &[x, d], 64)
}

fn rope(name: &'static str, long: bool) -> Case {
    let mut b = Build::new(name);
    let (x, positions) = (b.floats(12), b.b.input("positions", 1, DType::I32));
    let freqs = || RopeFreqs { inv_freq: Arc::from([1.0, 0.1]), factor: 1.0, growth: None };
    let op = Rope {
        head_dim: 6,
        offset: 1,
        rotary_dim: 4,
        style: RopeStyle::Half,
        freqs: freqs(),
        long: long.then(|| (freqs(), 6)),
    };
    b.op(Op::Rope(op), &[x, positions], 12)
}

fn append(name: &'static str, dtype: DType) -> Case {
    let mut b = Build::new(name);
    let x = b.floats(10);
    let cache = b.cache(10, dtype);
    b.b.node(Op::KvAppend(KvAppend { width: 10, page_group: 1 }), &[x], &[cache], &[]);
    b.done()
}

fn decaying_sum() -> Case {
    let mut b = Build::new("decaying_sum");
    let x = b.floats(10);
    let state = b.cache(10, DType::F32);
    let op = Op::DecayingSum(DecayingSum { width: 10, decay: 0.5, page_group: 2 });
    let y = b.b.stateful("y", op, &[x], state, 10);
    b.b.output(y);
    b.done()
}

fn short_conv(gated: bool) -> Case {
    let mut b = Build::new(if gated { "short_conv with gates" } else { "short_conv" });
    let (weight, bias) = (b.weight(DType::F32, 10, 3), Some(b.weight(DType::F32, 1, 10)));
    let x = b.floats(if gated { 30 } else { 10 });
    let state = b.cache(20, DType::F32);
    let op = ShortConv { weight, bias, width: 10, taps: 3, silu: true, gated, page_group: 2 };
    let y = b.b.stateful("y", Op::ShortConv(op), &[x], state, 10);
    b.b.output(y);
    b.done()
}

fn mamba2() -> Case {
    let mut b = Build::new("mamba2");
    let [a, d, dt_bias] = [0; 3].map(|_| b.weight(DType::F32, 1, 4));
    let (x, dt) = (b.floats(28), b.b.input("dt", 4, DType::F32));
    let state = b.cache(40, DType::F32);
    let (heads, head_dim, groups, state_size) = (4, 5, 2, 2);
    let (a_log, dt_min, dt_max, page_group) = (false, 0.0, 1.0, 2);
    let op = Mamba2 {
        heads,
        head_dim,
        groups,
        state_size,
        a,
        a_log,
        d,
        dt_bias,
        dt_min,
        dt_max,
        page_group,
    };
    let y = b.b.stateful("y", Op::Mamba2(op), &[x, dt], state, 20);
    b.b.output(y);
    b.done()
}

/// Four heads of values over two of keys.
fn delta_rule() -> Case {
    let mut b = Build::new("delta_rule");
    let rates = b.weight(DType::F32, 1, 4);
    let op = DeltaRule {
        key_heads: 2,
        value_heads: 4,
        key_dim: 3,
        value_dim: 5,
        tiled: false,
        rates,
        rates_are_logs: true,
        decay: Decay::Softplus,
        by_channel: false,
        beta_scale: 1.0,
        page_group: 2,
    };
    let x = [20, 6, 6, 4, 4].map(|cols| b.floats(cols));
    let state = b.cache(60, DType::F32);
    let y = b.b.stateful("y", Op::DeltaRule(op), &x, state, 20);
    b.b.output(y);
    b.done()
}

fn attention(name: &'static str, dtype: DType, value_in_key: bool) -> Case {
    let mut b = Build::new(name);
    let sinks = b.weight(DType::F32, 1, 4);
    let (q, k) = (b.floats(4 * 6), b.floats(2 * 6));
    let keys = b.cache(2 * 6, dtype);
    b.b.node(Op::KvAppend(KvAppend { width: 12, page_group: 0 }), &[k], &[keys], &[]);
    let mut caches = vec![keys];
    if !value_in_key {
        caches.push(b.cache(2 * 5, dtype));
    }
    let op = Attention {
        heads: 4,
        kv_heads: 2,
        k_dim: 6,
        v_dim: 5,
        scale: 0.5,
        window: Some(3),
        softcap: Some(9.0),
        sinks: Some(sinks),
        value_in_key,
        page_group: 0,
        activations: if dtype == DType::BF16 {
            ActivationFormat::Bf16
        } else {
            ActivationFormat::F32
        },
    };
    let y = b.b.attention(op, q, &caches);
    b.b.output(y);
    b.done()
}

fn router(name: &'static str, score: Score, groups: Option<(usize, usize)>) -> Case {
    let mut b = Build::new(name);
    let x = b.floats(6);
    let op = Router {
        experts: 6,
        top_k: 2,
        score,
        normalize: true,
        scale: 1.0,
        groups,
        bias: None,
        expert_scales: None,
    };
    let (ids, weights) = b.b.router(op, x);
    b.b.output(ids);
    b.b.output(weights);
    b.done()
}

fn experts(name: &'static str, dtype: DType, activations: ActivationFormat) -> Case {
    let mut b = Build::new(name);
    let (n, k, inter) = (3, 64, 32);
    let mut list = |rows, cols, dtype| (0..n).map(|_| b.weight(dtype, rows, cols)).collect();
    let op = Experts {
        gate: list(inter, k, dtype),
        up: list(inter, k, dtype),
        down: list(k, inter, dtype),
        gate_bias: list(1, inter, DType::F32),
        up_bias: vec![],
        down_bias: list(1, k, DType::F32),
        act: Activation::Silu,
        activations,
    };
    let (x, ids) = (b.floats(k), b.b.input("ids", 2, DType::I32));
    let shares = b.floats(2);
    b.op(Op::Experts(op), &[x, ids, shares], k)
}

fn group(name: &'static str, dtype: DType, activations: ActivationFormat) -> Case {
    let mut b = Build::new(name);
    let (k, inter) = (64, 32);
    let mut list = |rows, cols, dtype| (0..2).map(|_| b.weight(dtype, rows, cols)).collect();
    let experts = Experts {
        gate: list(inter, k, dtype),
        up: list(inter, k, dtype),
        down: list(k, inter, dtype),
        gate_bias: vec![],
        up_bias: list(1, inter, DType::F32),
        down_bias: list(1, k, DType::F32),
        act: Activation::Silu,
        activations,
    };
    let x = b.floats(k);
    b.op(Op::ExpertGroup(ExpertGroup { experts, capacity: 2 }), &[x], k)
}

/// A subgraph for every op, for some in several forms.
pub fn cases() -> Vec<Case> {
    let mut b = Build::new("embed");
    let table = b.weight(DType::Q8_0, 7, 32);
    let ids = b.b.input("ids", 1, DType::I32);
    let embed = b.op(Op::Embed { table, scale: 2.0 }, &[ids], 32);
    let mut b = Build::new("rms_norm");
    let (weight, x) = (b.weight(DType::F32, 1, 3), b.floats(6));
    let op = Op::RmsNorm { weight: Some(weight), eps: 1e-5, offset: 1.0, group: 3 };
    let rms = b.op(op, &[x], 6);
    let mut b = Build::new("layer_norm");
    let (weight, bias, x) = (b.weight(DType::F16, 1, 6), b.weight(DType::F32, 1, 6), b.floats(6));
    let op = Op::LayerNorm { weight, bias: Some(bias), eps: 1e-5, group: 6 };
    let layer = b.op(op, &[x], 6);
    let mut b = Build::new("head_linear");
    let weights = (0..3).map(|_| b.weight(DType::F32, 4, 5)).collect();
    let x = b.floats(15);
    let heads = b.op(Op::HeadLinear(HeadLinear { weights }), &[x], 12);
    let mut b = Build::new("outliers");
    let (weight, x) = (b.weight(DType::F32, 4, 6), b.floats(6));
    let calibrated = [("w0.input_limit", vec![0.5_f32]), ("w0.outliers", vec![1.0; 6])];
    for (name, values) in calibrated {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        b.store.add_as(name, DType::F32, (1, values.len()), &bytes);
    }
    let activations = ActivationFormat::of_tensor(8, ScaleOrigin::Clipped);
    let outliers = b.op(Op::Outliers { weight, activations }, &[x], 4);
    let mut b = Build::new("sigmoid_gate");
    let (x, g) = (b.floats(6), b.floats(1));
    let sigmoid = b.op(Op::SigmoidGate, &[x, g], 6);
    let mut b = Build::new("rescale");
    let (weight, x) = (b.weight(DType::F32, 1, 6), b.floats(6));
    let scale_cols = b.op(Op::Rescale(Rescale::Columns(weight)), &[x], 6);
    let mut b = Build::new("rescale to match");
    let (x, like) = (b.floats(6), b.floats(6));
    let match_rms = b.op(Op::Rescale(Rescale::Match { least: 0.1 }), &[x, like], 6);
    let mut b = Build::new("rescale the largest");
    let x = b.floats(6);
    let largest = b.op(Op::Rescale(Rescale::Largest { deviations: 0.5 }), &[x], 6);
    let mut b = Build::new("mix");
    let (x, c) = (b.floats(6), b.floats(12));
    let mix = b.op(Op::Mix { streams: 3 }, &[x, c], 8);
    let mut b = Build::new("slice_cols");
    let x = b.floats(12);
    let slice = b.op(Op::SliceCols { group: 6, start: 1, len: 4 }, &[x], 8);
    let mut b = Build::new("concat_cols");
    let (x, y) = (b.floats(4), b.floats(6));
    let concat = b.op(Op::ConcatCols { groups: 2 }, &[x, y], 10);
    vec![
        embed,
        rms,
        layer,
        linear("linear", DType::F32, ActivationFormat::F32),
        linear("linear of bf16", DType::BF16, ActivationFormat::Bf16),
        linear("linear of blocks", DType::Q4_K, ActivationFormat::F32),
        linear("linear of bytes", DType::Q4_K, ActivationFormat::INT8),
        linear_part("linear of some rows", DType::F32, ActivationFormat::F32),
        linear_part("linear of some rows of pairs", DType::BF16, ActivationFormat::Bf16),
        linear_part("linear of some rows of bytes", DType::Q4_K, ActivationFormat::INT8),
        heads,
        outliers,
        rope("rope", false),
        rope("rope of long sequences", true),
        decaying_sum(),
        short_conv(false),
        short_conv(true),
        mamba2(),
        delta_rule(),
        append("kv_append", DType::F32),
        append("kv_append to f16", DType::F16),
        attention("attention", DType::F32, false),
        attention("attention to f16", DType::F16, false),
        attention("attention of pairs", DType::BF16, false),
        attention("attention of one cache", DType::F32, true),
        unary("activate", Op::Activate(Activation::GeluTanh)),
        binary("gate", Op::Gate(Activation::Silu)),
        binary("add", Op::Add),
        feed_forward(),
        unary("scale", Op::Scale { factor: 0.5 }),
        unary("clamp", Op::Clamp { limit: 1.0 }),
        unary("soft_cap", Op::SoftCap { cap: 5.0 }),
        convert(),
        sigmoid,
        scale_cols,
        match_rms,
        largest,
        mix,
        slice,
        concat,
        router("router", Score::Softmax, Some((3, 2))),
        router("router of mixers", Score::SparseMixer { eps: 0.1 }, None),
        experts("experts", DType::F32, ActivationFormat::F32),
        experts("experts of bytes", DType::Q8_0, ActivationFormat::INT8),
        experts("experts of bf16", DType::BF16, ActivationFormat::Bf16),
        group("expert_group", DType::F32, ActivationFormat::F32),
        group("expert_group of bytes", DType::Q8_0, ActivationFormat::INT8),
    ]
}

/// A change that breaks a case, and the expected refusal.
pub struct Wrong {
    pub case: &'static str,
    pub says: &'static str,
    pub edit: fn(&mut Subgraph),
}

fn cols(g: &mut Subgraph, value: usize, cols: usize) {
    g.values[value].shape.0[1] = Dim::Fixed(cols);
}

/// The last op.
fn op(g: &mut Subgraph) -> &mut Op {
    &mut g.nodes.last_mut().unwrap().op
}

macro_rules! wrong {
    ($($case:literal: $says:literal, $g:ident => $edit:expr;)*) => {
        vec![$(Wrong { case: $case, says: $says, edit: |$g| { $edit; } }),*]
    };
}

/// Edits one kind of op.
macro_rules! with {
    ($g:ident, $op:pat => $edit:expr) => {
        match op($g) {
            $op => $edit,
            other => panic!("{other:?}"),
        }
    };
}

/// Values are in the order in which the cases make them.
pub fn wrong_graphs() -> Vec<Wrong> {
    let mut all = wrong_wiring();
    all.extend(wrong_products());
    all.extend(wrong_caches());
    all.extend(wrong_choices());
    all
}

fn wrong_wiring() -> Vec<Wrong> {
    wrong! {
        "activate": "there is no 9", g => g.inputs[0] = ValueId(9);
        "activate": "bound twice", g => g.inputs.push(ValueId(0));
        "activate": "must be F32, is F16", g => g.values[1].dtype = DType::F16;
        "activate": "has type Q8_0", g => g.values[1].dtype = DType::Q8_0;
        "convert": "converts I32 to F32", g => g.values[0].dtype = DType::I32;
        "convert": "converts BF16 to I32", g => g.values[1].dtype = DType::I32;
        "convert": "output has 5 columns, needs 6", g => cols(g, 1, 5);
        "activate": "has type Q8_0", g => g.values[0].dtype = DType::Q8_0;
        "activate": "must be F32, is I32", g => g.values[0].dtype = DType::I32;
        "activate": "must be F32, is I32", g => g.values[1].dtype = DType::I32;
        "activate": "has shape", g => g.values[0].shape.0.truncate(1);
        "activate": "has shape", g => g.values[0].shape.0.clear();
        "activate": "has shape", g => g.values[1].shape.0[1] = Dim::Rows(6);
        "activate": "has shape", g => g.values[1].shape.0[0] = Dim::KvLen(4);
        "activate": "dimensions are 1 to", g => cols(g, 0, 0);
        "activate": "dimensions are 1 to", g => cols(g, 1, 1 << 31);
        "activate": "dimensions are 1 to", g => g.values[0].shape.0[0] = Dim::Rows(0);
        "activate": "rows of x and y differ", g => g.values[1].shape.0[0] = Dim::Rows(5);
        "activate": "rows of x and y differ", g => g.values[1].shape.0[0] = Dim::Fixed(4);
        "activate": "output has 6 columns, needs 5", g => cols(g, 0, 5);
        "activate": "inputs, states and outputs", g => g.nodes[0].inputs.push(ValueId(0));
        "activate": "inputs, states and outputs", g => g.nodes[0].inputs.clear();
        "activate": "never computed", g => g.nodes.clear();
        "activate": "never computed", g => g.outputs[0] = ValueId(99);
        "activate": "used before it is computed", g => g.nodes[0].inputs[0] = ValueId(1);
        "activate": "used before it is computed", g => g.nodes[0].inputs[0] = ValueId(7);
        "activate": "computed twice", g => g.nodes[0].outputs[0] = ValueId(0);
        "activate": "computed twice", g => g.nodes.push(g.nodes[0].clone());
        "activate": "out of range", g => g.nodes[0].outputs[0] = ValueId(2);
        "activate": "with a gate only",
            g => *op(g) = Op::Activate(Activation::ClampedSwiglu { alpha: 1.0, limit: 1.0 });
        "scale": "output has 7 columns, needs 6", g => cols(g, 1, 7);
        "clamp": "output has 7 columns, needs 6", g => cols(g, 1, 7);
        "soft_cap": "output has 7 columns, needs 6", g => cols(g, 1, 7);
        "gate": "second operand has 5 columns", g => cols(g, 1, 5);
        "add": "second operand has 5 columns", g => cols(g, 1, 5);
        "add": "output has 7 columns", g => cols(g, 2, 7);
        "sigmoid_gate": "gate has 6 columns, needs 1", g => cols(g, 1, 6);
        "sigmoid_gate": "output has 5 columns", g => cols(g, 2, 5);
        "rescale": "is 1x5, needs 1x6", g => g.weights[0].cols = 5;
        "rescale": "output has 5 columns", g => cols(g, 1, 5);
        "rescale to match": "second operand has 5 columns", g => cols(g, 1, 5);
        "rescale the largest": "output has 5 columns", g => cols(g, 1, 5);
        "mix": "0 streams of 6 columns", g => with!(g, Op::Mix { streams } => *streams = 0);
        "mix": "4 streams of 6 columns", g => with!(g, Op::Mix { streams } => *streams = 4);
        "mix": "7 streams of 6 columns", g => with!(g, Op::Mix { streams } => *streams = 7);
        "mix": "do not become 7", g => cols(g, 2, 7);
        "mix": "coefficients has 9 columns, needs 12", g => cols(g, 1, 9);
        "slice_cols": "do not fit 13", g => cols(g, 0, 13);
        "slice_cols": "output has 9 columns, needs 8", g => cols(g, 1, 9);
        "slice_cols": "do not fit 12",
            g => with!(g, Op::SliceCols { start, .. } => *start = usize::MAX);
        "slice_cols": "do not fit 12", g => with!(g, Op::SliceCols { group, .. } => *group = 0);
        "concat_cols": "do not divide", g => cols(g, 0, 5);
        "concat_cols": "do not divide", g => with!(g, Op::ConcatCols { groups } => *groups = 0);
        "concat_cols": "output has 11 columns", g => cols(g, 2, 11);
    }
}

fn wrong_products() -> Vec<Wrong> {
    wrong! {
        "embed": "must be I32, is F32", g => g.values[0].dtype = DType::F32;
        "embed": "ids has 2 columns, needs 1", g => cols(g, 0, 2);
        "embed": "table has 32 columns, needs 64", g => cols(g, 1, 64);
        "embed": "weight 3 out of range",
            g => with!(g, Op::Embed { table, .. } => *table = WeightRef(3));
        "rms_norm": "does not divide 6", g => with!(g, Op::RmsNorm { group, .. } => *group = 4);
        "rms_norm": "does not divide 6", g => with!(g, Op::RmsNorm { group, .. } => *group = 0);
        "rms_norm": "is 1x3, needs 1x6", g => with!(g, Op::RmsNorm { group, .. } => *group = 6);
        "rms_norm": "is 1x2, needs 1x6", g => g.weights[0].cols = 2;
        "layer_norm": "is 1x5, needs 1x6", g => g.weights[1].cols = 5;
        "layer_norm": "is 2x6, needs 1x6", g => g.weights[0].rows = 2;
        "linear": "is 5x256, needs 6x256", g => cols(g, 1, 6);
        "linear": "is 5x256, needs 5x255", g => cols(g, 0, 255);
        "linear": "is 1x4, needs 1x5", g => g.weights[1].cols = 4;
        "linear": "is 2x5, needs 1x5", g => g.weights[1].rows = 2;
        "linear": "has type I32", g => g.weights[0].dtype = DType::I32;
        "linear": "dimensions are 1 to", g => g.weights[0].rows = usize::MAX;
        "linear": "dimensions are 1 to", g => g.weights[1].cols = 0;
        "linear": "has no path with int8",
            g => with!(g, Op::Linear { activations, .. } => *activations = ActivationFormat::INT8);
        "linear": "has no path with bf16",
            g => with!(g, Op::Linear { activations, .. } => *activations = ActivationFormat::Bf16);
        "linear of bf16": "has no path with bf16", g => g.weights[0].dtype = DType::F16;
        "linear of blocks": "no whole Q4_K blocks", g => g.weights[0].cols = 255;
        "linear of bytes": "has no path with int8", g => g.weights[0].dtype = DType::F16;
        "linear of some rows": "do not lie inside", g => g.weights[0].rows = 25;
        "linear of some rows": "only vectors are sliced",
            g => g.weights[0].slice = Some(WeightSlice::Cols { first: 0, of: 256 });
        "linear of some rows": "do not lie inside",
            g => g.weights[1].slice = Some(WeightSlice::Cols { first: usize::MAX, of: 40 });
        "outliers": "is 4x6, needs 4x5", g => cols(g, 0, 5);
        "outliers": "f32 clips nothing",
            g => with!(g, Op::Outliers { activations, .. } => *activations = ActivationFormat::F32);
        "head_linear": "0 heads", g => with!(g, Op::HeadLinear(h) => h.weights.clear());
        "head_linear": "2 heads do not divide",
            g => with!(g, Op::HeadLinear(h) => h.weights.truncate(2));
        "head_linear": "is 4x5, needs 5x5", g => cols(g, 1, 15);
        "head_linear": "is 4x6, needs 4x5", g => g.weights[2].cols = 6;
    }
}

fn wrong_caches() -> Vec<Wrong> {
    wrong! {
        "rope": "must be I32, is F32", g => g.values[1].dtype = DType::F32;
        "rope": "positions has 12 columns", g => cols(g, 1, 12);
        "rope": "does not divide 13", g => { cols(g, 0, 13); cols(g, 2, 13) };
        "rope": "output has 6 columns", g => cols(g, 2, 6);
        "rope": "does not fit head_dim", g => with!(g, Op::Rope(r) => r.offset = 3);
        "rope": "does not fit head_dim", g => with!(g, Op::Rope(r) => r.offset = usize::MAX - 1);
        "rope": "does not fit head_dim", g => with!(g, Op::Rope(r) => r.rotary_dim = 3);
        "rope": "does not fit head_dim",
            g => with!(g, Op::Rope(r) => r.freqs.inv_freq = Arc::from([1.0]));
        "rope of long sequences": "does not fit head_dim",
            g => with!(g, Op::Rope(r) => r.long.as_mut().unwrap().0.inv_freq = Arc::from([]));
        "rope": "does not divide 12", g => with!(g, Op::Rope(r) => r.head_dim = 0);
        "decaying_sum": "input has 10 columns, needs 9",
            g => with!(g, Op::DecayingSum(s) => s.width = 9);
        "decaying_sum": "state has 20 columns, needs 10", g => cols(g, 1, 20);
        "decaying_sum": "a state of F16; sums are f32", g => g.values[1].dtype = DType::F16;
        "decaying_sum": "decay NaN", g => with!(g, Op::DecayingSum(s) => s.decay = f32::NAN);
        "short_conv": "a convolution of 1 taps; it needs two",
            g => with!(g, Op::ShortConv(s) => s.taps = 1);
        "short_conv": "state has 20 columns, needs 30",
            g => with!(g, Op::ShortConv(s) => s.taps = 4);
        "short_conv": "is 10x4, needs 10x3", g => g.weights[0].cols = 4;
        "short_conv": "too many columns",
            g => with!(g, Op::ShortConv(s) => s.taps = usize::MAX);
        "short_conv": "a state of F16; sums are f32", g => g.values[1].dtype = DType::F16;
        "short_conv with gates": "input has 30 columns, needs 10",
            g => with!(g, Op::ShortConv(s) => s.gated = false);
        "mamba2": "4 heads in 3 groups", g => with!(g, Op::Mamba2(m) => m.groups = 3);
        "mamba2": "4 heads in 0 groups", g => with!(g, Op::Mamba2(m) => m.groups = 0);
        "mamba2": "input has 28 columns, needs 32",
            g => with!(g, Op::Mamba2(m) => m.state_size = 3);
        "mamba2": "steps has 5 columns, needs 4", g => cols(g, 1, 5);
        "mamba2": "state has 41 columns, needs 40", g => cols(g, 2, 41);
        "mamba2": "too many columns",
            g => with!(g, Op::Mamba2(m) => m.state_size = usize::MAX);
        "mamba2": "steps from 2 to 1", g => with!(g, Op::Mamba2(m) => m.dt_min = 2.0);
        "mamba2": "is 1x3, needs 1x4", g => g.weights[1].cols = 3;
        "delta_rule": "4 value heads over 3 key heads",
            g => with!(g, Op::DeltaRule(d) => d.key_heads = 3);
        "delta_rule": "4 value heads over 0 key heads",
            g => with!(g, Op::DeltaRule(d) => d.key_heads = 0);
        "delta_rule": "decays has 4 columns, needs 4 heads of 3",
            g => with!(g, Op::DeltaRule(d) => d.by_channel = true);
        "delta_rule": "state has 70 columns, needs 60", g => cols(g, 5, 70);
        "delta_rule": "a state of F16; sums are f32", g => g.values[5].dtype = DType::F16;
        "delta_rule": "is 1x5, needs 1x4", g => g.weights[0].cols = 5;
        "delta_rule": "a bound of 0 for decays",
            g => with!(g, Op::DeltaRule(d) => d.decay = Decay::Bounded { least: 0.0 });
        "delta_rule": "shares up to NaN",
            g => with!(g, Op::DeltaRule(d) => d.beta_scale = f32::NAN);
        "kv_append": "input has 10 columns, needs 9",
            g => with!(g, Op::KvAppend(k) => k.width = 9);
        "kv_append": "cache has 20 columns, needs 10", g => cols(g, 1, 20);
        "kv_append": "cache has type I32", g => g.values[1].dtype = DType::I32;
        "kv_append": "has shape", g => g.values[1].shape.0[0] = Dim::Rows(4);
        "kv_append": "is not a state", g => g.nodes[0].states[0] = ValueId(0);
        "kv_append": "input cache is a state", g => g.nodes[0].inputs[0] = ValueId(1);
        "kv_append": "cache is a state", g => g.outputs.push(ValueId(1));
        "attention": "query has 24 columns", g => with!(g, Op::Attention(a) => a.k_dim = 7);
        "attention": "output has 20 columns", g => with!(g, Op::Attention(a) => a.v_dim = 6);
        "attention": "4 query heads over 3", g => with!(g, Op::Attention(a) => a.kv_heads = 3);
        "attention": "4 query heads over 0", g => with!(g, Op::Attention(a) => a.kv_heads = 0);
        "attention": "key cache has 12 columns", g => with!(g, Op::Attention(a) => a.kv_heads = 4);
        "attention": "value cache has 11 columns", g => cols(g, 3, 11);
        "attention": "query has 24 columns",
            g => with!(g, Op::Attention(a) => (a.heads, a.k_dim) = (usize::MAX / 2 + 1, 2));
        "attention": "a window of no positions",
            g => with!(g, Op::Attention(a) => a.window = Some(0));
        "attention": "caches have several types", g => g.values[3].dtype = DType::F16;
        "attention": "bf16 activations with caches of F32",
            g => with!(g, Op::Attention(a) => a.activations = ActivationFormat::Bf16);
        "attention": "int8 activations", g => with!(g, Op::Attention(a) => a.activations = ActivationFormat::INT8);
        "attention": "is 1x3, needs 1x4", g => g.weights[0].cols = 3;
        "attention": "inputs, states and outputs",
            g => with!(g, Op::Attention(a) => a.value_in_key = true);
        "attention of one cache": "inputs, states and outputs",
            g => with!(g, Op::Attention(a) => a.value_in_key = false);
        "attention of one cache": "value wider than its key", g => {
            cols(g, 3, 4 * 7);
            with!(g, Op::Attention(a) => a.v_dim = 7);
        };
    }
}

fn wrong_choices() -> Vec<Wrong> {
    wrong! {
        "router": "logits has 6 columns, needs 7", g => with!(g, Op::Router(r) => r.experts = 7);
        "router": "top_k 0 of 6", g => with!(g, Op::Router(r) => r.top_k = 0);
        "router": "ids has 2 columns, needs 3", g => with!(g, Op::Router(r) => r.top_k = 3);
        "router": "weights has 3 columns", g => cols(g, 2, 3);
        "router": "must be I32, is F32", g => g.values[1].dtype = DType::F32;
        "router": "must be F32, is I32", g => g.values[2].dtype = DType::I32;
        "router": "do not fit", g => with!(g, Op::Router(r) => r.groups = Some((4, 2)));
        "router": "do not fit", g => with!(g, Op::Router(r) => r.groups = Some((0, 0)));
        "router": "do not fit", g => with!(g, Op::Router(r) => r.groups = Some((6, 1)));
        "router": "do not fit", g => with!(g, Op::Router(r) => r.groups = Some((3, 4)));
        "router of mixers": "chooses two experts", g => {
            with!(g, Op::Router(r) => r.top_k = 3);
            cols(g, 1, 3);
            cols(g, 2, 3);
        };
        "experts": "must be I32, is F32", g => g.values[1].dtype = DType::F32;
        "experts": "weights has 3 columns, needs 2", g => cols(g, 2, 3);
        "experts": "4 of 3 experts", g => { cols(g, 1, 4); cols(g, 2, 4) };
        "experts": "output has 65 columns", g => cols(g, 3, 65);
        "experts": "uneven expert lists", g => with!(g, Op::Experts(e) => drop(e.up.pop()));
        "experts": "uneven expert lists", g => with!(g, Op::Experts(e) => {
            e.gate.clear();
            e.up.clear();
            e.down.clear();
        });
        "experts": "uneven expert biases",
            g => with!(g, Op::Experts(e) => drop(e.gate_bias.pop()));
        "experts": "is 32x64, needs 64x32", g => with!(g, Op::Experts(e) => {
            std::mem::swap(&mut e.down[1], &mut e.gate[1]);
            e.gate[1] = e.gate[0];
        });
        "experts": "is 1x31, needs 1x32", g => g.weights[9].cols = 31;
        "experts": "is 1x63, needs 1x64", g => g.weights[12].cols = 63;
        "experts": "no path with int8", g => with!(g, Op::Experts(e) => e.activations = ActivationFormat::INT8);
        "expert_group": "input has 4 rows, needs 3",
            g => with!(g, Op::ExpertGroup(e) => e.capacity = 3);
        "expert_group": "rows of x and y differ", g => g.values[1].shape.0[0] = Dim::Fixed(4);
        "expert_group": "input has 3 rows", g => {
            g.values.iter_mut().for_each(|v| v.shape.0[0] = Dim::Fixed(3));
        };
        "expert_group": "output has 65 columns", g => cols(g, 1, 65);
        "expert_group": "uneven expert lists",
            g => with!(g, Op::ExpertGroup(e) => drop(e.experts.down.pop()));
        "expert_group": "uneven expert biases",
            g => with!(g, Op::ExpertGroup(e) => drop(e.experts.up_bias.pop()));
        "experts of bytes": "several weight types", g => g.weights[1].dtype = DType::Q4_0;
        "experts of bf16": "no path with bf16", g => g.weights[7].dtype = DType::F16;
    }
}
