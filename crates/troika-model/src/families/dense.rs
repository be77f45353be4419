//! Dense Llama-like decoders: Llama, InternLM2, Mistral, Qwen2, Qwen3, EXAONE 4, SmolLM3.

use super::base::{Base, ConfigSource, Defaults};
use super::fields::{Fields, Result, bad};
use crate::spec::{Attn, Ffn, Layer, ModelSpec, QkNorm};

pub(super) fn llama(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let bias = f.flag("attention_bias")?.unwrap_or(false);
    let mut attn = b.attn(Some(b.rope()?));
    (attn.qkv_bias, attn.o_bias) = (bias, f.flag("attention_out_bias")?.unwrap_or(bias));
    // Mistral's GGUF files use this architecture; Llama configs have no window.
    if matches!(source, ConfigSource::Gguf { .. }) {
        attn.window = f.window("sliding_window")?;
    }
    let mut mlp = b.mlp()?;
    mlp.bias = f.flag("mlp_bias")?.unwrap_or(false);
    let layer = b.layer(attn, Ffn::Dense(mlp));
    Ok(b.model("llama", vec![layer; b.layers]))
}

pub(super) fn internlm2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    f.refuse_flag("bias")?;
    let layer = b.layer(b.attn(Some(b.rope()?)), Ffn::Dense(b.mlp()?));
    Ok(b.model("internlm2", vec![layer; b.layers]))
}

pub(super) fn mistral(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 131_072, ..Defaults::default() })?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.window = f.or("sliding_window", Some(4096), Fields::window)?;
    let layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    Ok(b.model("mistral", vec![layer; b.layers]))
}

/// Layers that are alike but for a window: by default those from `max_window_layers` on have one.
fn windowed(b: &Base<'_>, attn: Attn) -> Result<Vec<Layer>> {
    let window = b.optional_window(Some(4096))?;
    let from = b.f.count_opt("max_window_layers")?.unwrap_or(28);
    let sliding = b.sliding(|i| window.is_some() && i >= from)?;
    Ok(b.layer(attn, Ffn::Dense(b.mlp()?)).windowed(&sliding, window))
}

pub(super) fn qwen2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 32_768, ..Defaults::default() })?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = true;
    Ok(b.model("qwen2", windowed(&b, attn)?))
}

pub(super) fn qwen3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { context: 32_768, head_dim: Some(128), ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let mut attn = b.biased_attn(Some(b.rope()?), false)?;
    attn.qk_norm = Some(QkNorm { norm: b.rms(), per_head: true });
    Ok(b.model("qwen3", windowed(&b, attn)?))
}

/// EXAONE 4: norms after attention and feed-forward. In hybrid models only layers with a window use
/// rope.
pub(super) fn exaone4(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, ..Defaults::default() })?;
    let window = f.or("sliding_window", Some(4096), Fields::window)?;
    let pattern = window_pattern(f, b.layers)?;
    let sliding = b.sliding(|i| window.is_some() && pattern(i))?;
    let mut attn = b.attn(None);
    attn.qk_norm = Some(QkNorm { norm: b.rms(), per_head: true });
    let (rope, mlp) = (b.rope()?, b.mlp()?);
    let layers = sliding.into_iter().map(|s| {
        let mut attn = attn.clone();
        attn.window = window.filter(|_| s);
        attn.rope = (window.is_none() || s).then(|| rope.clone());
        let mut layer = b.layer(attn, Ffn::Dense(mlp));
        (layer.attn_pre, layer.ffn_pre) = (None, None);
        (layer.attn_post, layer.ffn_post) = (Some(b.rms()), Some(b.rms()));
        layer
    });
    Ok(b.model("exaone4", layers.collect()))
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
    let mut mlp = b.mlp()?;
    mlp.bias = f.flag("mlp_bias")?.unwrap_or(false);
    let layer = b.layer(b.biased_attn(Some(b.rope()?), false)?, Ffn::Dense(mlp));
    let mut layers = layer.windowed(&sliding, window);
    for (layer, _) in layers.iter_mut().zip(&with_rope).filter(|(_, with_rope)| !**with_rope) {
        layer.attention_mut().into_iter().for_each(|a| a.rope = None);
    }
    Ok(b.model("smollm3", layers))
}
