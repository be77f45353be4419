//! Gemma 1, 2 and 3: scaled embeddings, norms with an offset of one, sandwich norms, soft caps,
//! alternating windows.

use super::base::{Base, ConfigSource, Defaults, Ropes, activation, sandwich, windowed};
use super::fields::{Fields, Result};
use super::rope::RopeConfig;
use crate::spec::{Ffn, Layer, ModelSpec, Norm, QkNorm};

fn read<'a>(
    f: Fields<'a>,
    source: &'a ConfigSource,
    head_dim: usize,
    context: usize,
) -> Result<Base<'a>> {
    let (act, head_dim) = ("gelu_pytorch_tanh", Some(head_dim));
    let d = Defaults { tied: true, head_dim, act, context, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    // "gelu" in a Gemma config is a legacy spelling of the tanh form.
    if b.act == troika_graph::Activation::Gelu {
        b.act = troika_graph::Activation::GeluTanh;
    }
    Ok(b)
}

/// Gemma 2 and 3 read their activation from another field only.
pub(super) fn read_newer<'a>(
    f: Fields<'a>,
    source: &'a ConfigSource,
    context: usize,
) -> Result<Base<'a>> {
    let mut b = read(f, source, 256, context)?;
    b.act = activation(f.text("hidden_activation")?.unwrap_or("gelu_pytorch_tanh"))?;
    Ok(b)
}

fn norm(b: &Base<'_>) -> Norm {
    Norm::Rms { eps: b.eps, offset: b.source.gemma_offset() }
}

fn model(b: &Base<'_>, layers: Vec<Layer>) -> ModelSpec {
    let mut m = scaled_by_width(b, b.model(layers));
    m.final_norm = norm(b);
    m
}

/// The same with embeddings times the root of their width.
pub(super) fn scaled_by_width(b: &Base<'_>, m: ModelSpec) -> ModelSpec {
    ModelSpec { embed_scale: (b.hidden as f64).sqrt() as f32, ..m }
}

pub(super) fn gemma(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = read(f, source, 256, 8192)?;
    let attn = b.biased_attn(Some(b.rope()?), false)?;
    let mut layer = b.layer(attn, Ffn::Dense(b.mlp()?));
    (layer.attn_pre, layer.ffn_pre) = (Some(norm(&b)), Some(norm(&b)));
    Ok(model(&b, vec![layer; b.layers]))
}

pub(super) fn gemma2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = read_newer(f, source, 8192)?;
    let window = f.or("sliding_window", Some(4096), Fields::window)?;
    let sliding = b.sliding(|i| i.is_multiple_of(2))?;
    let cap = |name, default| -> Result<Option<f32>> {
        Ok(f.or(name, Some(default), Fields::positive)?.map(|c| c as f32))
    };
    let scalar = f.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    let mut attn = b.biased_attn(Some(b.rope()?), false)?;
    attn.scale = scalar.powf(-0.5) as f32;
    attn.softcap = cap("attn_logit_softcapping", 50.0)?;
    let layer = sandwich(norm(&b), b.layer(attn, Ffn::Dense(b.mlp()?)));
    let mut m = model(&b, windowed(vec![layer; b.layers], &sliding, window));
    m.logit_softcap = cap("final_logit_softcapping", 30.0)?;
    Ok(m)
}

pub(super) fn gemma3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let mut b = read_newer(f, source, 131_072)?;
    b.theta = 1e6;
    let window = f.or("sliding_window", Some(4096), Fields::window)?;
    let patterns = ["sliding_window_pattern", "_sliding_window_pattern"];
    let pattern = f.first(&patterns, Fields::count_opt)?.unwrap_or(6).max(1);
    let sliding = b.sliding(|i| !(i + 1).is_multiple_of(pattern))?;
    let global = RopeConfig::read(f, Some("full_attention"), b.theta)?;
    let local = RopeConfig::local(f, "rope_local_base_freq", 1e4)?;
    let style = source.rope_style();
    let [global, local] = [global, local].map(|r| r.build(b.head_dim, 1.0, style, b.context));
    let ropes = Ropes { global: Some(global?), local: Some(local?) };
    let mut attn = b.biased_attn(None, false)?;
    attn.scale = f.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5) as f32;
    // The library reads `attn_logit_softcapping` but does not apply it in this family.
    attn.qk_norm = Some(QkNorm { norm: norm(&b), ..b.qk_norm(true) });
    let layer = sandwich(norm(&b), b.layer(attn, Ffn::Dense(b.mlp()?)));
    let mut layers = vec![layer; b.layers];
    ropes.give(&mut layers, &sliding, window);
    let mut m = model(&b, layers);
    m.logit_softcap = f.positive("final_logit_softcapping")?.map(|c| c as f32);
    Ok(m)
}
