//! Builds cases: graphs of one op or a few, with seeded weights in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{
    DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource, ZeroedBytes,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, CalibrationTensor, DType, Dim, Experts, Growth,
    KvAppend, Op, Rope, RopeFreqs, RopeStyle, Router, ScaleOrigin, Score, Shape, Subgraph,
    SubgraphBuilder, ValueId, WeightDecl, WeightRef,
};

use crate::random::Random;

pub(crate) type Result<T, E = DeviceError> = std::result::Result<T, E>;

const EPS: f32 = 1e-5;
/// The most rows of the ops' and models' cases.
pub const MAX_ROWS: usize = 24;
/// The most rows of the kernels' cases.
pub(crate) const MOST_ROWS: usize = 80;
/// Positions of every cache, and rows of every table.
pub const POSITIONS: usize = 128;

/// A subgraph to run on a device.
#[derive(Clone)]
pub struct DeviceCase {
    /// The name in reports.
    pub name: String,
    /// The graph with symbolic rows.
    pub graph: Subgraph,
    /// Its weights.
    pub weights: Arc<dyn WeightSource + Send + Sync>,
    /// The seed of its inputs and caches.
    pub seed: u64,
    /// Allowed difference from another device, relative to a value's largest element.
    pub tolerance: f32,
}

impl DeviceCase {
    /// The numbers of rows to run: one, a few, and almost as many as there is room for.
    pub fn rows(&self) -> [usize; 3] {
        let most = self.graph.max_rows();
        [1, 5, most - most / 8]
    }
}

/// Weights in memory; by default none, for callers that read none.
#[derive(Default)]
pub struct CaseWeights(BTreeMap<String, WeightData>);

pub(crate) fn wrong(name: &str, why: impl ToString) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: why.to_string() }
}

impl WeightSource for CaseWeights {
    fn weight(&self, name: &str) -> Result<WeightData> {
        self.0.get(name).cloned().ok_or_else(|| wrong(name, "is not there"))
    }

    fn packed(&self, name: &str, layout: PackLayout<'_>, pack: PackFn<'_>) -> Result<Packed> {
        let data = self.weight(name)?;
        let len = layout.bytes(data.rows).ok_or_else(|| wrong(name, "is too large"))?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(name, e))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)), stored: false })
    }
}

/// Attention of six heads to two, without what only some models have.
pub(crate) fn plain_attention(k_dim: usize, v_dim: usize) -> Attention {
    Attention {
        heads: 6,
        kv_heads: 2,
        k_dim,
        v_dim,
        scale: 0.2,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    }
}

/// A router to two experts, without what only some models have.
pub(crate) fn plain_router(experts: usize) -> Router {
    Router {
        experts,
        top_k: 2,
        score: Score::Softmax,
        normalize: true,
        scale: 1.0,
        groups: None,
        bias: None,
        expert_scales: None,
    }
}

fn frequencies(base: f32, rotary_dim: usize) -> RopeFreqs {
    let half = rotary_dim / 2;
    let inv_freq = (0..half).map(|i| base.powf(-(i as f32) / half as f32)).collect();
    RopeFreqs { inv_freq, factor: 1.0, growth: None }
}

fn rotation(head_dim: usize, offset: usize, rotary_dim: usize, style: RopeStyle) -> Rope {
    Rope { head_dim, offset, rotary_dim, style, freqs: frequencies(1e4, rotary_dim), long: None }
}

/// A case under construction.
pub(crate) struct Build {
    pub b: SubgraphBuilder,
    name: String,
    weights: CaseWeights,
    random: Random,
    tolerance: f32,
    /// The weights' type and the activations' format of products.
    dtype: DType,
    activations: ActivationFormat,
}

impl Build {
    pub fn new(name: &str, max_rows: usize, tolerance: f32) -> Build {
        let seed = name.bytes().fold(1, |seed: u64, b| seed.wrapping_mul(31) + u64::from(b));
        let (b, weights) = (SubgraphBuilder::new(name, max_rows), CaseWeights::default());
        let (name, random, dtype) = (name.into(), Random(seed), DType::F32);
        Build { b, name, weights, random, tolerance, dtype, activations: ActivationFormat::F32 }
    }

    /// With other types of products.
    pub fn of(self, dtype: DType, activations: ActivationFormat) -> Build {
        Build { dtype, activations, ..self }
    }

