//! The kernels that devices are checked for, and small graphs of odd sizes that run them, with
//! seeded weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{
    DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource, ZeroedBytes,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Dim, ExpertGroup, Experts, KvAppend, Node, Op,
    Rope, RopeFreqs, RopeStyle, Router, Score, Shape, Subgraph, SubgraphBuilder, ValueId,
    WeightDecl, WeightRef, blocks,
};

/// Rows of a cache, ids of a table, and positions.
pub(crate) const POSITIONS: usize = 128;
/// The most rows of a graph.
const MOST_ROWS: usize = 96;
/// Columns that are a multiple of all blocks.
const WHOLE: usize = 512;
const EPS: f32 = 1e-5;

/// A kernel, as far as checks tell kernels apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernel {
    /// Products with weights of a type and activations in a format, also several at once, and with
    /// what precedes or follows them in a layer.
    Linear(DType, ActivationFormat),
    /// Rows of a table.
    Embed(DType),
    /// Products that experts share out, with the router before them.
    Experts(DType, ActivationFormat),
    /// Activated gates.
    Gate(Activation),
    RmsNorm,
    LayerNorm,
    Rope(RopeStyle),
    /// Attention to a cache of a type, whose rows it also appends.
    Attention {
        cache: DType,
        window: bool,
    },
    /// Picks the largest numbers of rows that the host reads. No graph has it.
    Largest,
}

impl Kernel {
    /// All of them.
    pub fn all() -> Vec<Kernel> {
        let formats = |dtype: DType| {
            let eight_bits = dtype.has_integer_path().then_some(ActivationFormat::INT8);
            eight_bits.into_iter().chain([ActivationFormat::F32])
        };
        let products = DType::WEIGHTS.iter().flat_map(|&dtype| {
            let products = formats(dtype).flat_map(move |activations| {
                [Kernel::Linear(dtype, activations), Kernel::Experts(dtype, activations)]
            });
            products.chain([Kernel::Embed(dtype)])
        });
        let gates = [
            Activation::Silu,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Relu,
            Activation::ClampedSwiglu { alpha: 1.7, limit: 0.5 },
        ];
        let others = [
            Kernel::RmsNorm,
            Kernel::LayerNorm,
            Kernel::Rope(RopeStyle::Half),
            Kernel::Rope(RopeStyle::Interleaved),
            Kernel::Largest,
        ];
        let attention = [DType::F32, DType::F16]
            .into_iter()
            .flat_map(|cache| [false, true].map(|window| Kernel::Attention { cache, window }));
        products.chain(gates.map(Kernel::Gate)).chain(others).chain(attention).collect()
    }

