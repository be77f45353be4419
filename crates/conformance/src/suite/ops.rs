//! Cases for every op, and for ops that devices fuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{
    DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource, ZeroedBytes,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, CalibrationTensor, DType, Dim, ExpertGroup, Experts,
    HeadLinear, KvAppend, Op, Rope, RopeFreqs, RopeStyle, Router, ScaleOrigin, Score, Shape,
    SubgraphBuilder, ValueId, WeightDecl, WeightRef, WeightSlice,
};

use super::values::element;
use super::{MAX_ROWS, POSITIONS, SuiteCase};
use crate::random::Random;

/// Weights in memory.
#[derive(Default)]
struct CaseWeights(BTreeMap<String, WeightData>);

fn wrong(name: &str, why: impl ToString) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: why.to_string() }
}

impl WeightSource for CaseWeights {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        self.0.get(name).cloned().ok_or_else(|| wrong(name, "is not there"))
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let len = layout.bytes(data.rows).ok_or_else(|| wrong(name, "is too large"))?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(name, e))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)) })
    }
}

/// A case under construction.
struct Build {
    name: &'static str,
    b: SubgraphBuilder,
    weights: CaseWeights,
    random: Random,
}

/// Tolerance of f32 products, for another order of summation.
const F32: f32 = 2e-5;
/// Tolerance for a number of eight or sixteen bits that rounds differently.
const ROUNDED: f32 = 1e-2;

type Res<T> = Result<T, DeviceError>;

impl Build {
    fn new(name: &'static str) -> Build {
        let random = Random(name.bytes().fold(1, |seed, b| seed * 31 + u64::from(b)));
        let b = SubgraphBuilder::new(name, MAX_ROWS);
        Build { name, b, weights: CaseWeights::default(), random }
    }

    /// Adds a weight of random numbers.
    fn stored(&mut self, dtype: DType, rows: usize, cols: usize) -> Res<WeightDecl> {
        let name = format!("w{}", self.weights.0.len());
        let len = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        let len = len.ok_or_else(|| wrong(&name, "is no whole blocks"))?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(&name, e))?;
        let mut all = Vec::with_capacity(len);
        while all.len() < len {
            all.extend(element(&mut self.random, dtype));
        }
        bytes.copy_from_slice(&all[..len]);
        let bytes = WeightBytes::whole(Arc::new(bytes));
        self.weights.0.insert(name.clone(), WeightData { dtype, rows, cols, bytes });
        Ok(WeightDecl::whole(name.into(), rows, cols, dtype))
    }

    fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> Res<WeightRef> {
        let decl = self.stored(dtype, rows, cols)?;
        Ok(self.b.weight(decl))
    }

    /// Adds a tensor of a calibration.
    fn calibrated(&mut self, weight: &str, tensor: CalibrationTensor, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = WeightBytes::owned(bytes);
        let data = WeightData { dtype: DType::F32, rows: 1, cols: values.len(), bytes };
        self.weights.0.insert(tensor.of(weight), data);
    }

    fn floats(&mut self, cols: usize) -> ValueId {
        self.b.input("x", cols, DType::F32)
    }

    fn cache(&mut self, name: &str, cols: usize, dtype: DType) -> ValueId {
        self.b.state(name, Shape(vec![Dim::KvLen(POSITIONS), Dim::Fixed(cols)]), dtype)
    }

    fn op(mut self, op: Op, inputs: &[ValueId], cols: usize, tolerance: f32) -> Res<SuiteCase> {
        let y = self.b.op("y", op, inputs, cols);
        self.b.output(y);
        self.done(tolerance)
    }

    fn done(self, tolerance: f32) -> Res<SuiteCase> {
        let (name, weights) = (self.name.to_string(), Arc::new(self.weights));
        Ok(SuiteCase { name, graph: self.b.finish()?, weights, seed: 7, tolerance })
    }
}

/// The outliers of a product: of random inputs some are above the limit, and some of those are in
/// columns that are held in memory.
fn outliers(dtype: DType) -> Res<SuiteCase> {
    let mut b = Build::new("outliers");
    let decl = b.stored(dtype, 24, 64)?;
    let counts: Vec<f32> = (0..64).map(|c| if c % 30 == 1 { 9.0 } else { 1.0 }).collect();
    b.calibrated(&decl.name, CalibrationTensor::InputLimit, &[0.4]);
    b.calibrated(&decl.name, CalibrationTensor::Outliers, &counts);
    let (weight, x) = (b.b.weight(decl), b.floats(64));
    let activations = ActivationFormat::of_tensor(8, ScaleOrigin::Clipped);
    b.op(Op::Outliers { weight, activations }, &[x], 24, F32)
}

