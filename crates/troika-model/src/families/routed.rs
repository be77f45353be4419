//! Mixtures whose routers score by sigmoids, with a bias that chooses experts but does not weigh
//! them: GLM-4.5, ERNIE 4.5, Hunyuan 3, MiniMax-M2, K-EXAONE, dots.llm1, Solar Open, Trinity, Laguna,
//! MiMo-V2; and Mellum 2, whose router is plain.

use troika_graph::{Activation, Score};

use super::base::{Base, ConfigSource, Defaults, Ropes, sandwich};
use super::dense::{ernie, exaone, exaone_windows};
use super::fields::{Fields, Result, bad, unsupported};
use super::moe::{experts, groups, layers};
use crate::spec::{Attn, Ffn, HeadGate, ModelSpec, Moe, SharedExpert};

/// A family's defaults for absent fields of its router and experts.
#[derive(Clone, Copy)]
pub(super) struct Routing {
    pub experts: usize,
    pub top_k: usize,
    /// Inner width of an expert.
    pub inter: usize,
    /// Shared experts.
    pub shared: usize,
    /// Factor of the chosen weights.
    pub scale: f64,
    pub normalize: bool,
    /// Dense layers before those with experts.
    pub dense: usize,
}

impl Routing {
    /// The most usual defaults.
    pub fn of(experts: usize) -> Routing {
        let (top_k, inter, scale) = (8, 1408, 1.0);
        Routing { experts, top_k, inter, shared: 1, scale, normalize: true, dense: 1 }
    }
}

/// The experts of a layer.
pub(super) fn routed(b: &Base<'_>, d: Routing) -> Result<Moe> {
    let f = b.f;
    let inter = f.size_opt("moe_intermediate_size")?.unwrap_or(d.inter);
    let normalize = f.flag("norm_topk_prob")?.unwrap_or(d.normalize);
    let mut moe = experts(b, d.experts, d.top_k, inter)?;
    (moe.score, moe.choice_bias, moe.normalize) = (Score::Sigmoid, true, normalize);
    let scales = [
        "routed_scaling_factor",
        "route_scale",
        "router_scaling_factor",
        "moe_routed_scaling_factor",
    ];
    moe.scale = f.first(&scales, Fields::number)?.unwrap_or(d.scale) as f32;
    if f.count_opt("n_group")?.unwrap_or(1) > 1 {
        moe.groups = groups(f, &moe)?;
    }
    let counts = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];
    let inter = inter * f.first(&counts, Fields::count_opt)?.unwrap_or(d.shared);
    moe.shared = (inter > 0).then_some(SharedExpert { inter, gated: false, bias: false });
    Ok(moe)
}

/// A model of equal attention in all layers, some of them dense.
fn model(b: &Base<'_>, attn: &Attn, d: Routing) -> Result<ModelSpec> {
    let names = ["first_k_dense_replace", "num_dense_layers"];
    let first = b.f.first(&names, Fields::count_opt)?.unwrap_or(d.dense);
    let dense = b.dense(|i| i < first)?;
    Ok(b.model(layers(b, attn, &routed(b, d)?, dense)?))
}

pub(super) fn glm4_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { eps: 1e-5, context: 131_072, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    b.partial = 0.5;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = f.flag("attention_bias")?.unwrap_or(false);
    attn.qk_norm = f.flag("use_qk_norm")?.unwrap_or(false).then(|| b.qk_norm(true));
    model(&b, &attn, Routing::of(128))
}

pub(super) fn solar_open(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (1e6, Some(128), 131_072);
    let d = Defaults { theta, eps: 1e-5, head_dim, context, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = f.flag("attention_bias")?.unwrap_or(false);
    let routing = Routing { inter: 1280, dense: 0, ..Routing::of(128) };
    model(&b, &attn, routing)
}

/// ERNIE 4.5: softmax, and a bias that chooses.
pub(super) fn ernie4_5_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn, mlp) = ernie(f, source, None)?;
    let routing = Routing { top_k: 6, inter: 1536, shared: 2, ..Routing::of(64) };
    let mut moe = Moe { score: Score::Softmax, ..routed(&b, routing)? };
    if let Some(shared) = &mut moe.shared {
        shared.bias = mlp.bias;
    }
    let first = f.count_opt("moe_layer_start_index")?.unwrap_or(1);
    let last = f.number("moe_layer_end_index")?.filter(|i| *i >= 0.0).unwrap_or(f64::MAX);
    let step = f.count_opt("moe_layer_interval")?.unwrap_or(1).max(1);
    let dense = b.dense(|i| !((i + 1).is_multiple_of(step) && i >= first && i as f64 <= last))?;
    let ffn = |dense| if dense { Ffn::Dense(mlp) } else { Ffn::Moe(moe.clone()) };
    let layers = dense.into_iter().map(|dense| b.layer(attn.clone(), ffn(dense)));
    Ok(b.model(layers.collect()))
}

