//! Hybrids of the gated delta rule and attention: Qwen3-Next, Qwen3.5, OLMo Hybrid, Kimi Linear,
//! Ling 3.

use serde_json::{Map, Value, json};
use troika_graph::{Activation, Decay};

use super::base::{Base, ConfigSource, Defaults};
use super::fields::{Fields, Result, bad, unsupported};
use super::latent::{DEEPSEEK, latent};
use super::moe::{dense_layers, experts, layers};
use super::routed::{Routing, routed};
use crate::spec::{
    Attn, DeltaRule, Ffn, HeadGate, Layer, Mixer, ModelSpec, Moe, Norm, QkNorm, SharedExpert,
};

/// The delta rule of a config: as many key and value heads as given if the config has no numbers.
fn rule(b: &Base<'_>, heads: usize, key_dim: usize) -> Result<DeltaRule> {
    let f = b.f;
    let key_heads = f.count_opt("linear_num_key_heads")?.unwrap_or(heads);
    let value_heads = f.count_opt("linear_num_value_heads")?.unwrap_or(key_heads);
    if key_heads == 0 || value_heads == 0 || !value_heads.is_multiple_of(key_heads) {
        let problem = format!("not a multiple of linear_num_key_heads {key_heads}");
        return Err(bad("linear_num_value_heads", value_heads, problem));
    }
    let key_dim = f.size_opt("linear_key_head_dim")?.unwrap_or(key_dim);
    let taps = f.count_opt("linear_conv_kernel_dim")?.unwrap_or(4);
    if taps < 2 {
        return Err(bad("linear_conv_kernel_dim", taps, "a convolution of less than 2 positions"));
    }
    let gguf = matches!(b.source, ConfigSource::Gguf { .. });
    Ok(DeltaRule {
        key_heads,
        value_heads,
        key_dim,
        value_dim: f.size_opt("linear_value_head_dim")?.unwrap_or(key_dim),
        taps,
        by_channel: false,
        decay_rank: None,
        gate_rank: None,
        gate: Activation::Silu,
        norm: b.rms(),
        decay: Decay::Softplus,
        beta_scale: 1.0,
        rates_are_logs: !gguf,
        tiled: false,
    })
}

/// The delta rule where `layer_types`, or every n-th layer, says so.
fn mixed(b: &Base<'_>, delta: DeltaRule, mut layers: Vec<Layer>) -> Result<Vec<Layer>> {
    let every = b.f.count_opt("full_attention_interval")?.unwrap_or(4).max(1);
    let linear = b.linear(|i| !(i + 1).is_multiple_of(every))?;
    for layer in layers.iter_mut().zip(linear).filter_map(|(l, linear)| linear.then_some(l)) {
        layer.mixer = Some(Mixer::DeltaRule(delta));
    }
    Ok(layers)
}

/// What the models of Qwen share: gated attention, and norms that are stored less one.
fn qwen<'a>(f: Fields<'a>, source: &'a ConfigSource) -> Result<(Base<'a>, Attn, Norm)> {
    let (theta, head_dim, context) = (1e7, Some(256), 262_144);
    let d = Defaults { theta, head_dim, context, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    b.partial = 0.25;
    f.refuse_flag("attention_bias")?;
    let norm = Norm::Rms { eps: b.eps, offset: source.gemma_offset() };
    let mut attn = b.attn(Some(b.rope()?));
    attn.qk_norm = Some(QkNorm { norm, per_head: true, after_rope: false });
    let gate = HeadGate { act: Activation::Sigmoid, per_head: false, with_queries: true };
    attn.gate = f.flag("attn_output_gate")?.unwrap_or(true).then_some(gate);
    Ok((b, attn, norm))
}

fn qwen_model(b: &Base<'_>, norm: Norm, mut layers: Vec<Layer>, tiled: bool) -> Result<ModelSpec> {
    for layer in &mut layers {
        (layer.attn_pre, layer.ffn_pre) = (Some(norm), Some(norm));
    }
    let tiled = tiled && matches!(b.source, ConfigSource::Gguf { .. });
    let delta = DeltaRule { tiled, ..rule(b, 16, 128)? };
    let mut m = b.model(mixed(b, delta, layers)?);
    m.final_norm = norm;
    Ok(m)
}

pub(super) fn qwen3_5(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn, norm) = qwen(f, source)?;
    let layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    qwen_model(&b, norm, vec![layer; b.layers], true)
}

pub(super) fn qwen_experts(f: Fields<'_>, source: &ConfigSource, tiled: bool) -> Result<ModelSpec> {
    let (b, attn, norm) = qwen(f, source)?;
    let inter = f.size_opt("moe_intermediate_size")?.unwrap_or(512);
    let normalize = f.flag("norm_topk_prob")?.unwrap_or(true);
    let mut moe = Moe { normalize, ..experts(&b, 512, 10, inter)? };
    let shared = f.size_opt("shared_expert_intermediate_size")?.unwrap_or(512);
    moe.shared = Some(SharedExpert { inter: shared, gated: true, bias: false });
    let layers = layers(&b, &attn, &moe, dense_layers(&b)?)?;
    qwen_model(&b, norm, layers, tiled)
}