    /// The kernel of a node, if there is a check for it.
    pub fn of(graph: &Subgraph, node: &Node) -> Option<Kernel> {
        let dtype = |w: &WeightRef| graph.weight(*w).dtype;
        Some(match &node.op {
            Op::Linear { weight, activations, .. } => Kernel::Linear(dtype(weight), *activations),
            Op::HeadLinear(h) => Kernel::Linear(dtype(h.weights.first()?), ActivationFormat::F32),
            Op::Embed { table, .. } => Kernel::Embed(dtype(table)),
            Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
                Kernel::Experts(dtype(e.gate.first()?), e.activations)
            }
            Op::Gate(act) => Kernel::Gate(*act),
            Op::RmsNorm { .. } => Kernel::RmsNorm,
            Op::LayerNorm { .. } => Kernel::LayerNorm,
            Op::Rope(rope) => Kernel::Rope(rope.style),
            Op::Attention(a) => {
                let cache = graph.value(*node.states.first()?).dtype;
                Kernel::Attention { cache, window: a.window.is_some() }
            }
            _ => return None,
        })
    }

    /// The largest difference that is not a fault.
    pub fn most(self) -> f32 {
        match self {
            // What lies between two whole numbers may be rounded to either.
            Kernel::Linear(_, activations) | Kernel::Experts(_, activations)
                if activations != ActivationFormat::F32 =>
            {
                2e-2
            }
            Kernel::Largest => 0.0,
            // Sums of f32 in another order differ by less.
            _ => 1e-4,
        }
    }

    /// Its name, for people and for what is kept.
    pub fn name(self) -> String {
        let products = |what: &str, dtype: DType, activations| match activations {
            ActivationFormat::F32 => format!("{what} of {dtype}"),
            other => format!("{what} of {dtype} and {other}"),
        };
        match self {
            Kernel::Linear(dtype, activations) => products("linear", dtype, activations),
            Kernel::Embed(dtype) => format!("embed of {dtype}"),
            Kernel::Experts(dtype, activations) => products("experts", dtype, activations),
            Kernel::Gate(Activation::Silu) => "gate with silu".into(),
            Kernel::Gate(Activation::Gelu) => "gate with gelu".into(),
            Kernel::Gate(Activation::GeluTanh) => "gate with gelu by tanh".into(),
            Kernel::Gate(Activation::Relu) => "gate with relu".into(),
            Kernel::Gate(Activation::ClampedSwiglu { .. }) => "clamped gate".into(),
            Kernel::RmsNorm => "rms_norm".into(),
            Kernel::LayerNorm => "layer_norm".into(),
            Kernel::Largest => "largest".into(),
            Kernel::Rope(RopeStyle::Half) => "rope".into(),
            Kernel::Rope(RopeStyle::Interleaved) => "rope of neighbours".into(),
            Kernel::Attention { cache, window: false } => format!("attention to {cache}"),
            Kernel::Attention { cache, window: true } => {
                format!("attention to {cache} in a window")
            }
        }
    }

    /// Graphs that run it.
    ///
    /// # Errors
    /// None, if this file is right.
    pub fn cases(self) -> Result<Vec<Case>, DeviceError> {
        let b = Build::new(&self.name());
        match self {
            Kernel::Linear(dtype, activations) => {
                let of = |name: &str| Build { activations, ..Build::new(name) };
                let b = of(&self.name());
                let (layer, several) = (of("a feed-forward"), of("several products"));
                Ok(vec![b.linear(dtype)?, several.products(dtype)?, layer.feed_forward(dtype)?])
            }
            Kernel::Attention { cache, window } => {
                let rotated = Build::new("with norms and rotations");
                let window = window.then_some(9);
                Ok(vec![
                    b.attention(cache, window, false)?,
                    rotated.attention(cache, window, true)?,
                ])
            }
            Kernel::Embed(dtype) => Ok(vec![b.embed(dtype)?]),
            Kernel::Experts(dtype, activations) => {
                Ok(vec![Build { activations, ..b }.experts(dtype)?])
            }
            Kernel::Gate(act) => Ok(vec![b.gate(act)?]),
            Kernel::RmsNorm => Ok(vec![b.rms_norm()?]),
            Kernel::LayerNorm => Ok(vec![b.layer_norm()?]),
            Kernel::Rope(style) => Ok(vec![b.rope(style)?]),
            Kernel::Largest => Ok(Vec::new()),
        }
    }
}

/// A graph with its weights.
pub(crate) struct Case {
    pub graph: Subgraph,
    pub weights: CaseWeights,
}

/// Weights in memory.
#[derive(Default)]
pub(crate) struct CaseWeights(BTreeMap<String, WeightData>);

fn lacks(name: &str) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: "is not there".into() }
}

impl WeightSource for CaseWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        self.0.get(name).cloned().ok_or_else(|| lacks(name))
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let len = layout.bytes(data.rows).ok_or_else(|| lacks(name))?;
        let mut bytes = ZeroedBytes::new(len).map_err(DeviceError::memory(name))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)) })
    }
}

/// Seeded numbers.
pub(crate) struct Numbers(pub u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }
}

struct Build {
    b: SubgraphBuilder,
    weights: CaseWeights,
    numbers: Numbers,
    /// Of products.
    activations: ActivationFormat,
}

impl Build {
    fn new(name: &str) -> Build {
        let seed = name.bytes().fold(7, |seed: u64, b| seed.wrapping_mul(31) + u64::from(b));
        let (b, weights) = (SubgraphBuilder::new(name, MOST_ROWS), CaseWeights::default());
        Build { b, weights, numbers: Numbers(seed), activations: ActivationFormat::F32 }
    }