/// At least one case for each op, and some with several ops.
///
/// # Errors
/// There is not enough memory.
pub fn op_cases() -> Result<Vec<SuiteCase>, DeviceError> {
    let mut all = elements()?;
    all.extend(products()?);
    for dtype in [DType::F32, DType::BF16, DType::Q8_0, DType::Q4_0] {
        all.push(outliers(dtype)?);
    }
    all.extend(caches()?);
    all.extend(mixtures()?);
    Ok(all)
}

/// A case of one op on plain values with these numbers of columns.
fn plain(name: &'static str, op: Op, inputs: &[usize], cols: usize) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let inputs: Vec<ValueId> = inputs.iter().map(|cols| b.floats(*cols)).collect();
    b.op(op, &inputs, cols, F32)
}

fn elements() -> Res<Vec<SuiteCase>> {
    let mut b = Build::new("embed");
    let table = b.weight(DType::Q8_0, 32, 64)?;
    let ids = b.b.input("ids", 1, DType::I32);
    let embed = b.op(Op::Embed { table, scale: 2.0 }, &[ids], 64, F32)?;
    let mut b = Build::new("rms_norm");
    let (weight, x) = (b.weight(DType::F32, 1, 3)?, b.floats(6));
    let op = Op::RmsNorm { weight: Some(weight), eps: 1e-5, offset: 1.0, group: 3 };
    let rms = b.op(op, &[x], 6, F32)?;
    let mut b = Build::new("layer_norm");
    let (weight, bias, x) = (b.weight(DType::F16, 1, 6)?, b.weight(DType::F32, 1, 6)?, b.floats(6));
    let op = Op::LayerNorm { weight, bias: Some(bias), eps: 1e-5, group: 6 };
    let layer = b.op(op, &[x], 6, F32)?;
    let clamped = Activation::ClampedSwiglu { alpha: 1.7, limit: 0.5 };
    Ok(vec![
        embed,
        rms,
        layer,
        plain("sigmoid_gate", Op::SigmoidGate, &[6, 1], 6)?,
        plain("slice_cols", Op::SliceCols { group: 6, start: 1, len: 4 }, &[12], 8)?,
        plain("concat_cols", Op::ConcatCols { groups: 2 }, &[4, 6], 10)?,
        plain("activate", Op::Activate(Activation::GeluTanh), &[6], 6)?,
        plain("activate with silu", Op::Activate(Activation::Silu), &[6], 6)?,
        plain("activate with gelu", Op::Activate(Activation::Gelu), &[6], 6)?,
        plain("activate with relu", Op::Activate(Activation::Relu), &[6], 6)?,
        plain("gate", Op::Gate(Activation::Silu), &[6, 6], 6)?,
        plain("gate that is clamped", Op::Gate(clamped), &[6, 6], 6)?,
        plain("add", Op::Add, &[6, 6], 6)?,
        plain("scale", Op::Scale { factor: 0.5 }, &[6], 6)?,
        plain("clamp", Op::Clamp { limit: 0.25 }, &[6], 6)?,
        plain("soft_cap", Op::SoftCap { cap: 0.5 }, &[6], 6)?,
        convert("convert", DType::BF16)?,
        convert("convert to f16", DType::F16)?,
        rope("rope", RopeStyle::Half, false)?,
        rope("rope of neighbours", RopeStyle::Interleaved, false)?,
        rope("rope of long sequences", RopeStyle::Half, true)?,
    ])
}

/// Converts from another type, and to it and back.
fn convert(name: &'static str, dtype: DType) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let (x, h) = (b.floats(37), b.b.input("h", 37, dtype));
    let h = b.b.convert("wide", h, DType::F32);
    let sum = b.b.op("sum", Op::Add, &[x, h], 37);
    let y = b.b.convert("narrow", sum, dtype);
    let back = b.b.convert("rounded", y, DType::F32);
    [y, back].into_iter().for_each(|v| b.b.output(v));
    b.done(0.0)
}

fn rope(name: &'static str, style: RopeStyle, long: bool) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let (x, positions) = (b.floats(12), b.b.input("positions", 1, DType::I32));
    let freqs = |f: f32| RopeFreqs { inv_freq: Arc::from([f, 0.1]), factor: 1.0 };
    let long = long.then(|| (freqs(0.5), 6));
    let op = Rope { head_dim: 6, offset: 1, rotary_dim: 4, style, freqs: freqs(1.0), long };
    b.op(Op::Rope(op), &[x, positions], 12, F32)
}

fn linear(
    name: &'static str,
    dtype: DType,
    activations: ActivationFormat,
    (rows, cols): (usize, usize),
    tolerance: f32,
) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let (weight, bias) = (b.weight(dtype, rows, cols)?, b.weight(DType::F32, 1, rows)?);
    let x = b.floats(cols);
    b.op(Op::Linear { weight, bias: Some(bias), activations }, &[x], rows, tolerance)
}

