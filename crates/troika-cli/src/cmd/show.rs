//! `troika show`: describes a model.

use serde_json::{Value, json};
use troika::engine::EngineError;
use troika::graph::{DType, StateKind};
use troika::model::lower::{LowerOptions, lower};
use troika::model::spec::{Ffn, Layer, Mamba2, Mixer, ModelSpec, Norm};
use troika::weights::{BindOptions, ClassError, FloatType};
use troika::{Described, describe};

use crate::error::CliError;
use crate::flags::ShowArgs;
use crate::output::{self, bytes, printable};
use crate::{resolve, verdict};

/// Prints a model's description.
pub fn run(args: &ShowArgs) -> Result<(), CliError> {
    let source = resolve::model(&args.model)?;
    let quant = args.quant;
    let described = describe(&source, BindOptions { float: FloatType::Auto, quant })?;
    output::warn(described.store.warnings());
    let errors = described.store.quantization_error().map_err(troika::Error::from)?;
    let (name, kept) = (source.to_string(), Kept::of(&described)?);
    if args.json {
        return output::json(&as_json(&described, &name, &kept, &errors));
    }
    output::write(&as_text(&described, &name, &kept))?;
    output::write(&error_table(&errors))
}

fn norm(n: Option<Norm>) -> Option<&'static str> {
    n.map(|n| match n {
        Norm::Rms { .. } => "RMSNorm",
        Norm::Layer { .. } => "LayerNorm",
    })
}

fn mamba(m: &Mamba2) -> String {
    let Mamba2 { heads, head_dim, state_size, .. } = m;
    format!("Mamba-2 of {heads} heads of {head_dim} with {state_size} state elements")
}

fn attention(layer: &Layer) -> String {
    let a = match &layer.mixer {
        Some(Mixer::Attention(a)) => a,
        Some(Mixer::DecayingSum(sum)) => return format!("none, a decaying sum of {}", sum.width),
        Some(Mixer::ShortConv(conv)) => {
            return format!("none, a short convolution of {} taps", conv.taps);
        }
        Some(Mixer::Mamba2(m)) => return format!("none, {}", mamba(m)),
        Some(Mixer::DeltaRule(d)) => {
            let by = if d.by_channel { " by channel" } else { "" };
            let (heads, keys, values, taps) = (d.value_heads, d.key_dim, d.value_dim, d.taps);
            let states = format!("{heads} heads, {keys}x{values} states");
            return format!("gated delta rule{by}, {states}, convolutions of {taps}");
        }
        None => return "none".into(),
    };
    let mut s = match &a.latent {
        Some(l) => format!("latent attention, {} heads, kv rank {}", a.heads, l.kv_rank),
        None => format!("{} heads, {} kv heads, head_dim {}", a.heads, a.kv_heads, a.k_dim),
    };
    let mut add = |on: bool, what: String| {
        if on {
            s.push_str(", ");
            s.push_str(&what);
        }
    };
    let beside = layer.beside.as_ref().map_or(String::new(), |m| format!("beside {}", mamba(m)));
    add(layer.beside.is_some(), beside);
    add(a.window.is_some(), format!("window {}", a.window.unwrap_or(0)));
    add(a.rope.is_none(), "no rope".into());
    if let Some(r) = &a.rope {
        add(r.rotary_dim < a.k_dim, format!("rope on {} of a head", r.rotary_dim));
        add(r.long.is_some(), "longrope".into());
    }
    add(a.qk_norm.is_some(), "q/k norm".into());
    add(a.qkv_bias, "qkv bias".into());
    add(a.softcap.is_some(), format!("soft cap {}", a.softcap.unwrap_or(0.0)));
    add(a.sinks, "sinks".into());
    add(!a.has_kv(), "keys and values of an earlier layer".into());
    s
}

