//! Cases for every op, and for ops that devices fuse.

use troika_device::DeviceError;
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Decay, DecayingSum, DeltaRule, ExpertGroup,
    Experts, HeadLinear, Mamba2, Op, ProductForm, Rescale, RopeStyle, Router, ScaleOrigin, Score,
    ShortConv, WeightDecl, WeightSlice, form_products,
};

use crate::build::{Build, DeviceCase, MAX_ROWS, Result, plain_attention, plain_router};

/// Tolerance of f32 products, for another order of summation.
const F32: f32 = 2e-5;
/// Tolerance for a number of eight or sixteen bits that rounds differently.
const ROUNDED: f32 = 1e-2;

const INT8: ActivationFormat = ActivationFormat::INT8;

/// A case in f32.
fn case(name: &str) -> Build {
    Build::new(name, MAX_ROWS, F32)
}

/// A case of products.
fn of(name: &str, dtype: DType, activations: ActivationFormat) -> Build {
    let tolerance = if activations == ActivationFormat::F32 { F32 } else { ROUNDED };
    Build::new(name, MAX_ROWS, tolerance).of(dtype, activations)
}

/// At least one case for each op, and some with several ops.
///
/// # Errors
/// There is not enough memory.
pub fn op_cases() -> Result<Vec<DeviceCase>, DeviceError> {
    let mut all = elements()?;
    all.extend(products()?);
    let clipped = |dtype, cols| case("outliers").outliers(dtype, ScaleOrigin::Clipped, cols);
    for dtype in [DType::F32, DType::BF16, DType::Q8_0, DType::Q4_0] {
        all.push(clipped(dtype, 64)?);
    }
    all.push(clipped(DType::F32, 53)?);
    let many = case("outliers of many columns");
    all.push(many.outliers(DType::Q4_K, ScaleOrigin::SmoothedClipped, 1280)?);
    all.extend(caches()?);
    all.extend(mixtures()?);
    Ok(all)
}

fn elements() -> Result<Vec<DeviceCase>> {
    let largest = Rescale::Largest { deviations: 0.7 };
    let xielu = Activation::Xielu { alpha_p: 0.7, alpha_n: 0.9 };
    let plain = |name, op, inputs: &[usize], cols| case(name).plain(op, inputs, cols);
    let clamped = Activation::ClampedSwiglu { alpha: 1.7, limit: 0.5 };
    Ok(vec![
        case("embed").embed(DType::Q8_0, 64)?,
        case("rms_norm").rms_norm(3, 6)?,
        norm_of_groups()?,
        case("layer_norm").layer_norm(DType::F16, 6)?,
        plain("sigmoid_gate", Op::SigmoidGate, &[6, 1], 6)?,
        rescale_columns()?,
        plain("rescale to match", Op::Rescale(Rescale::Match { least: 0.1 }), &[37, 37], 37)?,
        plain("rescale the largest", Op::Rescale(largest), &[37], 37)?,
        plain("mix", Op::Mix { streams: 3 }, &[21, 6], 14)?,
        plain("slice_cols", Op::SliceCols { group: 6, start: 1, len: 4 }, &[12], 8)?,
        plain("concat_cols", Op::ConcatCols { groups: 2 }, &[4, 6], 10)?,
        plain("activate", Op::Activate(Activation::GeluTanh), &[6], 6)?,
        plain("activate with silu", Op::Activate(Activation::Silu), &[6], 6)?,
        plain("activate with gelu", Op::Activate(Activation::Gelu), &[6], 6)?,
        plain("activate with relu", Op::Activate(Activation::Relu), &[6], 6)?,
        plain("activate with relu squared", Op::Activate(Activation::ReluSquared), &[6], 6)?,
        plain("activate with xielu", Op::Activate(xielu), &[6], 6)?,
        plain("gate with a sigmoid", Op::Gate(Activation::Sigmoid), &[6, 6], 6)?,
        plain("gate with softplus", Op::Gate(Activation::Softplus), &[6, 6], 6)?,
        plain("gate", Op::Gate(Activation::Silu), &[6, 6], 6)?,
        plain("gate that is clamped", Op::Gate(clamped), &[6, 6], 6)?,
        plain("add", Op::Add, &[6, 6], 6)?,
        plain("scale", Op::Scale { factor: 0.5 }, &[6], 6)?,
        plain("clamp", Op::Clamp { limit: 0.25 }, &[6], 6)?,
        plain("soft_cap", Op::SoftCap { cap: 0.5 }, &[6], 6)?,
        convert("convert", DType::BF16)?,
        convert("convert to f16", DType::F16)?,
        case("rope").rope(RopeStyle::Half, false)?,
        case("rope of neighbours").rope(RopeStyle::Interleaved, false)?,
        case("rope of long sequences").rope(RopeStyle::Half, true)?,
    ])
}