    /// Keeps a weight of random numbers.
    pub fn stored(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<WeightDecl> {
        let name = format!("w{}", self.weights.0.len());
        let len = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        let len = len.ok_or_else(|| wrong(&name, "is not made of whole blocks"))?;
        let bytes = WeightBytes::owned(self.random.bytes(dtype, len));
        self.weights.0.insert(name.clone(), WeightData { dtype, rows, cols, bytes });
        Ok(WeightDecl::whole(name.into(), rows, cols, dtype))
    }

    pub fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<WeightRef> {
        let decl = self.stored(dtype, rows, cols)?;
        Ok(self.b.weight(decl))
    }

    /// Adds a tensor of a calibration.
    pub fn calibrated(&mut self, weight: &str, tensor: CalibrationTensor, values: &[f32]) {
        let bytes = WeightBytes::owned(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        let data = WeightData { dtype: DType::F32, rows: 1, cols: values.len(), bytes };
        self.weights.0.insert(tensor.of(weight), data);
    }

    /// The outliers of a product: of random inputs some are above the limit, and some of those are in
    /// columns that are held in memory.
    pub fn outliers(
        mut self,
        dtype: DType,
        scales: ScaleOrigin,
        cols: usize,
    ) -> Result<DeviceCase> {
        use CalibrationTensor::{InputLimit, InputMax, SmoothedLimit, WeightMax};
        let decl = self.stored(dtype, 37, cols)?;
        let of =
            |at| -> Vec<f32> { (0..cols).map(|c| if c % 30 == at { 9.0 } else { 1.0 }).collect() };
        self.calibrated(&decl.name, InputLimit, &[0.4]);
        self.calibrated(&decl.name, SmoothedLimit, &[0.4]);
        self.calibrated(&decl.name, InputMax, &of(2));
        self.calibrated(&decl.name, WeightMax, &of(3));
        self.calibrated(&decl.name, CalibrationTensor::outliers(scales), &of(1));
        let (weight, x) = (self.b.weight(decl), self.floats(cols));
        let activations = ActivationFormat::of_tensor(8, scales);
        self.op(Op::Outliers { weight, activations }, &[x], 37)
    }

    pub fn floats(&mut self, cols: usize) -> ValueId {
        self.b.input("x", cols, DType::F32)
    }

    fn whole_numbers(&mut self, name: &str) -> ValueId {
        self.b.input(name, 1, DType::I32)
    }

    fn state(&mut self, cols: usize, dtype: DType) -> ValueId {
        self.b.state("cache", Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(cols)]), dtype)
    }

    /// Appends rows to a cache.
    pub fn append(&mut self, x: ValueId, cols: usize, dtype: DType, page_group: usize) -> ValueId {
        let cache = self.state(cols, dtype);
        self.b.node(Op::KvAppend(KvAppend { width: cols, page_group }), &[x], &[cache], &[]);
        cache
    }

    /// The case that ends in an op.
    pub fn op(mut self, op: Op, inputs: &[ValueId], cols: usize) -> Result<DeviceCase> {
        let y = self.b.op("y", op, inputs, cols);
        self.done(&[y])
    }

    /// The case that ends in an op with a state, whose rows have `width` columns.
    pub fn stateful(
        mut self,
        op: Op,
        inputs: &[ValueId],
        width: usize,
        cols: usize,
    ) -> Result<DeviceCase> {
        let state = self.state(width, DType::F32);
        let y = self.b.stateful("y", op, inputs, state, cols);
        self.done(&[y])
    }

    /// The case that ends in some values.
    pub fn done(mut self, outputs: &[ValueId]) -> Result<DeviceCase> {
        outputs.iter().for_each(|y| self.b.output(*y));
        let (name, tolerance, weights) = (self.name, self.tolerance, Arc::new(self.weights));
        Ok(DeviceCase { name, graph: self.b.finish()?, weights, seed: 7, tolerance })
    }

    /// A case of one op on plain values with these numbers of columns.
    pub fn plain(mut self, op: Op, inputs: &[usize], cols: usize) -> Result<DeviceCase> {
        let inputs: Vec<ValueId> = inputs.iter().map(|cols| self.floats(*cols)).collect();
        self.op(op, &inputs, cols)
    }

    fn norm(&mut self, x: ValueId, group: usize, offset: f32) -> Result<ValueId> {
        let (weight, cols) = (self.weight(DType::F32, 1, group)?, self.b.cols(x));
        let op = Op::RmsNorm { weight: Some(weight), eps: EPS, offset, group };
        Ok(self.b.op("norm", op, &[x], cols))
    }

    fn product(&mut self, x: ValueId, n: usize) -> Result<ValueId> {
        let weight = self.weight(self.dtype, n, self.b.cols(x))?;
        let op = Op::Linear { weight, bias: None, activations: self.activations, form: None };
        Ok(self.b.op("product", op, &[x], n))
    }

    pub fn embed(mut self, dtype: DType, cols: usize) -> Result<DeviceCase> {
        let table = self.weight(dtype, POSITIONS, cols)?;
        let ids = self.whole_numbers("ids");
        self.op(Op::Embed { table, scale: 1.5 }, &[ids], cols)
    }