/// OLMo Hybrid: norms before the delta rule, but after attention; shares up to two.
pub(super) fn olmo_hybrid(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 65_536, ..Defaults::default() })?;
    let ropes = f.object("rope_parameters")?.unwrap_or(f);
    let rope = ropes.number("rope_theta")?.map(|_| b.rope()).transpose()?;
    let attn = b.normed_attn(rope, false)?;
    let mut delta = rule(&b, b.heads, b.hidden * 3 / 4 / b.heads)?;
    delta.value_dim = f.size_opt("linear_value_head_dim")?.unwrap_or(2 * delta.key_dim);
    delta.norm = Norm::Rms { eps: 1e-5, offset: 0.0 };
    if f.flag("linear_allow_neg_eigval")?.unwrap_or(true) {
        delta.beta_scale = 2.0;
    }
    let layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    let mut layers = mixed(&b, delta, vec![layer; b.layers])?;
    for layer in layers.iter_mut().filter(|layer| layer.attention().is_some()) {
        *layer = b.post_norm(layer.clone());
    }
    Ok(b.model(layers))
}

/// Names in configs of Kimi Linear and Ling 3, and those that other families have for the same.
const RENAMED: [(&str, &str); 8] = [
    ("model_max_length", "max_position_embeddings"),
    ("num_expert_group", "n_group"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("moe_renormalize", "norm_topk_prob"),
    ("linear_head_dim", "linear_key_head_dim"),
    ("linear_num_heads", "linear_num_key_heads"),
    ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    ("layer_group_size", "full_attention_interval"),
];

/// A config with the usual names; the published ones have some fields in `linear_attn_config`, with
/// layers that are counted from one.
fn renamed(f: Fields<'_>) -> Result<Map<String, Value>> {
    let mut c = f.0.clone();
    if let Some(inner) = f.object("linear_attn_config")? {
        for (from, to) in [
            ("head_dim", "linear_key_head_dim"),
            ("num_heads", "linear_num_key_heads"),
            ("short_conv_kernel_size", "linear_conv_kernel_dim"),
        ] {
            inner.get(from).map(|v| c.entry(to).or_insert(v.clone()));
        }
        if let (None, Some(full)) = (f.get("layer_types"), inner.numbers("full_attn_layers")?) {
            let layers = f.count("num_hidden_layers")?;
            let kind = |i| if full.contains(&(i as f64)) { "full" } else { "linear" };
            let kinds = (1..=layers).map(|i| json!(format!("{}_attention", kind(i))));
            c.insert("layer_types".into(), kinds.collect());
        }
    }
    for (from, to) in RENAMED {
        f.get(from).map(|v| c.entry(to).or_insert(v.clone()));
    }
    for kind in c.get_mut("layer_types").and_then(Value::as_array_mut).into_iter().flatten() {
        if kind == "kda_attention" {
            *kind = json!("linear_attention");
        }
    }
    Ok(c)
}

/// The delta rule by channel, and latent attention.
fn by_channel(b: &Base<'_>, attn: &Attn, delta: DeltaRule, r: Routing) -> Result<Vec<Layer>> {
    let first = b.f.count_opt("first_k_dense_replace")?.unwrap_or(r.dense);
    let layers = layers(b, attn, &routed(b, r)?, b.dense(|i| i < first)?)?;
    let gate = Activation::Sigmoid;
    mixed(b, DeltaRule { by_channel: true, gate, ..delta }, layers)
}

/// Kimi Linear: its latent attention has no positions.
pub(super) fn kimi_linear(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let c = renamed(f)?;
    let f = Fields(&c);
    let d = Defaults { eps: 1e-5, context: 1 << 20, ..Defaults::default() };
    let (b, mut attn) = latent(f, source, d, &DEEPSEEK)?;
    attn.rope = None;
    if f.text("moe_router_activation_func")?.is_some_and(|name| name != "sigmoid") {
        return Err(unsupported("moe_router_activation_func other than sigmoid", "sigmoid"));
    }
    let mut delta = rule(&b, b.heads, 128)?;
    (delta.decay_rank, delta.gate_rank) = (Some(delta.value_dim), Some(delta.value_dim));
    let routing = Routing { inter: 1024, scale: 2.446, ..Routing::of(256) };
    Ok(b.model(by_channel(&b, &attn, delta, routing)?))
}

/// Ling 3: decays are bounded, and heads of latent attention have gates.
pub(super) fn bailing_hybrid(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let c = renamed(f)?;
    let f = Fields(&c);
    let (b, mut attn) = latent(f, source, Defaults::default(), &DEEPSEEK)?;
    if f.get("kda_lower_bound").is_none() || f.flag("kda_safe_gate")? == Some(false) {
        let only = "the gated delta rule with kda_safe_gate and kda_lower_bound";
        return Err(unsupported("a bailing_hybrid of another linear attention", only));
    }
    attn.gate = Some(HeadGate { act: Activation::Sigmoid, per_head: true, with_queries: false });
    let mut delta = rule(&b, b.heads, 128)?;
    let least = f.number("kda_lower_bound")?.unwrap_or(-5.0) as f32;
    if least >= 0.0 {
        return Err(bad("kda_lower_bound", least, "not below 0"));
    }
    delta.decay = Decay::Bounded { least };
    let routing = Routing { inter: 1024, scale: 2.5, ..Routing::of(256) };
    Ok(b.model(by_channel(&b, &attn, delta, routing)?))
}
