//! Gemma 4: an input of its own for each layer, late layers that use the keys and values of earlier
//! ones, wider heads where a layer sees the whole context, and experts beside the feed-forward.

use super::base::{Base, ConfigSource, sandwich};
use super::fields::{Fields, Result, bad, unsupported};
use super::gemma::{read_newer, scaled_by_width};
use super::moe::experts;
use super::rope::RopeConfig;
use crate::spec::{Ffn, Layer, Mixer, Mlp, ModelSpec, Moe, PerLayerInput, SharedExpert};

pub(super) fn gemma4(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = read_newer(f, source, 131_072)?;
    let sliding = b.sliding(|i| !(i + 1).is_multiple_of(6) && i + 1 < b.layers)?;
    let shared = f.count_opt("num_kv_shared_layers")?.unwrap_or(0);
    let width = f.count_opt("hidden_size_per_layer_input")?.unwrap_or(0);
    with_own_inputs(&b, &sliding, shared, width)
}

/// A model of layers with inputs of their own of a `width`, of which the last `shared` use the keys
/// and values of earlier ones.
pub(super) fn with_own_inputs(
    b: &Base<'_>,
    sliding: &[bool],
    shared: usize,
    width: usize,
) -> Result<ModelSpec> {
    let f = b.f;
    let window = f.or("sliding_window", Some(512), Fields::window)?;
    let ropes = [
        RopeConfig::local(f, "rope_local_base_freq", 1e4)?,
        RopeConfig::read(f, Some("full_attention"), 1e6)?,
    ];
    let Some(own) = b.layers.checked_sub(shared).filter(|own| *own > 0) else {
        let problem = format!("not less than the {} layers", b.layers);
        return Err(bad("num_kv_shared_layers", shared, problem));
    };
    let per_layer = (width > 0).then(|| PerLayerInput { width, act: b.act, norm: b.rms() });
    let mut layers = Vec::new();
    for (i, &local) in sliding.iter().enumerate() {
        let rope = &ropes[usize::from(!local)];
        let mut layer = sandwich(b.rms(), layer(b, i, local, i >= own)?);
        layer.per_layer = per_layer;
        if let Some(Mixer::Attention(attn)) = &mut layer.mixer {
            attn.rope = Some(rope.build(attn.k_dim, rope.partial(1.0)?, b.style, b.context)?);
            attn.window = window.filter(|_| local);
            if i >= own {
                let of_kind = (0..own).rev().find(|&j| sliding[j] == local);
                attn.kv_from = Some(of_kind.ok_or_else(|| {
                    let problem = format!("too many: layer {i} finds no layer of its kind");
                    bad("num_kv_shared_layers", shared, problem)
                })?);
            }
        }
        layers.push(layer);
    }
    let mut m = scaled_by_width(b, b.model(layers));
    m.final_norm = b.rms();
    m.logit_softcap = f.positive("final_logit_softcapping")?.map(|c| c as f32);
    Ok(m)
}

/// Layer `i` without its rope; `shares`: it has no keys and values of its own.
fn layer(b: &Base<'_>, i: usize, local: bool, shares: bool) -> Result<Layer> {
    let f = b.f;
    let of_layer = f.object("per_layer_config")?.map(|all| all.object(&i.to_string()));
    let of_layer = of_layer.transpose()?.flatten();
    let own = |name: &str| of_layer.map_or(Ok(None), |own| own.size_opt(name));
    let v_is_k = f.flag("attention_k_eq_v")?.unwrap_or(false) && !local;
    let head_dim = if local { None } else { f.size_opt("global_head_dim")? };
    let head_dim = own("head_dim")?.or(head_dim).unwrap_or(b.head_dim);
    let kv_heads = if v_is_k { f.size_opt("num_global_key_value_heads")? } else { None };
    let kv_heads = match f.each_layer("num_key_value_heads_per_layer", b.layers)? {
        Some(list) => list[i].as_u64().and_then(|n| usize::try_from(n).ok()),
        None => own("num_key_value_heads")?.or(kv_heads),
    };
    let kv_heads = kv_heads.unwrap_or(b.kv_heads);
    if kv_heads == 0 || !b.heads.is_multiple_of(kv_heads) {
        let problem = format!("not a divisor of num_attention_heads {}", b.heads);
        return Err(bad("num_key_value_heads", kv_heads, problem));
    }
    let listed = f.get("intermediate_size").is_some_and(serde_json::Value::is_array);
    let widths = if listed { "intermediate_size" } else { "intermediate_size_per_layer" };
    let inter = match f.each_layer(widths, b.layers)? {
        Some(list) => list[i].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
        None if shares && f.flag("use_double_wide_mlp")?.unwrap_or(false) => {
            Some(2 * f.size("intermediate_size")?)
        }
        None => Some(f.size("intermediate_size")?),
    };
    let inter = inter.ok_or_else(|| unsupported("a layer without feed-forward", "one in each"))?;
    let mut attn = b.biased_attn(None, false)?;
    (attn.kv_heads, attn.k_dim, attn.v_dim) = (kv_heads, head_dim, head_dim);
    (attn.scale, attn.v_is_k) = (1.0, v_is_k);
    (attn.qk_norm, attn.v_norm) = (Some(b.qk_norm(true)), Some(b.rms()));
    let mlp = Mlp { inter, act: b.act, gated: true, bias: false, gate_scale: 1.0, above: None };
    if !f.flag("enable_moe_block")?.unwrap_or(false) {
        return Ok(b.layer(attn, Ffn::Dense(mlp)));
    }
    let moe = Moe {
        normalize: true,
        shared: Some(SharedExpert { inter, gated: false, bias: false }),
        norms: Some(b.rms()),
        expert_scales: f.flag("expert_scales")?.unwrap_or(true),
        ..experts(b, f.count("num_experts")?, 0, f.size("moe_intermediate_size")?)?
    };
    Ok(b.layer(attn, Ffn::Moe(moe)))
}
