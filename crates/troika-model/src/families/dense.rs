//! Dense Llama-like decoders.

use troika_graph::{Activation, Growth, RopeStyle};

use super::base::{Base, ConfigSource, Defaults, Ropes, sandwich, windowed};
use super::fields::{Fields, Result, bad, unsupported};
use crate::spec::{Attn, Ffn, Layer, Mlp, ModelSpec, Norm, QkNorm};

pub(super) fn llama(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let bias = f.flag("attention_bias")?.unwrap_or(false);
    let mut attn = b.attn(Some(b.rope()?));
    (attn.qkv_bias, attn.o_bias) = (bias, f.flag("attention_out_bias")?.unwrap_or(bias));
    // Mistral's GGUF files use this architecture; Llama configs have no window.
    if matches!(source, ConfigSource::Gguf { .. }) {
        attn.window = f.window("sliding_window")?;
    }
    Ok(b.alike(attn, Ffn::Dense(b.biased_mlp()?)))
}

pub(super) fn internlm2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    f.refuse_flag("bias")?;
    Ok(b.alike(b.attn(Some(b.rope()?)), Ffn::Dense(b.mlp()?)))
}

pub(super) fn mistral(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 131_072, ..Defaults::default() })?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.window = f.or("sliding_window", Some(4096), Fields::window)?;
    Ok(b.alike(attn, Ffn::Dense(b.mlp()?)))
}

/// Layers that are alike but for a window: by default those from `max_window_layers` on have one.
fn qwen(b: &Base<'_>, attn: Attn) -> Result<Vec<Layer>> {
    let window = b.optional_window(Some(4096))?;
    let from = b.f.count_opt("max_window_layers")?.unwrap_or(28);
    let sliding = b.sliding(|i| window.is_some() && i >= from)?;
    let layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    Ok(windowed(vec![layer; b.layers], &sliding, window))
}

pub(super) fn qwen2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 32_768, ..Defaults::default() })?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = true;
    Ok(b.model(qwen(&b, attn)?))
}

pub(super) fn qwen3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { context: 32_768, head_dim: Some(128), ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    Ok(b.model(qwen(&b, b.normed_attn(Some(b.rope()?), true)?)?))
}

/// EXAONE 4: norms after attention and feed-forward.
pub(super) fn exaone4(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn) = exaone(f, source)?;
    let layer = b.post_norm(b.layer(attn, Ffn::Dense(b.mlp()?)));
    let mut m = b.model(vec![layer; b.layers]);
    exaone_windows(&b, &mut m)?;
    Ok(m)
}

/// What EXAONE 4 and K-EXAONE share, but for windows and ropes.
pub(super) fn exaone<'a>(f: Fields<'a>, source: &'a ConfigSource) -> Result<(Base<'a>, Attn)> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, ..Defaults::default() })?;
    let mut attn = b.attn(None);
    attn.qk_norm = Some(b.qk_norm(true));
    Ok((b, attn))
}

/// The windows and ropes of EXAONE's layers. In models with windows only layers with one use rope.
pub(super) fn exaone_windows(b: &Base<'_>, m: &mut ModelSpec) -> Result<()> {
    let window = b.f.or("sliding_window", Some(4096), Fields::window)?;
    let pattern = window_pattern(b.f, b.layers)?;
    let sliding = b.sliding(|i| window.is_some() && pattern(i))?;
    let rope = Some(b.rope()?);
    let ropes = Ropes { global: rope.clone().filter(|_| window.is_none()), local: rope };
    ropes.give(&mut m.layers, &sliding, window);
    Ok(())
}

/// `sliding_window_pattern`: a number n makes every n-th layer global; letters (`LLLG`) do the same
/// and also make the last layer global.
fn window_pattern(f: Fields<'_>, layers: usize) -> Result<Box<dyn Fn(usize) -> bool>> {
    if let Some(letters) = f.get("sliding_window_pattern").and_then(|v| v.as_str()) {
        let local: Vec<bool> = letters.chars().map(|c| c == 'L').collect();
        if local.is_empty() || letters.chars().any(|c| c != 'L' && c != 'G') {
            let value = format!("{letters:?}");
            return Err(bad("sliding_window_pattern", value, "not letters L and G"));
        }
        return Ok(Box::new(move |i| i + 1 < layers && local[i % local.len()]));
    }
    let every = f.count_opt("sliding_window_pattern")?.unwrap_or(4);
    Ok(Box::new(move |i| every > 0 && !(i + 1).is_multiple_of(every)))
}

