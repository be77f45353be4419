//! Latent attention: DeepSeek-V2 and V3 (R1, Kimi-K2), GLM-4.7-Flash, Youtu.

use troika_graph::RopeStyle;

use super::base::{Base, ConfigSource, Defaults};
use super::fields::{Fields, Result, unsupported};
use super::moe::{experts, groups, layers};
use super::rope::RopeConfig;
use super::routed::{Routing, routed};
use crate::spec::{Attn, Ffn, Latent, ModelSpec, Moe, Norm, SharedExpert};

/// Sizes that a family's configs may omit.
pub(super) struct Sizes {
    nope: usize,
    rope: usize,
    value: usize,
    /// Of queries.
    rank: usize,
}

pub(super) const DEEPSEEK: Sizes = Sizes { nope: 128, rope: 64, value: 128, rank: 1536 };

/// The config's fields, and its latent attention.
pub(super) fn latent<'a>(
    f: Fields<'a>,
    source: &'a ConfigSource,
    d: Defaults,
    sizes: &Sizes,
) -> Result<(Base<'a>, Attn)> {
    let nope = f.size_opt("qk_nope_head_dim")?.unwrap_or(sizes.nope);
    let rope_dim = f.size_opt("qk_rope_head_dim")?.unwrap_or(sizes.rope);
    let head_dim = Some(nope + rope_dim);
    let mut b = Base::read(f, source, Defaults { head_dim, ..d })?;
    (b.head_dim, b.kv_heads) = (nope + rope_dim, b.heads);
    let bias = f.flag("attention_bias")?.unwrap_or(false);
    let config = RopeConfig::read(f, None, b.theta)?;
    // Rope pairs adjacent elements in both file formats; only part of a head is rotated.
    let neighbours = f.flag("rope_interleave")?.unwrap_or(true);
    let style = if neighbours { RopeStyle::Interleaved } else { RopeStyle::Half };
    let rope = config.build(rope_dim, 1.0, style, b.context)?;
    let mut attn = b.attn(Some(rope));
    attn.scale *= config.yarn_scale(b.context)? as f32;
    attn.v_dim = f.size_opt("v_head_dim")?.unwrap_or(sizes.value);
    let q_rank = f.or("q_lora_rank", Some(sizes.rank), Fields::size_opt)?;
    // In the library, the compressed norms have their own default epsilon.
    let norm = Norm::Rms { eps: 1e-6, offset: 0.0 };
    let kv_rank = f.size_opt("kv_lora_rank")?.unwrap_or(512);
    attn.latent = Some(Latent { q_rank, kv_rank, nope, rope: rope_dim, norm, bias });
    attn.o_bias = bias;
    Ok((b, attn))
}

/// DeepSeek-V2: dense first layers, shared experts.
pub(super) fn deepseek_v2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn) = latent(f, source, Defaults::default(), &DEEPSEEK)?;
    let mlp_bias = f.flag("mlp_bias")?.unwrap_or(false);
    let inter = f.size_opt("moe_intermediate_size")?.unwrap_or(1407);
    let mut moe = experts(&b, 64, 6, inter)?;
    moe.scale = f.number("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    moe.groups = expert_groups(f, &moe)?;
    if !matches!(f.text("scoring_func")?, None | Some("softmax")) {
        return Err(unsupported("scoring_func other than softmax", "softmax"));
    }
    let shared = f.count_opt("n_shared_experts")?.unwrap_or(2);
    let inter = inter * shared;
    moe.shared = (shared > 0).then_some(SharedExpert { inter, gated: false, bias: mlp_bias });
    let dense = f.count_opt("first_k_dense_replace")?.unwrap_or(0);
    let mut layers = layers(&b, &attn, &moe, (0..b.layers).map(|i| i < dense).collect())?;
    for layer in &mut layers {
        if let Some(Ffn::Dense(mlp)) = &mut layer.ffn {
            mlp.bias = mlp_bias;
        }
    }
    Ok(b.model(layers))
}

fn expert_groups(f: Fields<'_>, moe: &Moe) -> Result<Option<(usize, usize)>> {
    match f.text("topk_method")?.unwrap_or("greedy") {
        "greedy" => Ok(None),
        "group_limited_greedy" => groups(f, moe),
        other => {
            let what = format!("topk_method {other:?}");
            Err(unsupported(what, "greedy, group_limited_greedy"))
        }
    }
}

/// Latent attention with the routing of DeepSeek-V3.
fn third(
    f: Fields<'_>,
    source: &ConfigSource,
    sizes: &Sizes,
    routing: Routing,
) -> Result<ModelSpec> {
    let d = Defaults { context: 4096, ..Defaults::default() };
    let (b, attn) = latent(f, source, d, sizes)?;
    let first = f.count_opt("first_k_dense_replace")?.unwrap_or(routing.dense);
    let dense = b.dense(|i| i < first)?;
    let moe = routed(&b, routing)?;
    Ok(b.model(layers(&b, &attn, &moe, dense)?))
}

pub(super) fn deepseek_v3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let routing = Routing { top_k: 8, inter: 2048, scale: 2.5, dense: 3, ..Routing::of(256) };
    third(f, source, &DEEPSEEK, routing)
}

/// DeepSeek-V3.2: each query attends to the keys that an index chooses. The context ends where it
/// would begin to leave keys out; up to there it changes nothing. A longer one can be asked for.
pub(super) fn deepseek_v32(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let mut m = deepseek_v3(f, source)?;
    m.dense_context = Some(m.context);
    m.context = m.context.min(f.size_opt("index_topk")?.unwrap_or(2048));
    Ok(m)
}

pub(super) fn glm4_moe_lite(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let sizes = Sizes { nope: 192, rope: 64, value: 256, rank: 768 };
    let routing = Routing { top_k: 4, inter: 1536, scale: 1.8, ..Routing::of(64) };
    third(f, source, &sizes, routing)
}

/// Youtu: all layers are dense.
pub(super) fn youtu(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { tied: true, context: 131_072, ..Defaults::default() };
    let (b, attn) = latent(f, source, d, &DEEPSEEK)?;
    Ok(b.alike(attn, Ffn::Dense(b.mlp()?)))
}