    /// A weight of random numbers; those of blocks are small.
    fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> WeightRef {
        let name = format!("w{}", self.weights.0.len());
        let len = dtype.row_bytes(cols).unwrap_or(0) * rows;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            match dtype {
                DType::F32 => bytes.extend(self.numbers.float().to_le_bytes()),
                DType::F16 => bytes.extend(half::f16::from_f32(self.numbers.float()).to_le_bytes()),
                DType::BF16 => {
                    bytes.extend(half::bf16::from_f32(self.numbers.float()).to_le_bytes());
                }
                _ => bytes.push(self.numbers.next() as u8),
            }
        }
        if dtype.is_quantized() {
            blocks::set_scales(dtype, &mut bytes, 0.05);
        }
        let data = WeightData { dtype, rows, cols, bytes: WeightBytes::owned(bytes) };
        self.weights.0.insert(name.clone(), data);
        self.b.weight(WeightDecl::whole(name.into(), rows, cols, dtype))
    }

    fn floats(&mut self, name: &str, cols: usize) -> ValueId {
        self.b.input(name, cols, DType::F32)
    }

    fn product(&mut self, dtype: DType, x: ValueId, n: usize, bias: bool) -> ValueId {
        let weight = self.weight(dtype, n, self.b.cols(x));
        let bias = bias.then(|| self.weight(DType::F32, 1, n));
        let op = Op::Linear { weight, bias, activations: self.activations };
        self.b.op("product", op, &[x], n)
    }

    fn norm(&mut self, x: ValueId, group: usize) -> ValueId {
        let (weight, cols) = (self.weight(DType::F32, 1, group), self.b.cols(x));
        let op = Op::RmsNorm { weight: Some(weight), eps: EPS, offset: 1.0, group };
        self.b.op("norm", op, &[x], cols)
    }

    /// The case that ends in some values.
    fn done(mut self, outputs: &[ValueId]) -> Result<Case, DeviceError> {
        outputs.iter().for_each(|y| self.b.output(*y));
        Ok(Case { graph: self.b.finish()?, weights: self.weights })
    }

    fn linear(mut self, dtype: DType) -> Result<Case, DeviceError> {
        let x = self.floats("x", if dtype.block_len() == 1 { 97 } else { WHOLE });
        let y = self.product(dtype, x, 53, true);
        self.done(&[y])
    }

    /// Three products of one value, of as many rows as each other or not.
    fn products(mut self, dtype: DType) -> Result<Case, DeviceError> {
        let x = self.floats("x", WHOLE);
        let x = self.norm(x, WHOLE);
        let all = [53, 16, 16].map(|n| self.product(dtype, x, n, false));
        self.done(&all)
    }

    /// A layer's feed-forward with its norm and the sum at its end.
    fn feed_forward(mut self, dtype: DType) -> Result<Case, DeviceError> {
        let x = self.floats("x", WHOLE);
        let normed = self.norm(x, WHOLE);
        let inputs = [(); 2].map(|()| self.product(dtype, normed, WHOLE, false));
        let gated = self.b.op("gated", Op::Gate(Activation::Silu), &inputs, WHOLE);
        // What went before makes numbers large, which the last product must not hide.
        let gated = self.norm(gated, WHOLE);
        let down = self.product(dtype, gated, WHOLE, false);
        let y = self.b.op("sum", Op::Add, &[x, down], WHOLE);
        self.done(&[y])
    }

    fn embed(mut self, dtype: DType) -> Result<Case, DeviceError> {
        let k = if dtype.block_len() == 1 { 97 } else { WHOLE };
        let table = self.weight(dtype, POSITIONS, k);
        let ids = self.b.input("ids", 1, DType::I32);
        let y = self.b.op("y", Op::Embed { table, scale: 1.5 }, &[ids], k);
        self.done(&[y])
    }

    fn experts(mut self, dtype: DType) -> Result<Case, DeviceError> {
        let k = if dtype.block_len() == 1 { 72 } else { 256 };
        let mut list = || (0..5).map(|_| self.weight(dtype, k, k)).collect::<Vec<_>>();
        let experts = Experts {
            gate: list(),
            up: list(),
            down: list(),
            gate_bias: vec![],
            up_bias: vec![],
            down_bias: vec![],
            act: Activation::Silu,
            activations: self.activations,
        };
        let (x, logits) = (self.floats("x", k), self.floats("logits", 5));
        let router = Router {
            experts: 5,
            top_k: 2,
            score: Score::Softmax,
            normalize: true,
            scale: 1.0,
            groups: None,
        };
        let (ids, shares) = self.b.router(router, logits);
        let y = self.b.op("y", Op::Experts(experts), &[x, ids, shares], k);
        self.done(&[y])
    }

    fn gate(mut self, act: Activation) -> Result<Case, DeviceError> {
        let inputs = ["gate", "up"].map(|name| self.floats(name, 301));
        let y = self.b.op("y", Op::Gate(act), &inputs, 301);
        self.done(&[y])
    }

    fn rms_norm(mut self) -> Result<Case, DeviceError> {
        let x = self.floats("x", 3 * 77);
        let y = self.norm(x, 77);
        self.done(&[y])
    }

    fn layer_norm(mut self) -> Result<Case, DeviceError> {
        let [weight, bias] = [(); 2].map(|()| self.weight(DType::F32, 1, 301));
        let x = self.floats("x", 301);
        let op = Op::LayerNorm { weight, bias: Some(bias), eps: EPS, group: 301 };
        let y = self.b.op("y", op, &[x], 301);
        self.done(&[y])
    }

    fn rotated(&mut self, x: ValueId, positions: ValueId, of: RotatedHead) -> ValueId {
        let RotatedHead { head_dim, offset, rotary_dim, style } = of;
        let half = rotary_dim / 2;
        let inv_freq = (0..half).map(|i| 1e4_f32.powf(-(i as f32) / half as f32)).collect();
        let freqs = RopeFreqs { inv_freq, factor: 1.0 };
        let op = Rope { head_dim, offset, rotary_dim, style, freqs, long: None };
        let cols = self.b.cols(x);
        self.b.op("rotated", Op::Rope(op), &[x, positions], cols)
    }

    fn rope(mut self, style: RopeStyle) -> Result<Case, DeviceError> {
        let (x, positions) = (self.floats("x", 66), self.b.input("positions", 1, DType::I32));
        let of = RotatedHead { head_dim: 22, offset: 2, rotary_dim: 16, style };
        let y = self.rotated(x, positions, of);
        self.done(&[y])
    }

    /// Appends keys and values, and attends to them; in `whole` with norms and rotations of heads.
    fn attention(
        mut self,
        dtype: DType,
        window: Option<usize>,
        whole: bool,
    ) -> Result<Case, DeviceError> {
        let (heads, kv_heads, dim) = (6, 2, if whole { 32 } else { 34 });
        let mut q = self.floats("q", heads * dim);
        let [mut k, v] = ["k", "v"].map(|name| self.floats(name, kv_heads * dim));
        if whole {
            let positions = self.b.input("positions", 1, DType::I32);
            let style = RopeStyle::Half;
            let of = || RotatedHead { head_dim: dim, offset: 0, rotary_dim: dim, style };
            [q, k] = [q, k].map(|x| self.norm(x, dim));
            [q, k] = [q, k].map(|x| self.rotated(x, positions, of()));
        }
        let shape = Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(kv_heads * dim)]);
        let caches = ["keys", "values"].map(|name| self.b.state(name, shape.clone(), dtype));
        for (x, cache) in [k, v].iter().zip(&caches) {
            let op = Op::KvAppend(KvAppend { width: kv_heads * dim, page_group: 0 });
            self.b.node(op, &[*x], &[*cache], &[]);
        }
        let op = Attention {
            heads,
            kv_heads,
            k_dim: dim,
            v_dim: dim,
            scale: 0.2,
            window,
            softcap: window.map(|_| 5.0),
            sinks: None,
            value_in_key: false,
            page_group: 0,
            activations: ActivationFormat::F32,
        };
        let y = self.b.attention(op, q, &caches);
        self.done(&[y])
    }
}

/// What of a head is rotated, and how.
struct RotatedHead {
    head_dim: usize,
    offset: usize,
    rotary_dim: usize,
    style: RopeStyle,
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    #[test]
    fn each_kernel_is_found_in_its_own_cases() {
        let mut names = Vec::new();
        for kernel in Kernel::all() {
            for case in kernel.cases().unwrap() {
                let found = case.graph.nodes.iter().filter_map(|n| Kernel::of(&case.graph, n));
                let found: Vec<String> = found.map(Kernel::name).collect();
                assert!(found.contains(&kernel.name()), "{}: {found:?}", kernel.name());
            }
            names.push(kernel.name());
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert!(names.len() == all && all > 60);
    }
}