pub(super) fn smollm3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { theta: 2e6, tied: true, context: 32_768, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let interval = f.count_opt("no_rope_layer_interval")?.unwrap_or(4).max(1);
    let with_rope: Vec<bool> = match f.per_layer("no_rope_layers", b.layers)? {
        // Despite the field's name, 1 marks layers that use rope.
        Some(list) => list
            .iter()
            .map(|v| match v.as_u64() {
                Some(n @ (0 | 1)) => Ok(n == 1),
                _ => Err(bad("no_rope_layers", v, "neither 0 nor 1")),
            })
            .collect::<Result<_, _>>()?,
        None => (0..b.layers).map(|i| !(i + 1).is_multiple_of(interval)).collect(),
    };
    let window = b.optional_window(None)?;
    let sliding = b.sliding(|i| window.is_some() && !with_rope[i])?;
    let attn = b.biased_attn(Some(b.rope()?), false)?;
    let layer = b.layer(attn, Ffn::Dense(b.biased_mlp()?));
    let mut layers = windowed(vec![layer; b.layers], &sliding, window);
    for (layer, _) in layers.iter_mut().zip(&with_rope).filter(|(_, with_rope)| !**with_rope) {
        layer.attention_mut().into_iter().for_each(|a| a.rope = None);
    }
    Ok(b.model(layers))
}

/// OLMo 2 and 3: norms after attention and feed-forward, and of whole queries and keys. OLMo 3 has
/// windows.
pub(super) fn olmo(
    f: Fields<'_>,
    source: &ConfigSource,
    theta: f64,
    windows: bool,
) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, theta, ..Defaults::default() })?;
    let window = f.or("sliding_window", Some(4096), Fields::window)?.filter(|_| windows);
    let sliding = b.sliding(|i| window.is_some() && !(i + 1).is_multiple_of(4))?;
    let attn = b.normed_attn(None, false)?;
    let layer = b.post_norm(b.layer(attn, Ffn::Dense(b.mlp()?)));
    let mut layers = vec![layer; b.layers];
    b.ropes()?.give(&mut layers, &sliding, window);
    Ok(b.model(layers))
}

/// GLM-4: norms before and after, rope of neighbours on half of a head.
pub(super) fn glm4(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (eps, head_dim, context) = (1.5625e-7, Some(128), 131_072);
    let mut b = Base::read(f, source, Defaults { eps, head_dim, context, ..Defaults::default() })?;
    (b.style, b.partial) = (RopeStyle::Interleaved, 0.5);
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = f.flag("attention_bias")?.unwrap_or(true);
    let layer = sandwich(b.rms(), b.layer(attn, Ffn::Dense(b.mlp()?)));
    Ok(b.model(vec![layer; b.layers]))
}

/// What dense and mixed ERNIE 4.5 share.
pub(super) fn ernie<'a>(
    f: Fields<'a>,
    source: &'a ConfigSource,
    head_dim: Option<usize>,
) -> Result<(Base<'a>, Attn, Mlp)> {
    let (theta, eps, context) = (5e5, 1e-5, 131_072);
    let d = Defaults { theta, eps, context, head_dim, tied: true, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    b.style = RopeStyle::Interleaved;
    let bias = f.flag("use_bias")?.unwrap_or(false);
    let attn = Attn { qkv_bias: bias, o_bias: bias, ..b.attn(Some(b.rope()?)) };
    let mlp = Mlp { bias, ..b.mlp()? };
    Ok((b, attn, mlp))
}

pub(super) fn ernie4_5(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, attn, mlp) = ernie(f, source, Some(128))?;
    Ok(b.alike(attn, Ffn::Dense(mlp)))
}

/// Hunyuan: norms of queries and keys after rope.
pub(super) fn hunyuan_v1_dense(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, ..Defaults::default() })?;
    let mut attn = b.biased_attn(Some(b.rope()?), false)?;
    attn.qk_norm = Some(QkNorm { after_rope: true, ..b.qk_norm(true) });
    Ok(b.alike(attn, Ffn::Dense(b.mlp()?)))
}

/// Ministral 3. Beyond the original context its queries grow with their positions.
pub(super) fn ministral3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (1e6, Some(128), 262_144);
    let d = Defaults { theta, eps: 1e-5, head_dim, context, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let rope = b.rope()?;
    let is_whole = rope.rotary_dim == b.head_dim;
    let mut attn = b.attn(Some(rope));
    attn.window = f.window("sliding_window")?;
    if let Some(rope) = f.object("rope_parameters")?
        && let Some(beta) = rope.number("llama_4_scaling_beta")?.filter(|beta| *beta != 0.0)
    {
        if !is_whole {
            let what = "llama_4_scaling_beta with rope on a part of a head";
            return Err(unsupported(what, "rope on whole heads"));
        }
        let original = rope.context("original_max_position_embeddings")?.unwrap_or(b.context);
        attn.growth = Some(Growth { beta: beta as f32, original });
    }
    Ok(b.alike(attn, Ffn::Dense(b.mlp()?)))
}

