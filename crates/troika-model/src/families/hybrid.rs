//! Hybrids: attention in some layers, short convolutions or Mamba-2 in the others. LFM2, Granite 4,
//! Falcon-H1, Nemotron-H.

use serde_json::Value;
use troika_graph::{Activation, Score};

use super::base::{Base, ConfigSource, Defaults, activation, sandwich};
use super::fields::{Fields, Result, bad, missing, not_in_gguf, unsupported};
use super::granite;
use super::moe::experts;
use super::routed::{Routing, routed};
use crate::spec::{
    Attn, Ffn, GatedNorm, HeadGate, Layer, Mamba2, MambaScales, Mixer, Mlp, ModelSpec, Moe,
    SharedExpert, ShortConv,
};

/// What a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Attention,
    Window,
    Recurrence,
    Dense,
    Experts,
}

/// Names of kinds in lists of layers.
const KINDS: &[(&str, Kind)] = &[
    ("full_attention", Kind::Attention),
    ("attention", Kind::Attention),
    ("*", Kind::Attention),
    ("sliding_attention", Kind::Window),
    ("conv", Kind::Recurrence),
    ("linear_attention", Kind::Recurrence),
    ("mamba", Kind::Recurrence),
    ("M", Kind::Recurrence),
    ("mlp", Kind::Dense),
    ("-", Kind::Dense),
    ("moe", Kind::Experts),
    ("E", Kind::Experts),
];

/// The kinds of layers, from a list of which `known` may be in it.
fn kinds(b: &Base<'_>, field: &str, known: &[Kind]) -> Result<Option<Vec<Kind>>> {
    let names = KINDS.iter().copied().filter(|(_, kind)| known.contains(kind));
    b.named_kinds(field, &names.collect::<Vec<_>>())
}

/// The first of some sizes, each with its name in GGUF files.
fn size(b: &Base<'_>, names: &[&str], gguf: &str) -> Result<usize> {
    let none = || match b.source {
        ConfigSource::Gguf { .. } => not_in_gguf(gguf),
        ConfigSource::HuggingFace => missing(names[0]),
    };
    b.f.first(names, Fields::size_opt)?.ok_or_else(none)
}

/// Taps of a convolution.
fn taps(b: &Base<'_>, names: &[&str], gguf: &str) -> Result<usize> {
    match size(b, names, gguf)? {
        1 => Err(bad(names[0], 1, "not at least 2")),
        n => Ok(n),
    }
}

/// Mamba-2 without a norm of its results.
fn mamba2(b: &Base<'_>) -> Result<Mamba2> {
    let f = b.f;
    let heads = size(b, &["mamba_n_heads", "mamba_num_heads"], "ssm.time_step_rank")?;
    let inner = match f.size_opt("mamba_d_ssm")? {
        Some(inner) => inner,
        None => heads * size(b, &["mamba_d_head", "mamba_head_dim"], "ssm.inner_size")?,
    };
    let groups = f.first(&["mamba_n_groups", "n_groups"], Fields::size_opt)?.unwrap_or(1);
    if !inner.is_multiple_of(heads) || !heads.is_multiple_of(groups) {
        let problem = format!("not possible with a width of {inner} and {groups} groups");
        return Err(bad("mamba_n_heads", heads, problem));
    }
    let limits = f.get("time_step_limit").and_then(Value::as_array);
    let limit = |i: usize| limits?.get(i)?.as_f64().map(|x| x as f32);
    let (dt_min, dt_max) = (limit(0).unwrap_or(0.0), limit(1).unwrap_or(f32::MAX));
    if dt_min.is_nan() || dt_max.is_nan() || dt_min > dt_max {
        return Err(bad("time_step_limit", dt_min, format!("more than {dt_max}")));
    }
    let conv_bias = f.first(&["mamba_conv_bias", "use_conv_bias"], Fields::flag)?.unwrap_or(true);
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        groups,
        state_size: size(b, &["mamba_d_state", "ssm_state_size"], "ssm.state_size")?,
        taps: taps(b, &["mamba_d_conv", "conv_kernel"], "ssm.conv_kernel")?,
        conv_bias,
        bias: f.first(&["mamba_proj_bias", "use_bias"], Fields::flag)?.unwrap_or(false),
        a_log: matches!(b.source, ConfigSource::HuggingFace),
        dt_min,
        dt_max,
        norm: None,
        scales: MambaScales { z: 1.0, x: 1.0, b: 1.0, c: 1.0, dt: 1.0 },
        scale: 1.0,
    })
}