fn rescale_columns() -> Result<DeviceCase> {
    let mut b = case("rescale");
    let weight = b.weight(DType::F32, 1, 37)?;
    let x = b.floats(37);
    b.op(Op::Rescale(Rescale::Columns(weight)), &[x], 37)
}

/// Converts from another type, and to it and back.
fn convert(name: &str, dtype: DType) -> Result<DeviceCase> {
    let mut b = Build::new(name, MAX_ROWS, 0.0);
    let (x, h) = (b.floats(37), b.b.input("h", 37, dtype));
    let h = b.b.convert("wide", h, DType::F32);
    let sum = b.b.op("sum", Op::Add, &[x, h], 37);
    let y = b.b.convert("narrow", sum, dtype);
    let back = b.b.convert("rounded", y, DType::F32);
    b.done(&[y, back])
}

/// Five of forty columns of a product: a slice of its weight and one of its bias.
fn linear_part(name: &str, dtype: DType, activations: ActivationFormat) -> Result<DeviceCase> {
    let mut b = of(name, dtype, activations);
    let rows = b.stored(dtype, 40, 256)?;
    let slice = Some(WeightSlice::Rows { first: 16, of: 40 });
    let weight = b.b.weight(WeightDecl { rows: 5, slice, ..rows });
    let cols = b.stored(DType::F32, 1, 40)?;
    let slice = Some(WeightSlice::Cols { first: 16, of: 40 });
    let bias = Some(b.b.weight(WeightDecl { cols: 5, slice, ..cols }));
    let x = b.floats(256);
    b.op(Op::Linear { weight, bias, activations, form: None }, &[x], 5)
}

fn products() -> Result<Vec<DeviceCase>> {
    use ActivationFormat::{Bf16, F32 as Single};
    use ProductForm::{Exchanged, Groups};
    let mut b = case("head_linear");
    let weights = (0..3).map(|_| b.weight(DType::F32, 4, 5)).collect::<Result<_>>()?;
    let x = b.floats(15);
    let heads = b.op(Op::HeadLinear(HeadLinear { weights }), &[x], 12)?;
    let linear = |name, dtype, activations| of(name, dtype, activations).linear(5, 256);
    let formed = |how: &str, form, dtype, activations| -> Result<DeviceCase> {
        let case = of(&format!("{how} with {form}"), dtype, activations).linear(5, 256)?;
        Ok(DeviceCase { graph: form_products(&case.graph, |_| Some(form)), ..case })
    };
    let feed_forward =
        |name, dtype, activations| of(name, dtype, activations).feed_forward(64, 96, false);
    Ok(vec![
        heads,
        linear("linear", DType::F32, Single)?,
        // More than 64 KiB in MAX_ROWS rows.
        case("linear of many columns").linear(1024, 256)?,
        linear("linear of f16", DType::F16, Single)?,
        linear("linear of bf16", DType::BF16, Bf16)?,
        linear("linear of blocks", DType::Q4_K, Single)?,
        linear("linear of blocks with zero points", DType::Q4_G32, Single)?,
        linear("linear of bytes", DType::Q8_0, INT8)?,
        linear("linear of blocks of bytes", DType::Q4_K, INT8)?,
        formed("linear", Exchanged, DType::F32, Single)?,
        formed("linear of blocks", Exchanged, DType::Q4_K, Single)?,
        formed("linear of bytes", Exchanged, DType::Q8_0, INT8)?,
        formed("linear", Groups(4), DType::F32, Single)?,
        formed("linear of blocks", Groups(4), DType::Q4_K, Single)?,
        formed("linear of bytes", Groups(4), DType::Q8_0, INT8)?,
        linear_part("linear of some rows", DType::F32, Single)?,
        linear_part("linear of some rows of pairs", DType::BF16, Bf16)?,
        linear_part("linear of some rows of bytes", DType::Q4_K, INT8)?,
        feed_forward("a feed-forward", DType::F32, Single)?,
        feed_forward("a feed-forward of bytes", DType::Q8_0, INT8)?,
    ])
}