pub(super) fn hy_v3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (11_158_840.0, Some(128), 131_072);
    let d = Defaults { theta, eps: 1e-5, head_dim, context, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    f.refuse_flag("mlp_bias")?;
    let attn = b.normed_attn(Some(b.rope()?), true)?;
    model(&b, &attn, Routing { inter: 1536, scale: 2.826, ..Routing::of(192) })
}

/// MiniMax-M2: norms of whole queries and keys, no shared expert.
pub(super) fn minimax_m2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (5e6, Some(128), 196_608);
    let mut b =
        Base::read(f, source, Defaults { theta, head_dim, context, ..Defaults::default() })?;
    if let Some(rotary) = f.size_opt("rotary_dim")? {
        b.partial = rotary as f64 / b.head_dim as f64;
    }
    let mut attn = b.attn(Some(b.rope()?));
    attn.qk_norm = Some(b.qk_norm(false));
    let inter = f.size("intermediate_size")?;
    model(&b, &attn, Routing { inter, shared: 0, dense: 0, ..Routing::of(256) })
}

/// K-EXAONE: rope in windows only.
pub(super) fn exaone_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn) = exaone(f, source)?;
    let routing = Routing { inter: 1024, scale: 2.5, ..Routing::of(64) };
    let mut m = model(&b, &attn, routing)?;
    exaone_windows(&b, &mut m)?;
    Ok(m)
}

pub(super) fn dots1(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let window = f.or("sliding_window", Some(4096), Fields::window)?;
    let from = f.count_opt("max_window_layers")?.unwrap_or(62);
    let sliding = b.sliding(|i| window.is_some() && i >= from)?;
    let attn = b.normed_attn(None, true)?;
    let routing = Routing { shared: 0, normalize: false, dense: 0, ..Routing::of(0) };
    let mut m = model(&b, &attn, routing)?;
    let rope = Some(b.rope()?);
    Ropes { global: rope.clone(), local: rope }.give(&mut m.layers, &sliding, window);
    Ok(m)
}

/// Trinity: norms before and after, gated heads, rope in windows only.
pub(super) fn afmoe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { eps: 1e-5, head_dim: Some(128), context: 16_384, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let window = f.or("sliding_window", Some(1024), Fields::window)?;
    let every = f.count_opt("global_attn_every_n_layers")?.unwrap_or(4).max(1);
    let sliding = b.sliding(|i| !(i + 1).is_multiple_of(every))?;
    let mut attn = b.normed_attn(None, true)?;
    attn.gate = Some(HeadGate { act: Activation::Sigmoid, per_head: false, with_queries: false });
    let mut m = model(&b, &attn, Routing { top_k: 6, shared: 2, ..Routing::of(64) })?;
    Ropes { global: None, local: Some(b.rope()?) }.give(&mut m.layers, &sliding, window);
    m.layers = m.layers.into_iter().map(|layer| sandwich(b.rms(), layer)).collect();
    if f.flag("mup_enabled")?.unwrap_or(false) {
        m.embed_scale = (b.hidden as f64).sqrt() as f32;
    }
    Ok(m)
}

pub(super) fn mellum(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (5e5, Some(128), 131_072);
    let b = Base::read(f, source, Defaults { theta, head_dim, context, ..Defaults::default() })?;
    let window = f.or("sliding_window", Some(1024), Fields::window)?;
    let sliding = b.sliding(|_| false)?;
    let attn = b.normed_attn(None, true)?;
    let routing = Routing { inter: 896, shared: 0, ..Routing::of(64) };
    let plain = Moe { score: Score::Softmax, choice_bias: false, ..routed(&b, routing)? };
    let mut m = b.model(layers(&b, &attn, &plain, b.dense(|_| false)?)?);
    b.ropes()?.give(&mut m.layers, &sliding, window);
    Ok(m)
}