fn feed_forward(layer: &Layer) -> String {
    let own = layer.per_layer.map(|p| format!(", an input of {} for each token", p.width));
    let network = match &layer.ffn {
        None => "none".into(),
        Some(Ffn::Dense(m)) => {
            let sparse = if m.above.is_some() { " by the largest" } else { "" };
            format!("dense {}{}{sparse}", m.inter, if m.gated { ", gated" } else { "" })
        }
        Some(Ffn::Moe(m)) => {
            let shared = m.shared.map_or(String::new(), |s| format!(", shared expert {}", s.inter));
            format!("{} experts of {}, top {}{shared}", m.experts, m.inter, m.top_k)
        }
    };
    network + &own.unwrap_or_default()
}

fn norms(layer: &Layer) -> String {
    let parts = [
        ("before attention", layer.attn_pre),
        ("after attention", layer.attn_post),
        ("before feed-forward", layer.ffn_pre),
        ("after feed-forward", layer.ffn_post),
    ];
    let named = parts.iter().filter_map(|(place, n)| Some(format!("{} {place}", norm(*n)?)));
    let all: Vec<String> = named.collect();
    let parallel = if layer.parallel { ", parallel block" } else { "" };
    format!("{}{parallel}", all.join(", "))
}

/// Layers of one shape, with their indices.
fn groups(spec: &ModelSpec) -> Vec<(Vec<usize>, String)> {
    let mut groups: Vec<(Vec<usize>, String)> = Vec::new();
    for (i, layer) in spec.layers.iter().enumerate() {
        let text = format!(
            "    attention     {}\n    feed-forward  {}\n    norms         {}\n",
            attention(layer),
            feed_forward(layer),
            norms(layer)
        );
        match groups.iter_mut().find(|g| g.1 == text) {
            Some(g) => g.0.push(i),
            None => groups.push((vec![i], text)),
        }
    }
    groups
}

/// `0-3, 6`.
fn ranges(list: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &i in list {
        match parts.last_mut() {
            Some(p) if p.1 + 1 == i => p.1 = i,
            _ => parts.push((i, i)),
        }
    }
    let show = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(show).collect::<Vec<_>>().join(", ")
}

/// Parameters used per token: all except the parameters of experts that are not chosen.
fn active(d: &Described, total: u64) -> u64 {
    let experts = d.spec.layers.iter().filter_map(|l| l.moe());
    let idle = experts.map(|m| ((m.experts - m.top_k) * 3 * m.inter * d.spec.hidden) as u64);
    total.saturating_sub(idle.sum())
}

/// What sequences keep.
struct Kept {
    /// Bytes of a token in the KV cache, at most: layers with a window keep fewer tokens.
    token: u64,
    /// Bytes of states that are as large for each sequence.
    sequence: u64,
}

impl Kept {
    fn of(d: &Described) -> Result<Kept, CliError> {
        let options = LowerOptions { max_rows: 1, max_kv: 1, kv_dtype: DType::F16 };
        let lowered = lower(&d.spec, &|key| d.store.shape(key), options);
        let lowered = lowered.map_err(|e| troika::Error::from(EngineError::from(e)))?;
        let mut kept = Kept { token: 0, sequence: 0 };
        for state in &lowered.states {
            let bytes = state.dtype.row_bytes(state.width).unwrap_or(0) as u64;
            match lowered.page_groups[state.page_group] {
                StateKind::Paged(_) => kept.token += bytes,
                StateKind::Fixed => kept.sequence += bytes,
            }
        }
        Ok(kept)
    }
}

fn count(n: u64) -> String {
    match n {
        n if n >= 1_000_000_000 => format!("{:.2} B", n as f64 / 1e9),
        n if n >= 1_000_000 => format!("{:.2} M", n as f64 / 1e6),
        n => n.to_string(),
    }
}