fn append(name: &str, dtype: DType) -> Result<DeviceCase> {
    let mut b = case(name);
    let x = b.floats(10);
    b.append(x, 10, dtype, 1);
    b.done(&[])
}

fn decaying_sum() -> Result<DeviceCase> {
    let mut b = case("decaying_sum");
    let x = b.floats(10);
    let op = Op::DecayingSum(DecayingSum { width: 10, decay: 0.75, page_group: 3 });
    b.stateful(op, &[x], 10, 10)
}

fn short_conv(name: &str, gated: bool) -> Result<DeviceCase> {
    let mut b = case(name);
    let (width, taps) = (21, 4);
    let weight = b.weight(DType::F32, width, taps)?;
    let bias = if gated { None } else { Some(b.weight(DType::F32, 1, width)?) };
    let op = ShortConv { weight, bias, width, taps, silu: !gated, gated, page_group: 3 };
    let x = b.floats(if gated { 3 * width } else { width });
    b.stateful(Op::ShortConv(op), &[x], (taps - 1) * width, width)
}

fn mamba2(name: &str, state_size: usize) -> Result<DeviceCase> {
    let mut b = case(name);
    let (heads, head_dim, groups) = (6, 5, 2);
    let mut of_heads = || b.weight(DType::F32, 1, heads);
    let (a, d, dt_bias) = (of_heads()?, of_heads()?, of_heads()?);
    let op = Mamba2 {
        heads,
        head_dim,
        groups,
        state_size,
        a,
        a_log: true,
        d,
        dt_bias,
        dt_min: 0.0,
        dt_max: 2.0,
        page_group: 3,
    };
    let inner = heads * head_dim;
    let x = b.floats(inner + 2 * groups * state_size);
    let dt = b.b.input("dt", heads, DType::F32);
    b.stateful(Op::Mamba2(op), &[x, dt], inner * state_size, inner)
}

fn norm_of_groups() -> Result<DeviceCase> {
    let mut b = case("rms_norm of groups");
    let weight = Some(b.weight(DType::F32, 1, 12)?);
    b.plain(Op::RmsNorm { weight, eps: 1e-5, offset: 0.0, group: 4 }, &[12], 12)
}

/// Four heads of values over two of keys.
fn delta_rule(name: &str, decay: Decay, key_dim: usize) -> Result<DeviceCase> {
    let (mut b, by_channel) = (case(name), decay != Decay::Softplus);
    let (key_heads, value_heads, value_dim) = (2, 4, 21);
    let op = DeltaRule {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        tiled: by_channel,
        rates: b.weight(DType::F32, 1, value_heads)?,
        rates_are_logs: true,
        decay,
        by_channel,
        beta_scale: 2.0,
        page_group: 3,
    };
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let decays = if by_channel { value_heads * key_dim } else { value_heads };
    let x = [values, keys, keys, decays, value_heads].map(|cols| b.floats(cols));
    b.stateful(Op::DeltaRule(op), &x, key_dim * values, values)
}