/// The same with a norm behind the gate, over each of some groups.
fn normed(b: &Base<'_>, groups: usize) -> Result<Mamba2> {
    let m = mamba2(b)?;
    let norm = GatedNorm { norm: b.rms(), group: m.inner() / groups.max(1), before_gate: false };
    Ok(Mamba2 { norm: Some(norm), ..m })
}

/// The fields of LFM2 and its relatives, and the kinds of their layers.
fn lfm<'a>(f: Fields<'a>, source: &'a ConfigSource) -> Result<(Base<'a>, Vec<Kind>, Layer)> {
    let d = Defaults { theta: 1e6, eps: 1e-5, tied: true, context: 128_000, ..Defaults::default() };
    let mut b = Base::read(f, source, d)?;
    b.eps = f.positive("norm_eps")?.map_or(b.eps, |eps| eps as f32);
    let kinds = match kinds(&b, "layer_types", &[Kind::Attention, Kind::Window, Kind::Recurrence])?
    {
        Some(kinds) => kinds,
        None => {
            let attends = f.numbers("full_attn_idxs")?;
            let attends = |i: usize| attends.as_ref().is_none_or(|a| a.contains(&(i as f64)));
            let kind = |i| if attends(i) { Kind::Attention } else { Kind::Recurrence };
            (0..b.layers).map(kind).collect()
        }
    };
    let bias = f.flag("conv_bias")?.unwrap_or(false);
    let conv = ShortConv { taps: taps(&b, &["conv_L_cache"], "shortconv.l_cache")?, bias };
    let layer = Layer {
        mixer: Some(Mixer::ShortConv(conv)),
        ..b.layer(lfm_attn(&b)?, Ffn::Dense(b.mlp()?))
    };
    Ok((b, kinds, layer))
}

/// Layers like one, with an attention where `kinds` say so.
fn mixed(layer: &Layer, kinds: &[Kind], attn: &Attn) -> Vec<Layer> {
    let attends = || Some(Mixer::Attention(Box::new(attn.clone())));
    let of = |kind: &Kind| match kind {
        Kind::Attention | Kind::Window => Layer { mixer: attends(), ..layer.clone() },
        _ => layer.clone(),
    };
    kinds.iter().map(of).collect()
}

fn lfm_attn(b: &Base<'_>) -> Result<Attn> {
    Ok(Attn { qk_norm: Some(b.qk_norm(true)), ..b.attn(Some(b.rope()?)) })
}

pub(super) fn lfm2(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, kinds, mut layer) = lfm(f, source)?;
    let given = f.size_opt("block_ff_dim")?;
    let adjusted = f.flag("block_auto_adjust_ff_dim")?.unwrap_or(given.is_some());
    let mut mlp = Mlp { inter: given.unwrap_or(b.mlp()?.inter), ..b.mlp()? };
    if adjusted && matches!(source, ConfigSource::HuggingFace) {
        let factor = f.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        let of = f.size_opt("block_multiple_of")?.unwrap_or(256);
        mlp.inter = ((2 * mlp.inter / 3) as f64 * factor) as usize;
        mlp.inter = mlp.inter.next_multiple_of(of);
    }
    layer.ffn = Some(Ffn::Dense(mlp));
    Ok(b.model(mixed(&layer, &kinds, &lfm_attn(&b)?)))
}

pub(super) fn lfm2_moe(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, kinds, layer) = lfm(f, source)?;
    let routing = Routing { top_k: 4, inter: 1792, shared: 0, ..Routing::of(32) };
    let choice_bias = f.flag("use_expert_bias")?.unwrap_or(true);
    let moe = Moe { choice_bias, ..routed(&b, routing)? };
    let names = ["num_dense_layers", "first_k_dense_replace"];
    let dense = f.first(&names, Fields::count_opt)?.unwrap_or(2);
    let mut layers = mixed(&layer, &kinds, &lfm_attn(&b)?);
    layers.iter_mut().skip(dense).for_each(|l| l.ffn = Some(Ffn::Moe(moe.clone())));
    Ok(b.model(layers))
}