fn as_text(d: &Described, path: &str, kept: &Kept) -> String {
    let spec = &d.spec;
    let classes = d.store.classes();
    let total: u64 = classes.iter().map(|c| c.parameters).sum();
    let size: u64 = classes.iter().map(|c| c.bytes).sum();
    let mut s = format!("{}\n  architecture  {}\n", printable(path), printable(&spec.family));
    let active = active(d, total);
    let of = if active < total { format!(" ({} per token)", count(active)) } else { String::new() };
    s.push_str(&format!("  parameters    {}{of}\n  bytes         {}\n", count(total), bytes(size)));
    s.push_str(&format!("  context       {} tokens\n", spec.context));
    s.push_str(&format!("  vocabulary    {} tokens\n", spec.vocab));
    let streams = spec.altup.map_or(String::new(), |a| {
        format!(", {} streams (AltUp), LAuReL of rank {}", a.streams, a.rank)
    });
    s.push_str(&format!("  hidden        {}{streams}\n", spec.hidden));
    let head = if spec.tied { "tied to the embedding" } else { "its own weights" };
    s.push_str(&format!("  head          {head}\n"));
    for (layers, text) in groups(spec) {
        s.push_str(&format!("  layers {} ({})\n{text}", ranges(&layers), layers.len()));
    }
    s.push_str(&format!("  KV cache      {} per token in 16 bits\n", bytes(kept.token)));
    if kept.sequence > 0 {
        let states = bytes(kept.sequence);
        s.push_str(&format!("  states        {states} per sequence, and per checkpoint of one\n"));
    }
    s.push_str(&memory(spec, size, kept.token));
    s.push_str("  weights\n");
    for c in classes {
        s.push_str(&format!(
            "    {:<13} {:<6} {:>10} parameters {:>12}\n",
            c.class,
            c.dtype.name(),
            count(c.parameters),
            bytes(c.bytes)
        ));
    }
    s
}

/// What is free here, and what that means for weights of so many bytes.
fn memory(spec: &ModelSpec, size: u64, per_token: u64) -> String {
    let Some(host) = verdict::host() else { return String::new() };
    let cache = host.cache(size);
    let tokens = cache.checked_div(per_token).unwrap_or(u64::MAX);
    let (free, cache, tokens) = (bytes(host.free), bytes(cache), tokens.min(spec.context as u64));
    match size <= host.weights() {
        true => format!("  memory        {free} free: KV cache up to {cache}, {tokens} tokens\n"),
        false => format!("  memory        {free} free, which is less than the weights take\n"),
    }
}

/// Quantization errors; empty if nothing was quantized.
fn error_table(errors: &[ClassError]) -> String {
    let mut s = String::new();
    if !errors.is_empty() {
        s.push_str("  error of quantization, relative RMS (and of the worst tensor)\n");
    }
    for e in errors {
        s.push_str(&format!(
            "    {:<13} {:<6} {:>8.3} % ({:.3} %, {})\n",
            e.class,
            e.dtype.name(),
            100.0 * e.relative_rms,
            100.0 * e.worst.0,
            printable(&e.worst.1)
        ));
    }
    s
}

fn as_json(d: &Described, path: &str, kept: &Kept, errors: &[ClassError]) -> Value {
    let classes = d.store.classes();
    let total: u64 = classes.iter().map(|c| c.parameters).sum();
    let weights = classes.iter().map(|c| {
        json!({
            "class": c.class, "dtype": c.dtype.name(),
            "parameters": c.parameters, "bytes": c.bytes,
        })
    });
    json!({
        "model": path,
        "architecture": d.spec.family,
        "parameters": total,
        "active_parameters": active(d, total),
        "bytes": classes.iter().map(|c| c.bytes).sum::<u64>(),
        "context": d.spec.context,
        "cache_bytes_per_token": kept.token,
        "state_bytes_per_sequence": kept.sequence,
        "vocabulary": d.spec.vocab,
        "weights": weights.collect::<Vec<_>>(),
        "quantization": errors.iter().map(error_json).collect::<Vec<_>>(),
        "spec": serde_json::to_value(&d.spec).unwrap_or(Value::Null),
    })
}

fn error_json(e: &ClassError) -> Value {
    json!({
        "class": e.class, "dtype": e.dtype.name(), "parameters": e.parameters,
        "relative_rms": e.relative_rms, "worst_relative_rms": e.worst.0, "worst_tensor": e.worst.1,
    })
}
