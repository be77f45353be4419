//! Builds cases: graphs of one op or a few, with seeded weights in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{
    DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource, ZeroedBytes,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, CalibrationTensor, DType, Dim, Experts, KvAppend, Op,
    Rope, RopeFreqs, RopeStyle, Router, Score, Shape, SubgraphBuilder, ValueId, WeightDecl,
    WeightRef,
};

use crate::case::{DeviceCase, POSITIONS};
use crate::random::Random;
use crate::values::element;

pub(crate) type Res<T> = Result<T, DeviceError>;

const EPS: f32 = 1e-5;

/// Weights in memory; by default none, for callers that read none.
#[derive(Default)]
pub struct CaseWeights(BTreeMap<String, WeightData>);

pub(crate) fn wrong(name: &str, why: impl ToString) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: why.to_string() }
}

impl WeightSource for CaseWeights {
    fn weight(&self, name: &str) -> Res<WeightData> {
        self.0.get(name).cloned().ok_or_else(|| wrong(name, "is not there"))
    }

    fn packed(&self, name: &str, layout: PackLayout<'_>, pack: PackFn<'_>) -> Res<Packed> {
        let data = self.weight(name)?;
        let len = layout.bytes(data.rows).ok_or_else(|| wrong(name, "is too large"))?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(name, e))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)) })
    }
}

/// The types of a product.
#[derive(Clone, Copy)]
pub(crate) struct ProductsOf {
    pub dtype: DType,
    pub activations: ActivationFormat,
}

/// The experts of a case.
#[derive(Clone, Copy)]
pub(crate) struct ExpertsOf {
    pub of: ProductsOf,
    pub count: usize,
    pub hidden: usize,
    pub inner: usize,
    pub biased: bool,
}

/// The attention of a case.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOf {
    /// The caches' type.
    pub dtype: DType,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Whether it has a window and a cap.
    pub window: bool,
    pub sinks: bool,
    pub value_in_key: bool,
    /// Whether heads are normed and rotated before.
    pub rotated: bool,
}

impl AttentionOf {
    pub fn plain(dtype: DType, k_dim: usize, v_dim: usize) -> AttentionOf {
        let (window, sinks, value_in_key, rotated) = (false, false, false, false);
        AttentionOf { dtype, k_dim, v_dim, window, sinks, value_in_key, rotated }
    }
}

/// What of a head is rotated.
struct RotatedHead {
    head_dim: usize,
    offset: usize,
    rotary_dim: usize,
}

/// A case under construction.
pub(crate) struct Build {
    pub b: SubgraphBuilder,
    name: String,
    weights: CaseWeights,
    random: Random,
    tolerance: f32,
}

impl Build {
    pub fn new(name: &str, max_rows: usize, tolerance: f32) -> Build {
        let seed = name.bytes().fold(1, |seed: u64, b| seed.wrapping_mul(31) + u64::from(b));
        let (b, weights) = (SubgraphBuilder::new(name, max_rows), CaseWeights::default());
        Build { b, name: name.into(), weights, random: Random(seed), tolerance }
    }