/// Laguna: gated heads, whose number differs by layer.
pub(super) fn laguna(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { theta: 5e5, head_dim: Some(128), context: 131_072, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    // GGUF files do not say which layers have windows: all but every fourth.
    let gguf = matches!(source, ConfigSource::Gguf { .. });
    let window = f.or("sliding_window", (!gguf).then_some(512), Fields::window)?;
    let sliding = b.sliding(|i| gguf && window.is_some() && !i.is_multiple_of(4))?;
    f.refuse_flag("moe_apply_router_weight_on_input")?;
    if f.number("moe_router_logit_softcapping")?.unwrap_or(0.0) != 0.0 {
        return Err(unsupported("moe_router_logit_softcapping other than 0", "0"));
    }
    let per_head = match f.get("gating").map(|g| (g.as_bool(), g.as_str())) {
        None | Some((Some(true), _) | (_, Some("per-head"))) => true,
        Some((_, Some("per-element"))) => false,
        Some(_) => return Err(unsupported("this gating", "true, \"per-head\", \"per-element\"")),
    };
    let mut attn = b.normed_attn(None, true)?;
    attn.gate = Some(HeadGate { act: Activation::Softplus, per_head, with_queries: false });
    let mut m = model(&b, &attn, Routing { inter: 512, ..Routing::of(256) })?;
    b.ropes()?.give(&mut m.layers, &sliding, window);
    let shared = f.size_opt("shared_expert_intermediate_size")?.unwrap_or(512);
    let heads = f.each_layer("num_attention_heads_per_layer", b.layers)?.unwrap_or_default();
    for (i, layer) in m.layers.iter_mut().enumerate() {
        if let Some(Ffn::Moe(Moe { shared: Some(expert), .. })) = &mut layer.ffn {
            expert.inter = shared;
        }
        let (Some(heads), Some(attn)) = (heads.get(i), layer.attention_mut()) else { continue };
        let fits = |n: &u64| *n > 0 && *n < 4096 && n.is_multiple_of(attn.kv_heads as u64);
        attn.heads = heads.as_u64().filter(fits).ok_or_else(|| {
            let problem = format!("not a multiple of num_key_value_heads {}", attn.kv_heads);
            bad(&format!("num_attention_heads_per_layer of layer {i}"), heads, problem)
        })? as usize;
    }
    Ok(m)
}

/// MiMo-V2: narrower values, and in windows sinks and twice the heads of keys.
pub(super) fn mimo_v2_flash(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (head_dim, context) = (Some(192), 131_072);
    let d = Defaults { theta: 5e6, eps: 1e-5, head_dim, context, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let window = f.or("sliding_window", Some(129), Fields::window)?;
    let sliding = b.sliding(|i| i > 0 && !(i + 1).is_multiple_of(6))?;
    let mut attn = b.attn(None);
    attn.qkv_bias = f.flag("attention_bias")?.unwrap_or(false);
    attn.v_dim = f.size_opt("v_head_dim")?.unwrap_or(128);
    let routing = Routing { inter: 2048, shared: 0, ..Routing::of(256) };
    let mut m = model(&b, &attn, routing)?;
    b.ropes()?.give(&mut m.layers, &sliding, window);
    // The output projection is linear: values are scaled behind it.
    let scale = f.or("attention_value_scale", Some(0.707), Fields::positive)?.unwrap_or(1.0);
    for (layer, sliding) in m.layers.iter_mut().zip(sliding) {
        layer.mixer_scale = scale as f32;
        let Some(attn) = layer.attention_mut().filter(|_| sliding) else { continue };
        (attn.sinks, attn.kv_heads) = (true, 2 * attn.kv_heads);
    }
    if !b.heads.is_multiple_of(2 * b.kv_heads) {
        let problem = format!("half of it is not a multiple of num_key_value_heads {}", b.kv_heads);
        return Err(bad("num_attention_heads", b.heads, problem));
    }
    Ok(m)
}
