//! Command R7B and A (Cohere 2): parallel blocks, layer norms without biases, rope in windows only.

use troika_graph::{RopeStyle, Score};

use super::base::{Base, ConfigSource, Defaults, Ropes};
use super::fields::{Fields, Result, missing, unsupported};
use super::moe::experts;
use crate::spec::{Ffn, Layer, Mlp, ModelSpec, Moe, Norm, SharedExpert};

fn read<'a>(f: Fields<'a>, source: &'a ConfigSource, head_dim: Option<usize>) -> Result<Base<'a>> {
    let d = Defaults { tied: true, context: 8192, head_dim, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    b.style = RopeStyle::Interleaved;
    Ok(b)
}

/// The model of layers with the given feed-forwards; `first` of them have no window by default.
fn model(b: &Base<'_>, ffns: Vec<Ffn>, first: usize) -> Result<ModelSpec> {
    let f = b.f;
    let window = f.or("sliding_window", Some(4096), Fields::window)?;
    let every = f.count_opt("sliding_window_pattern")?.unwrap_or(4).max(1);
    let sliding = b.sliding(|i| i >= first && !(i - first + 1).is_multiple_of(every))?;
    let norm = match f.positive("rms_norm_eps")? {
        Some(_) => b.rms(),
        None => {
            let eps = f.positive("layer_norm_eps")?.unwrap_or(1e-5) as f32;
            Norm::Layer { eps, bias: false }
        }
    };
    let attn = b.biased_attn(None, false)?;
    let layer = |ffn| Layer {
        attn_pre: Some(norm),
        ffn_pre: None,
        parallel: true,
        ..b.layer(attn.clone(), ffn)
    };
    let mut layers: Vec<Layer> = ffns.into_iter().map(layer).collect();
    Ropes { global: None, local: Some(b.rope()?) }.give(&mut layers, &sliding, window);
    let mut m = b.model(layers);
    m.final_norm = norm;
    m.logit_scale = f.positive("logit_scale")?.unwrap_or(0.0625) as f32;
    Ok(m)
}

pub(super) fn cohere2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = read(f, source, None)?;
    model(&b, vec![Ffn::Dense(b.mlp()?); b.layers], 0)
}

pub(super) fn cohere2_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = read(f, source, Some(128))?;
    let names = ["moe_intermediate_size", "intermediate_size"];
    let inter = f.first(&names, Fields::size_opt)?;
    let inter = inter.ok_or_else(|| missing("intermediate_size"))?;
    let first = f.count_opt("first_k_dense_replace")?.unwrap_or(0);
    let dense = b.dense(|i| i < first)?;
    let score = match f.text("expert_selection_fn")?.unwrap_or("softmax") {
        "softmax" => Score::TopKSoftmax,
        "sigmoid" => Score::Sigmoid,
        other => {
            return Err(unsupported(format!("expert_selection_fn {other:?}"), "softmax, sigmoid"));
        }
    };
    let normalize = score == Score::Sigmoid && f.flag("norm_topk_prob")?.unwrap_or(true);
    let mut moe = Moe { score, normalize, ..experts(&b, 8, 2, inter)? };
    let shared = f.first(&["num_shared_experts", "n_shared_experts"], Fields::count_opt)?;
    let shared = inter * shared.unwrap_or(0);
    moe.shared = (shared > 0).then_some(SharedExpert { inter: shared, gated: false, bias: false });
    let average = match f.text("shared_expert_combination_strategy")?.unwrap_or("average") {
        "average" => shared > 0,
        "sum" => false,
        other => {
            let what = format!("shared_expert_combination_strategy {other:?}");
            return Err(unsupported(what, "average, sum"));
        }
    };
    let names = ["prefix_dense_intermediate_size", "intermediate_size"];
    let dense_inter = f.first(&names, Fields::size_opt)?.unwrap_or(inter);
    let of_dense = Mlp { inter: dense_inter, ..b.mlp()? };
    let ffn = |dense: &bool| if *dense { Ffn::Dense(of_dense) } else { Ffn::Moe(moe.clone()) };
    let mut m = model(&b, dense.iter().map(ffn).collect(), first)?;
    for layer in m.layers.iter_mut().filter(|layer| average && layer.moe().is_some()) {
        layer.ffn_scale = 0.5;
    }
    // With a pattern of their own that has no windows, dense layers use rope.
    if f.count_opt("prefix_dense_sliding_window_pattern")?.unwrap_or(1) == 1 {
        let rope = b.rope()?;
        let dense = m.layers.iter_mut().filter(|layer| layer.dense().is_some());
        dense.filter_map(Layer::attention_mut).for_each(|a| a.rope = Some(rope.clone()));
    }
    Ok(m)
}