/// Five of forty columns of a product: a slice of its weight and one of its bias.
fn linear_part(name: &'static str, dtype: DType, activations: ActivationFormat) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let rows = b.stored(dtype, 40, 256)?;
    let slice = Some(WeightSlice::Rows { first: 16, of: 40 });
    let weight = b.b.weight(WeightDecl { rows: 5, slice, ..rows });
    let cols = b.stored(DType::F32, 1, 40)?;
    let slice = Some(WeightSlice::Cols { first: 16, of: 40 });
    let bias = Some(b.b.weight(WeightDecl { cols: 5, slice, ..cols }));
    let x = b.floats(256);
    let tolerance = if activations == ActivationFormat::F32 { F32 } else { ROUNDED };
    b.op(Op::Linear { weight, bias, activations }, &[x], 5, tolerance)
}

/// A norm, two products of its result, a gate, a product and a sum.
fn feed_forward(name: &'static str, dtype: DType, activations: ActivationFormat) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let norm = b.weight(DType::F32, 1, 64)?;
    let (gate, up) = (b.weight(dtype, 96, 64)?, b.weight(dtype, 96, 64)?);
    let down = b.weight(dtype, 64, 96)?;
    let x = b.floats(64);
    let product = |weight| Op::Linear { weight, bias: None, activations };
    let op = Op::RmsNorm { weight: Some(norm), eps: 1e-5, offset: 0.0, group: 64 };
    let n = b.b.op("n", op, &[x], 64);
    let g = b.b.op("g", product(gate), &[n], 96);
    let u = b.b.op("u", product(up), &[n], 96);
    let h = b.b.op("h", Op::Gate(Activation::Silu), &[g, u], 96);
    let d = b.b.op("d", product(down), &[h], 64);
    let tolerance = if activations == ActivationFormat::F32 { F32 } else { ROUNDED };
    b.op(Op::Add, &[x, d], 64, tolerance)
}

fn products() -> Res<Vec<SuiteCase>> {
    use ActivationFormat::{Bf16, F32 as Single};
    const INT8: ActivationFormat = ActivationFormat::INT8;
    let mut b = Build::new("head_linear");
    let weights = (0..3).map(|_| b.weight(DType::F32, 4, 5)).collect::<Res<_>>()?;
    let x = b.floats(15);
    let heads = b.op(Op::HeadLinear(HeadLinear { weights }), &[x], 12, F32)?;
    let small = (5, 256);
    Ok(vec![
        heads,
        linear("linear", DType::F32, Single, small, F32)?,
        // More than 64 KiB in MAX_ROWS rows.
        linear("linear of many columns", DType::F32, Single, (1024, 256), F32)?,
        linear("linear of f16", DType::F16, Single, small, F32)?,
        linear("linear of bf16", DType::BF16, Bf16, small, ROUNDED)?,
        linear("linear of blocks", DType::Q4_K, Single, small, F32)?,
        linear("linear of blocks with zero points", DType::Q4_G32, Single, small, F32)?,
        linear("linear of bytes", DType::Q8_0, INT8, small, ROUNDED)?,
        linear("linear of blocks of bytes", DType::Q4_K, INT8, small, ROUNDED)?,
        linear_part("linear of some rows", DType::F32, Single)?,
        linear_part("linear of some rows of pairs", DType::BF16, Bf16)?,
        linear_part("linear of some rows of bytes", DType::Q4_K, INT8)?,
        feed_forward("a feed-forward", DType::F32, Single)?,
        feed_forward("a feed-forward of bytes", DType::Q8_0, INT8)?,
    ])
}

fn append(name: &'static str, dtype: DType) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let x = b.floats(10);
    let cache = b.cache("cache", 10, dtype);
    b.b.node(Op::KvAppend(KvAppend { width: 10, page_group: 1 }), &[x], &[cache], &[]);
    b.done(F32)
}

struct AttentionCase {
    name: &'static str,
    dtype: DType,
    value_in_key: bool,
    /// Whether to use a window, a cap and sinks.
    all: bool,
    tolerance: f32,
}

/// Appends keys. Separate values, if any, are already in the cache.
fn attention(c: AttentionCase) -> Res<SuiteCase> {
    let mut b = Build::new(c.name);
    let sinks = if c.all { Some(b.weight(DType::F32, 1, 4)?) } else { None };
    let (q, k) = (b.floats(4 * 6), b.floats(2 * 6));
    let keys = b.cache("keys", 2 * 6, c.dtype);
    b.b.node(Op::KvAppend(KvAppend { width: 12, page_group: 0 }), &[k], &[keys], &[]);
    let mut caches = vec![keys];
    if !c.value_in_key {
        caches.push(b.cache("values", 2 * 5, c.dtype));
    }
    let activations =
        if c.dtype == DType::BF16 { ActivationFormat::Bf16 } else { ActivationFormat::F32 };
    let op = Attention {
        heads: 4,
        kv_heads: 2,
        k_dim: 6,
        v_dim: 5,
        scale: 0.5,
        window: c.all.then_some(3),
        softcap: c.all.then_some(9.0),
        sinks,
        value_in_key: c.value_in_key,
        page_group: 0,
        activations,
    };
    let y = b.b.attention(op, q, &caches);
    b.b.output(y);
    b.done(c.tolerance)
}

