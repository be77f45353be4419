//! Phi-2 (parallel block), Phi-3 (packed projections) and Phi-3.5-MoE.

use troika_graph::Score;

use super::base::{Base, ConfigSource, Defaults};
use super::fields::{Fields, Result, bad};
use super::moe::experts;
use super::rope::RopeConfig;
use crate::spec::{Ffn, Mlp, ModelSpec, Norm, QkNorm};

pub(super) fn phi(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let mut b = Base::read(f, source, Defaults { act: "gelu_new", ..Defaults::default() })?;
    b.eps = f.positive("layer_norm_eps")?.unwrap_or(1e-5) as f32;
    let norm = Norm::Layer { eps: b.eps, bias: true };
    let rope = RopeConfig::read(f, None, b.theta)?;
    let rope = rope.build(b.head_dim, rope.partial(0.5)?, source.rope_style(), b.context)?;
    let mut attn = b.attn(Some(rope));
    (attn.qkv_bias, attn.o_bias) = (true, true);
    if f.flag("qk_layernorm")?.unwrap_or(false) {
        attn.qk_norm = Some(QkNorm { norm, ..b.qk_norm(true) });
    }
    let inter = f.size_opt("intermediate_size")?.unwrap_or(8192);
    let mlp = Mlp { inter, act: b.act, gated: false, bias: true, gate_scale: 1.0, above: None };
    let mut layer = b.layer(attn, Ffn::Dense(mlp));
    (layer.attn_pre, layer.ffn_pre, layer.parallel) = (Some(norm), None, true);
    let mut m = b.model(vec![layer; b.layers]);
    (m.final_norm, m.head_bias) = (norm, true);
    Ok(m)
}

pub(super) fn phi3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, context: 4096, ..Defaults::default() })?;
    let mut rope = RopeConfig::read(f, None, b.theta)?;
    rope.phi3 = true;
    let rope = rope.build(b.head_dim, rope.partial(1.0)?, source.rope_style(), b.context)?;
    let mut attn = b.attn(Some(rope));
    attn.window = f.window("sliding_window")?;
    Ok(b.alike(attn, Ffn::Dense(b.mlp()?)))
}

pub(super) fn phimoe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { theta: 1e6, eps: 1e-5, context: 131_072, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let norm = Norm::Layer { eps: b.eps, bias: true };
    let rope = RopeConfig::read(f, None, b.theta)?;
    let spec = rope.build(b.head_dim, 1.0, source.rope_style(), b.context)?;
    let mut attn = b.biased_attn(Some(rope.phimoe_mscale(spec, b.context)?), false)?;
    attn.window = f.window("sliding_window")?;
    let mut moe = experts(&b, 16, 2, f.size("intermediate_size")?)?;
    if moe.top_k != 2 {
        let problem = "not 2, which sparsemixer routing needs";
        return Err(bad("num_experts_per_tok", moe.top_k, problem));
    }
    moe.score = Score::SparseMixer { eps: f.number("router_jitter_noise")?.unwrap_or(0.01) as f32 };
    let mut layer = b.layer(attn, Ffn::Moe(moe));
    (layer.attn_pre, layer.ffn_pre) = (Some(norm), Some(norm));
    let mut m = b.model(vec![layer; b.layers]);
    m.final_norm = norm;
    m.head_bias = f.flag("lm_head_bias")?.unwrap_or(false);
    Ok(m)
}