/// Cases of ops that have states.
pub(crate) fn caches() -> Result<Vec<DeviceCase>> {
    let of = || plain_attention(6, 5);
    let pairs = Attention { activations: ActivationFormat::Bf16, ..of() };
    let one = Attention { value_in_key: true, ..of() };
    let mut window = case("attention in a window");
    let sinks = Some(window.weight(DType::F32, 1, 6)?);
    let all = Attention { window: Some(9), softcap: Some(5.0), sinks, ..of() };
    let rounded = Build::new("attention of pairs", MAX_ROWS, ROUNDED);
    Ok(vec![
        decaying_sum()?,
        short_conv("short_conv", false)?,
        short_conv("short_conv with gates", true)?,
        mamba2("mamba2", 7)?,
        mamba2("mamba2 with large states", 70)?,
        delta_rule("delta_rule", Decay::Softplus, 6)?,
        delta_rule("delta_rule of large keys", Decay::Softplus, 70)?,
        delta_rule("delta_rule by channel", Decay::Bounded { least: -5.0 }, 6)?,
        append("kv_append", DType::F32)?,
        append("kv_append to f16", DType::F16)?,
        append("kv_append to bf16", DType::BF16)?,
        case("attention").attention(of(), DType::F32, false)?,
        case("attention to f16").attention(of(), DType::F16, false)?,
        rounded.attention(pairs, DType::BF16, false)?,
        window.attention(all, DType::F32, false)?,
        case("attention of one cache").attention(one, DType::F32, false)?,
    ])
}

fn router(
    name: &str,
    score: Score,
    groups: Option<(usize, usize)>,
    biased: bool,
) -> Result<DeviceCase> {
    let mut b = case(name);
    let x = b.floats(6);
    let bias = biased.then(|| b.weight(DType::F32, 1, 6)).transpose()?;
    let expert_scales = groups.is_none().then(|| b.weight(DType::F32, 1, 6)).transpose()?;
    let op = Router { score, groups, bias, expert_scales, ..plain_router(6) };
    let (ids, weights) = b.b.router(op, x);
    b.done(&[ids, weights])
}

/// Three experts of 32 on 64 columns, with biases.
fn three(b: &mut Build, act: Activation) -> Result<Experts> {
    let mut biases =
        |cols| (0..3).map(|_| b.weight(DType::F32, 1, cols)).collect::<Result<Vec<_>>>();
    let (gate_bias, down_bias) = (biases(32)?, biases(64)?);
    Ok(Experts { gate_bias, down_bias, act, ..b.experts(3, 64, 32)? })
}

fn group(mut b: Build, act: Activation) -> Result<DeviceCase> {
    let (experts, x) = (three(&mut b, act)?, b.floats(64));
    b.op(Op::ExpertGroup(ExpertGroup { experts, capacity: MAX_ROWS / 3 }), &[x], 64)
}

fn experts(mut b: Build) -> Result<DeviceCase> {
    let op = Op::Experts(three(&mut b, Activation::Silu)?);
    let (x, ids, shares) = (b.floats(64), b.b.input("ids", 2, DType::I32), b.floats(2));
    b.op(op, &[x, ids, shares], 64)
}

fn mixtures() -> Result<Vec<DeviceCase>> {
    use ActivationFormat::{Bf16, F32 as Single};
    let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    // Inputs of two products, one behind the other, are rounded, and no share makes them small.
    let two = |name| Build::new(name, MAX_ROWS, 2.0 * ROUNDED);
    Ok(vec![
        router("router", Score::Softmax, Some((3, 2)), false)?,
        router("router after the choice", Score::TopKSoftmax, None, false)?,
        router("router of sigmoids", Score::Sigmoid, None, false)?,
        router("router with a bias", Score::Softmax, None, true)?,
        router("router with a bias, of groups", Score::Sigmoid, Some((3, 2)), true)?,
        router("router of mixers", Score::SparseMixer { eps: 0.1 }, None, false)?,
        experts(case("experts"))?,
        experts(of("experts of bytes", DType::Q8_0, INT8))?,
        experts(of("experts of bf16", DType::BF16, Bf16))?,
        group(case("expert_group"), Activation::Silu)?,
        group(of("expert_group of gelu", DType::Q8_0, Single), Activation::GeluTanh)?,
        group(of("expert_group of clamped units", DType::Q4_0, Single), clamped)?,
        group(two("expert_group of bf16").of(DType::BF16, Bf16), Activation::Silu)?,
        group(two("expert_group of bytes").of(DType::Q8_0, INT8), Activation::Silu)?,
    ])
}