/// Arcee: a feed-forward without a gate.
pub(super) fn arcee(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { eps: 1e-5, act: "relu2", context: 4096, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let mlp = Mlp { gated: false, ..b.biased_mlp()? };
    Ok(b.alike(b.biased_attn(Some(b.rope()?), false)?, Ffn::Dense(mlp)))
}

/// Apertus: a feed-forward without a gate, whose activation has numbers for each layer.
pub(super) fn apertus(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let act = f.text("hidden_act")?.unwrap_or("xielu");
    if act != "xielu" {
        return Err(unsupported(format!("hidden_act {act:?}"), "xielu"));
    }
    let mut config = f.0.clone();
    config.remove("hidden_act");
    let d = Defaults { theta: 12e6, eps: 1e-5, context: 65_536, ..Defaults::default() };
    let b = Base::read(Fields(&config), source, d)?;
    let attn = b.normed_attn(Some(b.rope()?), true)?;
    let mlp = Mlp { gated: false, ..b.mlp()? };
    let mut m = b.alike(attn, Ffn::Dense(mlp));
    for name in XIELU {
        let Some(list) = f.numbers(&format!("xielu_{name}"))? else { continue };
        for (layer, value) in m.layers.iter_mut().zip(list) {
            xielu(layer, name, value)?;
        }
    }
    Ok(m)
}

/// The numbers of an xIELU, as checkpoints name them.
pub(super) const XIELU: [&str; 4] = ["alpha_p", "alpha_n", "beta", "eps"];

/// Gives a layer one of the numbers of its activation. Files have the slopes before their softplus.
pub(super) fn xielu(layer: &mut Layer, name: &str, value: f64) -> Result<()> {
    let Some(Ffn::Dense(mlp)) = &mut layer.ffn else { return Ok(()) };
    let (mut p, mut n) = match mlp.act {
        Activation::Xielu { alpha_p, alpha_n } => (alpha_p, alpha_n),
        _ => (f32::NAN, f32::NAN),
    };
    let positive = (value.max(0.0) + (-value.abs()).exp().ln_1p()) as f32;
    let expected = |known: f64| match (value - known).abs() < 1e-9 {
        true => Ok(()),
        false => Err(unsupported(format!("xIELU with {name} {value}"), known.to_string())),
    };
    match name {
        "alpha_p" => p = positive,
        "alpha_n" => n = 0.5 + positive,
        "beta" => expected(0.5)?,
        _ => expected(-1e-6)?,
    }
    mlp.act = Activation::Xielu { alpha_p: p, alpha_n: n };
    Ok(())
}

pub(super) fn seed_oss(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { head_dim: Some(128), context: 524_288, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let mut attn = b.biased_attn(Some(b.rope()?), true)?;
    attn.o_bias = f.flag("attention_out_bias")?.unwrap_or(false);
    Ok(b.alike(attn, Ffn::Dense(b.biased_mlp()?)))
}

/// The same model with layer norms.
fn layer_norms(mut m: ModelSpec, eps: Option<f64>) -> ModelSpec {
    let norm = Norm::Layer { eps: eps.unwrap_or(1e-5) as f32, bias: true };
    m.final_norm = norm;
    for layer in &mut m.layers {
        layer.attn_pre = Some(norm);
        layer.ffn_pre = layer.ffn_pre.map(|_| norm);
    }
    m
}

pub(super) fn starcoder2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (act, context) = ("gelu_pytorch_tanh", 4096);
    let b = Base::read(f, source, Defaults { act, context, tied: true, ..Defaults::default() })?;
    let bias = f.flag("use_bias")?.unwrap_or(true);
    let mut attn = Attn { qkv_bias: bias, o_bias: bias, ..b.attn(Some(b.rope()?)) };
    attn.window = f.window("sliding_window")?;
    let layer = b.layer(attn, Ffn::Dense(Mlp { gated: false, bias, ..b.mlp()? }));
    let eps = f.first(&["norm_epsilon", "layer_norm_eps"], Fields::positive)?;
    Ok(layer_norms(b.model(vec![layer; b.layers]), eps))
}

/// Nemotron: layer norms, squared relu without a gate.
pub(super) fn nemotron(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (act, context) = ("relu2", 4096);
    let mut b = Base::read(f, source, Defaults { act, context, ..Defaults::default() })?;
    b.partial = 0.5;
    let mut attn = b.biased_attn(Some(b.rope()?), false)?;
    attn.o_bias = f.flag("attention_out_bias")?.unwrap_or(attn.o_bias);
    let layer = b.layer(attn, Ffn::Dense(Mlp { gated: false, ..b.biased_mlp()? }));
    let eps = f.first(&["norm_eps", "layer_norm_eps"], Fields::positive)?;
    Ok(layer_norms(b.model(vec![layer; b.layers]), eps))
}

pub(super) fn stablelm(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let mut b = Base::read(f, source, Defaults { context: 4096, ..Defaults::default() })?;
    b.partial = 0.25;
    f.refuse_flag("qk_layernorm")?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = f.first(&["use_qkv_bias", "attention_bias"], Fields::flag)?.unwrap_or(false);
    let mut layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    layer.parallel = f.flag("use_parallel_residual")?.unwrap_or(false);
    layer.ffn_pre = layer.ffn_pre.filter(|_| !layer.parallel);
    let eps = f.positive("layer_norm_eps")?;
    Ok(layer_norms(b.model(vec![layer; b.layers]), eps))
}