    pub fn rms_norm(mut self, group: usize, cols: usize) -> Result<DeviceCase> {
        let x = self.floats(cols);
        let y = self.norm(x, group, 1.0)?;
        self.done(&[y])
    }

    pub fn layer_norm(mut self, dtype: DType, cols: usize) -> Result<DeviceCase> {
        let (weight, bias) = (self.weight(dtype, 1, cols)?, self.weight(DType::F32, 1, cols)?);
        let x = self.floats(cols);
        self.op(Op::LayerNorm { weight, bias: Some(bias), eps: EPS, group: cols }, &[x], cols)
    }

    pub fn rope(mut self, style: RopeStyle, long: bool) -> Result<DeviceCase> {
        let (x, positions) = (self.floats(66), self.whole_numbers("positions"));
        let growth = Some(Growth { beta: 0.3, original: 2 });
        let long = long.then(|| (RopeFreqs { growth, ..frequencies(1e5, 16) }, 6));
        self.op(Op::Rope(Rope { long, ..rotation(22, 2, 16, style) }), &[x, positions], 66)
    }

    pub fn linear(mut self, rows: usize, cols: usize) -> Result<DeviceCase> {
        let weight = self.weight(self.dtype, rows, cols)?;
        let (bias, x) = (Some(self.weight(DType::F32, 1, rows)?), self.floats(cols));
        let activations = self.activations;
        self.op(Op::Linear { weight, bias, activations, form: None }, &[x], rows)
    }

    /// Three products of one value, some of as many columns as each other.
    pub fn products(mut self, cols: usize) -> Result<DeviceCase> {
        let x = self.floats(cols);
        let x = self.norm(x, cols, 1.0)?;
        let all =
            [53, 16, 16].into_iter().map(|n| self.product(x, n)).collect::<Result<Vec<_>>>()?;
        self.done(&all)
    }

    /// A norm, two products of its result, a gate, a product and a sum. Gates may be normed: what
    /// went before makes numbers large, which the last product must not hide.
    pub fn feed_forward(
        mut self,
        hidden: usize,
        inner: usize,
        normed_gate: bool,
    ) -> Result<DeviceCase> {
        let x = self.floats(hidden);
        let normed = self.norm(x, hidden, if normed_gate { 1.0 } else { 0.0 })?;
        let inputs = [self.product(normed, inner)?, self.product(normed, inner)?];
        let gated = self.b.op("gated", Op::Gate(Activation::Silu), &inputs, inner);
        let gated = if normed_gate { self.norm(gated, inner, 1.0)? } else { gated };
        let down = self.product(gated, hidden)?;
        self.op(Op::Add, &[x, down], hidden)
    }

    /// The weights of some experts without biases.
    pub fn experts(&mut self, count: usize, hidden: usize, inner: usize) -> Result<Experts> {
        let mut list = |rows, cols| -> Result<Vec<WeightRef>> {
            (0..count).map(|_| self.weight(self.dtype, rows, cols)).collect()
        };
        let (gate, up) = (list(inner, hidden)?, list(inner, hidden)?);
        let (down, act) = (list(hidden, inner)?, Activation::Silu);
        let (gate_bias, up_bias, down_bias) = (vec![], vec![], vec![]);
        let activations = self.activations;
        Ok(Experts { gate, up, down, gate_bias, up_bias, down_bias, act, activations })
    }

    /// A router, and the experts that it chooses.
    pub fn routed_experts(mut self, experts: usize, width: usize) -> Result<DeviceCase> {
        let op = Op::Experts(self.experts(experts, width, width)?);
        let (x, logits) = (self.floats(width), self.floats(experts));
        let (ids, shares) = self.b.router(plain_router(experts), logits);
        self.op(op, &[x, ids, shares], width)
    }

    /// Appends keys and values, and attends to them. Heads may be normed and rotated before.
    pub fn attention(mut self, op: Attention, cache: DType, rotated: bool) -> Result<DeviceCase> {
        let Attention { kv_heads, k_dim, v_dim, .. } = op;
        let [mut q, mut k] = [op.heads, kv_heads].map(|n| self.floats(n * k_dim));
        if rotated {
            let positions = self.whole_numbers("positions");
            for x in [&mut q, &mut k] {
                let (normed, cols) = (self.norm(*x, k_dim, 1.0)?, self.b.cols(*x));
                let op = Op::Rope(rotation(k_dim, 0, k_dim, RopeStyle::Half));
                *x = self.b.op("rotated", op, &[normed, positions], cols);
            }
        }
        let mut caches = vec![self.append(k, kv_heads * k_dim, cache, 0)];
        if !op.value_in_key {
            let v = self.floats(kv_heads * v_dim);
            caches.push(self.append(v, kv_heads * v_dim, cache, 0));
        }
        let y = self.b.attention(op, q, &caches);
        self.done(&[y])
    }
}
