//! Mixture-of-experts decoders: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, gpt-oss.

use serde_json::json;
use troika_graph::{Activation, Score};

use super::base::{Base, ConfigSource, Defaults, windowed};
use super::fields::{Fields, Result, bad};
use crate::spec::{Attn, Ffn, Layer, ModelSpec, Moe, SharedExpert};

/// Experts of a width, whose number and number chosen per token have several names: these are the
/// defaults of both.
pub(super) fn experts(b: &Base<'_>, experts: usize, top_k: usize, inter: usize) -> Result<Moe> {
    let f = b.f;
    let names = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
    let n = f.first(&names, Fields::count_opt)?.unwrap_or(experts);
    let names = ["num_experts_per_tok", "moe_k", "top_k_experts"];
    let k = f.first(&names, Fields::count_opt)?.unwrap_or(top_k);
    if k == 0 || k > n {
        let name = names.into_iter().find(|name| f.get(name).is_some()).unwrap_or(names[0]);
        return Err(bad(name, k, format!("not between 1 and the {n} experts")));
    }
    Ok(Moe {
        experts: n,
        top_k: k,
        inter,
        act: b.act,
        gated: true,
        bias: false,
        router_bias: false,
        choice_bias: false,
        expert_scales: false,
        score: Score::Softmax,
        normalize: false,
        scale: 1.0,
        groups: None,
        shared: None,
        norms: None,
    })
}

pub(super) fn mixtral(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let d = Defaults { theta: 1e6, eps: 1e-5, context: 131_072, ..Defaults::default() };
    let b = Base::read(f, source, d)?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.window = f.window("sliding_window")?;
    let moe = Moe { normalize: true, ..experts(&b, 8, 2, f.size("intermediate_size")?)? };
    Ok(b.alike(attn, Ffn::Moe(moe)))
}

/// Which layers are dense: those in a list, and all except every n-th.
pub(super) fn dense_layers(b: &Base<'_>) -> Result<Vec<bool>> {
    let step = b.f.count_opt("decoder_sparse_step")?.unwrap_or(1).max(1);
    let listed = b.f.numbers("mlp_only_layers")?.unwrap_or_default();
    let dense = |i: usize| listed.contains(&(i as f64)) || !(i + 1).is_multiple_of(step);
    Ok((0..b.layers).map(dense).collect())
}

/// Layers with experts, or with a dense feed-forward where `dense` says so.
pub(super) fn layers(b: &Base<'_>, attn: &Attn, moe: &Moe, dense: Vec<bool>) -> Result<Vec<Layer>> {
    let layer = |dense| {
        let ffn = if dense { Ffn::Dense(b.mlp()?) } else { Ffn::Moe(moe.clone()) };
        Ok(b.layer(attn.clone(), ffn))
    };
    dense.into_iter().map(layer).collect()
}

pub(super) fn qwen2_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 32_768, ..Defaults::default() })?;
    let window = b.optional_window(Some(4096))?;
    let until = f.count_opt("max_window_layers")?.unwrap_or(28);
    let sliding = b.sliding(|i| window.is_some() && i.is_multiple_of(2) && i < until)?;
    let mut attn = b.attn(Some(b.rope()?));
    attn.qkv_bias = f.flag("qkv_bias")?.unwrap_or(true);
    let inter = f.size_opt("moe_intermediate_size")?.unwrap_or(1408);
    let normalize = f.flag("norm_topk_prob")?.unwrap_or(false);
    let mut moe = Moe { normalize, ..experts(&b, 60, 4, inter)? };
    let shared = f.size_opt("shared_expert_intermediate_size")?.unwrap_or(5632);
    moe.shared = Some(SharedExpert { inter: shared, gated: true, bias: false });
    let layers = layers(&b, &attn, &moe, dense_layers(&b)?)?;
    Ok(b.model(windowed(layers, &sliding, window)))
}

pub(super) fn qwen3_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 32_768, ..Defaults::default() })?;
    let mut attn = b.normed_attn(Some(b.rope()?), true)?;
    attn.window = b.optional_window(Some(4096))?;
    let inter = f.size_opt("moe_intermediate_size")?.unwrap_or(768);
    let normalize = f.flag("norm_topk_prob")?.unwrap_or(false);
    let moe = Moe { normalize, ..experts(&b, 128, 8, inter)? };
    Ok(b.model(layers(&b, &attn, &moe, dense_layers(&b)?)?))
}

pub(super) fn olmoe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, context: 4096, ..Defaults::default() })?;
    let mut attn = b.normed_attn(Some(b.rope()?), false)?;
    attn.clip_qkv = f.positive("clip_qkv")?.map(|c| c as f32);
    let normalize = f.flag("norm_topk_prob")?.unwrap_or(false);
    let moe = Moe { normalize, ..experts(&b, 64, 8, f.size("intermediate_size")?)? };
    Ok(b.alike(attn, Ffn::Moe(moe)))
}

/// Groups of experts, of which the best are kept.
pub(super) fn groups(f: Fields<'_>, moe: &Moe) -> Result<Option<(usize, usize)>> {
    let groups = f.count("n_group")?;
    let best = f.count("topk_group")?;
    let fits = moe.experts.is_multiple_of(groups)
        && best <= groups
        && moe.top_k <= best * (moe.experts / groups)
        && !(moe.choice_bias && moe.experts == groups);
    if !fits {
        let problem = format!("not possible with {} experts and topk_group {best}", moe.experts);
        return Err(bad("n_group", groups, problem));
    }
    Ok(Some((groups, best)))
}

/// gpt-oss: sinks, biases everywhere, clamped gated activation, alternating windows.
pub(super) fn gpt_oss(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (theta, head_dim, context) = (150_000.0, Some(64), 131_072);
    let d = Defaults { theta, eps: 1e-5, head_dim, context, ..Defaults::default() };
    // Without any rope field the class defaults to yarn, not truncated in its own configs.
    let mut filled = f.0.clone();
    if f.get("rope_parameters").is_none() && f.get("rope_scaling").is_none() {
        let rope = json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096
        });
        filled.insert("rope_parameters".into(), rope);
    }
    let f = Fields(&filled);
    let b = Base::read(f, source, d)?;
    let window = f.or("sliding_window", Some(128), Fields::window)?;
    let sliding = b.sliding(|i| i.is_multiple_of(2))?;
    let mut attn = b.biased_attn(Some(b.rope()?), true)?;
    attn.sinks = true;
    let mut moe = experts(&b, 128, 4, f.size("intermediate_size")?)?;
    moe.act = Activation::ClampedSwiglu {
        alpha: f.positive("swiglu_alpha")?.unwrap_or(1.702) as f32,
        limit: f.positive("swiglu_limit")?.unwrap_or(7.0) as f32,
    };
    (moe.score, moe.bias, moe.router_bias) = (Score::TopKSoftmax, true, true);
    let layers = vec![b.layer(attn, Ffn::Moe(moe)); b.layers];
    Ok(b.model(windowed(layers, &sliding, window)))
}