    /// Keeps a weight of random numbers; of blocks, random bytes that give small ones.
    pub fn stored(&mut self, dtype: DType, rows: usize, cols: usize) -> Res<WeightDecl> {
        let name = format!("w{}", self.weights.0.len());
        let len = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        let len = len.ok_or_else(|| wrong(&name, "is no whole blocks"))?;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            match dtype {
                DType::MXFP4 if bytes.len() % 17 == 0 => bytes.push(124),
                DType::MXFP4 => bytes.push(self.random.bits() as u8),
                _ => bytes.extend(element(&mut self.random, dtype)),
            }
        }
        let bytes = WeightBytes::owned(bytes);
        self.weights.0.insert(name.clone(), WeightData { dtype, rows, cols, bytes });
        Ok(WeightDecl::whole(name.into(), rows, cols, dtype))
    }

    pub fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> Res<WeightRef> {
        let decl = self.stored(dtype, rows, cols)?;
        Ok(self.b.weight(decl))
    }

    /// Adds a tensor of a calibration.
    pub fn calibrated(&mut self, weight: &str, tensor: CalibrationTensor, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = WeightBytes::owned(bytes);
        let data = WeightData { dtype: DType::F32, rows: 1, cols: values.len(), bytes };
        self.weights.0.insert(tensor.of(weight), data);
    }

    pub fn floats(&mut self, cols: usize) -> ValueId {
        self.b.input("x", cols, DType::F32)
    }

    fn whole_numbers(&mut self, name: &str) -> ValueId {
        self.b.input(name, 1, DType::I32)
    }

    /// Appends rows to a cache.
    pub fn append(&mut self, x: ValueId, cols: usize, dtype: DType, page_group: usize) -> ValueId {
        let shape = Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(cols)]);
        let cache = self.b.state("cache", shape, dtype);
        self.b.node(Op::KvAppend(KvAppend { width: cols, page_group }), &[x], &[cache], &[]);
        cache
    }

    /// The case that ends in an op.
    pub fn op(mut self, op: Op, inputs: &[ValueId], cols: usize) -> Res<DeviceCase> {
        let y = self.b.op("y", op, inputs, cols);
        self.done(&[y])
    }

    /// The case that ends in some values.
    pub fn done(mut self, outputs: &[ValueId]) -> Res<DeviceCase> {
        outputs.iter().for_each(|y| self.b.output(*y));
        let (name, tolerance, weights) = (self.name, self.tolerance, Arc::new(self.weights));
        Ok(DeviceCase { name, graph: self.b.finish()?, weights, seed: 7, tolerance })
    }

    /// A case of one op on plain values with these numbers of columns.
    pub fn plain(mut self, op: Op, inputs: &[usize], cols: usize) -> Res<DeviceCase> {
        let inputs: Vec<ValueId> = inputs.iter().map(|cols| self.floats(*cols)).collect();
        self.op(op, &inputs, cols)
    }

    fn norm(&mut self, x: ValueId, group: usize) -> Res<ValueId> {
        let (weight, cols) = (self.weight(DType::F32, 1, group)?, self.b.cols(x));
        let op = Op::RmsNorm { weight: Some(weight), eps: EPS, offset: 1.0, group };
        Ok(self.b.op("norm", op, &[x], cols))
    }

    fn product(&mut self, of: ProductsOf, x: ValueId, n: usize) -> Res<ValueId> {
        let weight = self.weight(of.dtype, n, self.b.cols(x))?;
        let op = Op::Linear { weight, bias: None, activations: of.activations };
        Ok(self.b.op("product", op, &[x], n))
    }

    pub fn embed(mut self, dtype: DType, cols: usize) -> Res<DeviceCase> {
        let table = self.weight(dtype, POSITIONS, cols)?;
        let ids = self.whole_numbers("ids");
        self.op(Op::Embed { table, scale: 1.5 }, &[ids], cols)
    }

    pub fn rms_norm(mut self, group: usize, cols: usize) -> Res<DeviceCase> {
        let x = self.floats(cols);
        let y = self.norm(x, group)?;
        self.done(&[y])
    }

    pub fn layer_norm(mut self, dtype: DType, cols: usize) -> Res<DeviceCase> {
        let (weight, bias) = (self.weight(dtype, 1, cols)?, self.weight(DType::F32, 1, cols)?);
        let x = self.floats(cols);
        self.op(Op::LayerNorm { weight, bias: Some(bias), eps: EPS, group: cols }, &[x], cols)
    }

    fn rotation(of: RotatedHead, style: RopeStyle, long: bool) -> Op {
        let RotatedHead { head_dim, offset, rotary_dim } = of;
        let freqs = |base: f32| {
            let half = rotary_dim / 2;
            let inv_freq = (0..half).map(|i| base.powf(-(i as f32) / half as f32)).collect();
            RopeFreqs { inv_freq, factor: 1.0 }
        };
        let long = long.then(|| (freqs(1e5), 6));
        Op::Rope(Rope { head_dim, offset, rotary_dim, style, freqs: freqs(1e4), long })
    }

    pub fn rope(mut self, style: RopeStyle, long: bool) -> Res<DeviceCase> {
        let (x, positions) = (self.floats(66), self.whole_numbers("positions"));
        let of = RotatedHead { head_dim: 22, offset: 2, rotary_dim: 16 };
        self.op(Build::rotation(of, style, long), &[x, positions], 66)
    }

    pub fn linear(mut self, of: ProductsOf, rows: usize, cols: usize) -> Res<DeviceCase> {
        let (weight, bias) =
            (self.weight(of.dtype, rows, cols)?, self.weight(DType::F32, 1, rows)?);
        let x = self.floats(cols);
        let op = Op::Linear { weight, bias: Some(bias), activations: of.activations };
        self.op(op, &[x], rows)
    }

    /// Three products of one value, some of as many columns as each other.
    pub fn products(mut self, of: ProductsOf, cols: usize) -> Res<DeviceCase> {
        let x = self.floats(cols);
        let x = self.norm(x, cols)?;
        let all = [53, 16, 16].map(|n| self.product(of, x, n));
        let all = all.into_iter().collect::<Res<Vec<_>>>()?;
        self.done(&all)
    }

    /// A norm, two products of its result, a gate, a product and a sum. Gates may be normed: what
    /// went before makes numbers large, which the last product must not hide.
    pub fn feed_forward(
        mut self,
        of: ProductsOf,
        hidden: usize,
        inner: usize,
        normed_gate: bool,
    ) -> Res<DeviceCase> {
        let x = self.floats(hidden);
        let normed = self.norm(x, hidden)?;
        let inputs = [self.product(of, normed, inner)?, self.product(of, normed, inner)?];
        let gated = self.b.op("gated", Op::Gate(Activation::Silu), &inputs, inner);
        let gated = if normed_gate { self.norm(gated, inner)? } else { gated };
        let down = self.product(of, gated, hidden)?;
        self.op(Op::Add, &[x, down], hidden)
    }

    pub fn weights_of_experts(&mut self, of: ExpertsOf, act: Activation) -> Res<Experts> {
        let ExpertsOf { of, count, hidden, inner, biased } = of;
        let mut list = |rows, cols, dtype, count| -> Res<Vec<WeightRef>> {
            (0..count).map(|_| self.weight(dtype, rows, cols)).collect()
        };
        let biases = if biased { count } else { 0 };
        Ok(Experts {
            gate: list(inner, hidden, of.dtype, count)?,
            up: list(inner, hidden, of.dtype, count)?,
            down: list(hidden, inner, of.dtype, count)?,
            gate_bias: list(1, inner, DType::F32, biases)?,
            up_bias: vec![],
            down_bias: list(1, hidden, DType::F32, biases)?,
            act,
            activations: of.activations,
        })
    }

    /// A router, and the experts that it chooses.
    pub fn routed_experts(mut self, of: ExpertsOf) -> Res<DeviceCase> {
        let experts = self.weights_of_experts(of, Activation::Silu)?;
        let (x, logits) = (self.floats(of.hidden), self.floats(of.count));
        let router = Router {
            experts: of.count,
            top_k: 2,
            score: Score::Softmax,
            normalize: true,
            scale: 1.0,
            groups: None,
        };
        let (ids, shares) = self.b.router(router, logits);
        self.op(Op::Experts(experts), &[x, ids, shares], of.hidden)
    }

    /// Appends keys and values, and attends to them.
    pub fn attention(mut self, of: AttentionOf) -> Res<DeviceCase> {
        let (heads, kv_heads) = (6, 2);
        let AttentionOf { dtype, k_dim, v_dim, value_in_key, .. } = of;
        let sinks = if of.sinks { Some(self.weight(DType::F32, 1, heads)?) } else { None };
        let [mut q, mut k] = [heads, kv_heads].map(|n| self.floats(n * k_dim));
        if of.rotated {
            let positions = self.whole_numbers("positions");
            for x in [&mut q, &mut k] {
                let (normed, cols) = (self.norm(*x, k_dim)?, self.b.cols(*x));
                let of = RotatedHead { head_dim: k_dim, offset: 0, rotary_dim: k_dim };
                let op = Build::rotation(of, RopeStyle::Half, false);
                *x = self.b.op("rotated", op, &[normed, positions], cols);
            }
        }
        let mut caches = vec![self.append(k, kv_heads * k_dim, dtype, 0)];
        if !value_in_key {
            let v = self.floats(kv_heads * v_dim);
            caches.push(self.append(v, kv_heads * v_dim, dtype, 0));
        }
        let pairs = dtype == DType::BF16;
        let op = Attention {
            heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: 0.2,
            window: of.window.then_some(9),
            softcap: of.window.then_some(5.0),
            sinks,
            value_in_key,
            page_group: 0,
            activations: if pairs { ActivationFormat::Bf16 } else { ActivationFormat::F32 },
        };
        let y = self.b.attention(op, q, &caches);
        self.done(&[y])
    }
}