/// LFM3: norms before and after, gated heads, windows.
pub(super) fn lfm3(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let (b, kinds, layer) = lfm(f, source)?;
    let gated = f.flag("use_attention_gate")?.unwrap_or(true);
    let gate = HeadGate { act: Activation::Sigmoid, per_head: true, with_queries: false };
    let attn = Attn { gate: gated.then_some(gate), ..lfm_attn(&b)? };
    let mut layers = mixed(&layer, &kinds, &attn);
    let sliding: Vec<bool> = kinds.iter().map(|kind| *kind == Kind::Window).collect();
    b.ropes()?.give(&mut layers, &sliding, f.window("sliding_window")?);
    if f.flag("use_sandwich_norm")?.unwrap_or(true) {
        layers = layers.into_iter().map(|layer| sandwich(b.rms(), layer)).collect();
    }
    Ok(b.model(layers))
}

/// Granite 4.
pub(super) fn granitemoehybrid(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults::default())?;
    let mut attn = granite::attn(&b)?;
    if f.text("position_embedding_type")? != Some("rope") {
        attn.rope = None;
    }
    let kinds = kinds(&b, "layer_types", &[Kind::Attention, Kind::Recurrence])?
        .unwrap_or_else(|| vec![Kind::Recurrence; b.layers]);
    let names = ["shared_intermediate_size", "shared_expert_intermediate_size"];
    let inter = f.first(&names, Fields::size_opt)?;
    let ffn = match f.first(&["num_local_experts", "num_experts"], Fields::count_opt)? {
        Some(0) | None => Ffn::Dense(Mlp { inter: inter.unwrap_or(b.mlp()?.inter), ..b.mlp()? }),
        Some(n) => {
            let moe = experts(&b, n, 2, f.size("intermediate_size")?)?;
            let shared = inter.map(|inter| SharedExpert { inter, gated: false, bias: false });
            Ffn::Moe(Moe { score: Score::TopKSoftmax, shared, ..moe })
        }
    };
    let layer = b.layer(attn.clone(), ffn);
    let scan = || Ok(Mixer::Mamba2(Box::new(normed(&b, 1)?)));
    let mixer = kinds.contains(&Kind::Recurrence).then(scan).transpose()?;
    granite::model(&b, mixed(&Layer { mixer, ..layer }, &kinds, &attn))
}

/// Falcon-H1: attention and Mamba-2 side by side in each layer.
pub(super) fn falcon_h1(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { eps: 1e-5, context: 8192, ..Defaults::default() })?;
    f.refuse_flag("projectors_bias")?;
    let times = |name: &str| Ok(f.number(name)?.unwrap_or(1.0) as f32);
    let list = |name: &str| Ok(f.numbers(name)?.unwrap_or_default());
    let of = |list: &[f64], i: usize| list.get(i).map_or(1.0, |x| *x as f32);
    let mut m = mamba2(&b)?;
    if f.flag("mamba_rms_norm")?.unwrap_or(false) {
        let before_gate = f.flag("mamba_norm_before_gate")?.unwrap_or(false);
        m.norm = Some(GatedNorm { norm: b.rms(), group: m.inner() / m.groups, before_gate });
    }
    let (input, s) = (times("ssm_in_multiplier")?, list("ssm_multipliers")?);
    let [z, x, on_b, c, dt] = [0, 1, 2, 3, 4].map(|i| input * of(&s, i));
    m.scales = MambaScales { z, x, b: on_b, c, dt };
    m.scale = times("ssm_out_multiplier")?;
    let mut attn = b.biased_attn(Some(b.rope()?), false)?;
    let input = times("attention_in_multiplier")?;
    attn.scale *= input * input * times("key_multiplier")?;
    let mlps = list("mlp_multipliers")?;
    let mlp = Mlp { gate_scale: of(&mlps, 0), ..b.biased_mlp()? };
    let layer = Layer {
        beside: Some(Box::new(m)),
        mixer_scale: input * times("attention_out_multiplier")?,
        ffn_scale: of(&mlps, 1),
        ..b.layer(attn, Ffn::Dense(mlp))
    };
    let mut model = b.model(vec![layer; b.layers]);
    model.embed_scale = times("embedding_multiplier")?;
    model.logit_scale = times("lm_head_multiplier")?;
    Ok(model)
}

