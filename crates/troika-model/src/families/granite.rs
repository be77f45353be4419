//! Granite: multipliers of embeddings, attention, residuals and logits.

use troika_graph::Score;

use super::base::{Base, ConfigSource, Defaults, windowed};
use super::fields::{Fields, Result};
use super::moe::experts;
use super::rope::RopeConfig;
use crate::spec::{Attn, Ffn, Layer, ModelSpec, Moe};

fn multiplier(f: Fields<'_>, names: &[&str]) -> Result<f32> {
    Ok(f.first(names, Fields::positive)?.unwrap_or(1.0) as f32)
}

pub(super) fn attn(b: &Base<'_>) -> Result<Attn> {
    let scale = multiplier(b.f, &["attention_multiplier"])?;
    Ok(Attn { scale, ..b.biased_attn(Some(b.rope()?), false)? })
}

pub(super) fn model(b: &Base<'_>, mut layers: Vec<Layer>) -> Result<ModelSpec> {
    let residual = multiplier(b.f, &["residual_multiplier"])?;
    for layer in &mut layers {
        (layer.mixer_scale, layer.ffn_scale) = (residual, residual);
    }
    let mut m = b.model(layers);
    m.embed_scale = multiplier(b.f, &["embedding_multiplier"])?;
    m.logit_scale = 1.0 / multiplier(b.f, &["logits_scaling", "logit_scale"])?;
    Ok(m)
}

pub(super) fn granite(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let layer = b.layer(attn(&b)?, Ffn::Dense(b.biased_mlp()?));
    model(&b, vec![layer; b.layers])
}

pub(super) fn granitemoe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let moe = experts(&b, 8, 2, f.size("intermediate_size")?)?;
    let layer = b.layer(attn(&b)?, Ffn::Moe(Moe { score: Score::TopKSoftmax, ..moe }));
    model(&b, vec![layer; b.layers])
}

/// Granite with windows and sinks.
pub(super) fn granite_swa(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { eps: 1e-5, tied: true, context: 8192, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let window = f.or("sliding_window", Some(128), Fields::window)?;
    let sliding = b.sliding(|i| !i.is_multiple_of(4))?;
    let layer = b.layer(Attn { sinks: true, ..attn(&b)? }, Ffn::Dense(b.biased_mlp()?));
    let mut layers = windowed(vec![layer; b.layers], &sliding, window);
    // A base of each layer; none for those that use no positions.
    let bases = f.per_layer("layer_rope_theta", b.layers)?.unwrap_or_default();
    let mut config = RopeConfig::read(f, None, b.theta)?;
    for (layer, base) in layers.iter_mut().zip(bases) {
        config.theta = base.as_f64().unwrap_or(0.0);
        let rope = (config.theta > 0.0).then(|| b.rope_of(&config)).transpose()?;
        layer.attention_mut().into_iter().for_each(|a| a.rope = rope.clone());
    }
    model(&b, layers)
}