fn caches() -> Res<Vec<SuiteCase>> {
    let case = |name, dtype, tolerance| AttentionCase {
        name,
        dtype,
        value_in_key: false,
        all: false,
        tolerance,
    };
    let all = AttentionCase { all: true, ..case("attention in a window", DType::F32, F32) };
    let one =
        AttentionCase { value_in_key: true, ..case("attention of one cache", DType::F32, F32) };
    Ok(vec![
        append("kv_append", DType::F32)?,
        append("kv_append to f16", DType::F16)?,
        append("kv_append to bf16", DType::BF16)?,
        attention(case("attention", DType::F32, F32))?,
        attention(case("attention to f16", DType::F16, F32))?,
        attention(case("attention of pairs", DType::BF16, ROUNDED))?,
        attention(all)?,
        attention(one)?,
    ])
}

fn router(name: &'static str, score: Score, groups: Option<(usize, usize)>) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let x = b.floats(6);
    let op = Router { experts: 6, top_k: 2, score, normalize: true, scale: 1.0, groups };
    let (ids, weights) = b.b.router(op, x);
    b.b.output(ids);
    b.b.output(weights);
    b.done(F32)
}

/// Three experts of 32 on 64 columns.
fn weights_of_experts(b: &mut Build, dtype: DType, act: Activation) -> Res<Experts> {
    let (k, inter) = (64, 32);
    let mut list = |rows, cols, dtype| -> Res<Vec<WeightRef>> {
        (0..3).map(|_| b.weight(dtype, rows, cols)).collect()
    };
    Ok(Experts {
        gate: list(inter, k, dtype)?,
        up: list(inter, k, dtype)?,
        down: list(k, inter, dtype)?,
        gate_bias: list(1, inter, DType::F32)?,
        up_bias: vec![],
        down_bias: list(1, k, DType::F32)?,
        act,
        activations: ActivationFormat::F32,
    })
}

fn group(
    name: &'static str,
    dtype: DType,
    activations: ActivationFormat,
    act: Activation,
) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    // Inputs of two products, one behind the other, are rounded, and no share makes them small.
    let tolerance = if activations == ActivationFormat::F32 { F32 } else { 2.0 * ROUNDED };
    let experts = Experts { activations, ..weights_of_experts(&mut b, dtype, act)? };
    let x = b.floats(64);
    b.op(Op::ExpertGroup(ExpertGroup { experts, capacity: MAX_ROWS / 3 }), &[x], 64, tolerance)
}

fn experts(name: &'static str, dtype: DType, activations: ActivationFormat) -> Res<SuiteCase> {
    let mut b = Build::new(name);
    let k = 64;
    let tolerance = if activations == ActivationFormat::F32 { F32 } else { ROUNDED };
    let weights = weights_of_experts(&mut b, dtype, Activation::Silu)?;
    let op = Experts { activations, ..weights };
    let (x, ids) = (b.floats(k), b.b.input("ids", 2, DType::I32));
    let shares = b.floats(2);
    b.op(Op::Experts(op), &[x, ids, shares], k, tolerance)
}

fn mixtures() -> Res<Vec<SuiteCase>> {
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    Ok(vec![
        router("router", Score::Softmax, Some((3, 2)))?,
        router("router after the choice", Score::TopKSoftmax, None)?,
        router("router of sigmoids", Score::Sigmoid, None)?,
        router("router of mixers", Score::SparseMixer { eps: 0.1 }, None)?,
        experts("experts", DType::F32, ActivationFormat::F32)?,
        experts("experts of bytes", DType::Q8_0, ActivationFormat::INT8)?,
        experts("experts of bf16", DType::BF16, ActivationFormat::Bf16)?,
        group("expert_group", DType::F32, ActivationFormat::F32, Activation::Silu)?,
        group("expert_group of gelu", DType::Q8_0, ActivationFormat::F32, Activation::GeluTanh)?,
        group("expert_group of clamped units", DType::Q4_0, ActivationFormat::F32, clamped)?,
        group("expert_group of bf16", DType::BF16, ActivationFormat::Bf16, Activation::Silu)?,
        group("expert_group of bytes", DType::Q8_0, ActivationFormat::INT8, Activation::Silu)?,
    ])
}