/// Nemotron-H: each layer is an attention, a Mamba-2, a feed-forward or experts.
pub(super) fn nemotron_h(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    // The list of layers, as letters or names, gives their number.
    let mut filled = f.0.clone();
    if let Some(letters) = f.text("hybrid_override_pattern")? {
        let all = letters.chars().map(|c| Value::from(c.to_string())).collect();
        filled.insert("layers_block_type".into(), Value::Array(all));
    }
    if let Some(list) = filled.get("layers_block_type").and_then(Value::as_array) {
        let n = list.len();
        filled.entry("num_hidden_layers").or_insert(n.into());
    }
    let f = Fields(&filled);
    let mut b = Base::read(f, source, Defaults { eps: 1e-5, act: "relu2", ..Defaults::default() })?;
    b.eps = f.positive("layer_norm_epsilon")?.map_or(b.eps, |eps| eps as f32);
    let all = [Kind::Attention, Kind::Recurrence, Kind::Dense, Kind::Experts];
    let kinds =
        kinds(&b, "layers_block_type", &all)?.ok_or_else(|| missing("layers_block_type"))?;
    let layer = |kind: Kind| nemotron_layer(&b, kind);
    let layers = kinds.into_iter().map(layer).collect::<Result<_>>()?;
    Ok(b.model(layers))
}

fn nemotron_layer(b: &Base<'_>, kind: Kind) -> Result<Layer> {
    let f = b.f;
    let bias = f.flag("mlp_bias")?.unwrap_or(false);
    let name = f.text("mlp_hidden_act")?.unwrap_or("relu2");
    let act = activation(name)?;
    // A feed-forward that is not there.
    let none = Mlp { inter: 1, act, gated: false, bias, gate_scale: 1.0, above: None };
    let layer = b.layer(b.biased_attn(None, false)?, Ffn::Dense(none));
    let mixes = |mixer| Layer { mixer, ffn: None, ffn_pre: None, ..layer.clone() };
    let feeds = |ffn| Layer { mixer: None, attn_pre: None, ffn: Some(ffn), ..layer.clone() };
    Ok(match kind {
        Kind::Attention | Kind::Window => mixes(layer.mixer.clone()),
        Kind::Recurrence => {
            let mut m = normed(b, mamba2(b)?.groups)?;
            // The reference's plain form clamps so, its CUDA kernels and llama.cpp do not.
            if let (ConfigSource::HuggingFace, least) = (b.source, f.positive("time_step_min")?) {
                m.dt_min = (least.unwrap_or(1e-3) as f32).clamp(m.dt_min, m.dt_max);
            }
            mixes(Some(Mixer::Mamba2(Box::new(m))))
        }
        Kind::Dense => feeds(Ffn::Dense(Mlp { inter: f.size("intermediate_size")?, ..none })),
        Kind::Experts => {
            if let Some(width) = f.size_opt("moe_latent_size")? {
                return Err(unsupported(format!("moe_latent_size {width}"), "null"));
            }
            let mut moe = Moe { act, gated: false, bias, ..routed(b, Routing::of(8))? };
            let names = ["moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"];
            if let (Some(shared), Some(inter)) =
                (&mut moe.shared, f.first(&names, Fields::size_opt)?)
            {
                shared.inter = inter * f.count_opt("n_shared_experts")?.unwrap_or(1).max(1);
            }
            if act != Activation::ReluSquared {
                return Err(unsupported(format!("mlp_hidden_act {name:?} of experts"), "relu2"));
            }
            feeds(Ffn::Moe(moe))
        }
    })
}
