//! Tensor names of the gated delta rule.

use std::ops::Range;

use super::names::{Candidates, whole};
use crate::spec::{DeltaRule, Recipe, WeightRole, WeightRole as W};

/// The part of a projection or convolution that holds queries, keys or values.
fn part(d: &DeltaRule, role: WeightRole) -> Range<usize> {
    match role {
        W::Q => 0..d.keys(),
        W::K => d.keys()..2 * d.keys(),
        _ => 2 * d.keys()..2 * d.keys() + d.values(),
    }
}

/// Qwen3-Next packs by key head: queries, keys, values, gate; and shares, decays.
fn by_key_head(d: &DeltaRule, role: WeightRole) -> Recipe {
    let each = d.value_heads / d.key_heads.max(1);
    let values = each * d.value_dim;
    let (tensor, group, rows) = match role {
        W::Beta => ("in_proj_ba", 2 * each, 0..each),
        W::Decay => ("in_proj_ba", 2 * each, each..2 * each),
        _ => {
            let start = match role {
                W::Q => 0,
                W::K => d.key_dim,
                W::V => 2 * d.key_dim,
                _ => 2 * d.key_dim + values,
            };
            let len = if start < 2 * d.key_dim { d.key_dim } else { values };
            ("in_proj_qkvz", 2 * (d.key_dim + values), start..start + len)
        }
    };
    let rows = (0..d.key_heads).map(|h| h * group + rows.start..h * group + rows.end).collect();
    Recipe { rows, ..Recipe::whole(format!("linear_attn.{tensor}.weight")) }
}

/// The names in Hugging Face checkpoints; `None`: this role's are those of all layers.
pub(super) fn hf(d: &DeltaRule, role: WeightRole, index: usize) -> Option<Candidates> {
    let names: &[&str] = match role {
        W::Q => &["q_proj.weight"],
        W::K => &["k_proj.weight"],
        W::V => &["v_proj.weight"],
        W::Taps => return Some(hf_taps(d, index)),
        W::DecayDown => &["f_a_proj.weight"],
        W::Decay => &["a_proj.weight", "in_proj_a.weight", "f_b_proj.weight", "f_proj.weight"],
        W::DecayBias => &["dt_bias"],
        W::DecayRate => &["A_log"],
        W::Beta => &["b_proj.weight", "in_proj_b.weight"],
        W::GateDown => &["g_a_proj.weight"],
        W::AttnGate => &["g_b_proj.weight", "g_proj.weight", "in_proj_z.weight"],
        W::HeadNorm => &["norm.weight", "o_norm.weight"],
        W::O => &["out_proj.weight", "o_proj.weight", "dense.weight"],
        _ => return None,
    };
    let mut all: Candidates = Vec::new();
    for module in ["linear_attn", "self_attn", "attention"] {
        all.extend(names.iter().map(|n| Recipe::whole(format!("{module}.{n}"))));
    }
    // Kimi Linear stores a column.
    if role == W::DecayRate {
        all.iter_mut().for_each(|r| r.transpose = r.tensor == "self_attn.A_log");
    }
    match role {
        W::Q | W::K | W::V => {
            all.push(Recipe::rows("linear_attn.in_proj_qkv.weight", part(d, role)));
            all.push(by_key_head(d, role));
        }
        W::AttnGate | W::Decay | W::Beta => all.push(by_key_head(d, role)),
        _ => {}
    }
    Some(all)
}

/// The role of the values that a convolution is for.
fn of_taps(index: usize) -> (WeightRole, &'static str) {
    match index {
        0 => (W::Q, "q"),
        1 => (W::K, "k"),
        _ => (W::V, "v"),
    }
}

fn hf_taps(d: &DeltaRule, index: usize) -> Candidates {
    let (role, name) = of_taps(index);
    let modules = ["linear_attn", "self_attn", "attention"];
    // OLMo Hybrid's are saved in thirds, whatever their widths.
    let third = |name| format!("linear_attn.{name}_conv1d.weight");
    let all_three = Recipe::rows(third("q"), part(d, role));
    let mut all = vec![Recipe { below: vec![third("k"), third("v")], ..all_three }];
    all.extend(modules.iter().map(|m| Recipe::whole(format!("{m}.{name}_conv1d.weight"))));
    all.extend(modules.map(|m| Recipe::rows(format!("{m}.conv1d.weight"), part(d, role))));
    all
}

/// The same in GGUF files.
pub(super) fn gguf(d: &DeltaRule, role: WeightRole, index: usize) -> Option<Candidates> {
    let qkv =
        |name: &str| vec![Recipe::whole(name), Recipe::rows("attn_qkv.weight", part(d, role))];
    let both = || Recipe { tensor: "ssm_ba.weight".into(), ..by_key_head(d, role) };
    Some(match role {
        W::Q => qkv("attn_q.weight"),
        W::K => qkv("attn_k.weight"),
        W::V => qkv("attn_v.weight"),
        W::Taps => {
            let (role, name) = of_taps(index);
            let own = Recipe::whole(format!("ssm_conv1d_{name}.weight"));
            vec![own, Recipe::rows("ssm_conv1d.weight", part(d, role))]
        }
        W::DecayDown => whole("ssm_f_a.weight"),
        W::Decay if d.by_channel => whole("ssm_f_b.weight"),
        W::Decay => vec![Recipe::whole("ssm_alpha.weight"), both()],
        W::DecayBias => whole("ssm_dt.bias ssm_dt"),
        // By channel it is a column.
        W::DecayRate => vec![Recipe { transpose: d.by_channel, ..Recipe::whole("ssm_a") }],
        W::Beta => vec![Recipe::whole("ssm_beta.weight"), both()],
        W::GateDown => whole("ssm_g_a.weight"),
        W::AttnGate if d.gate_rank.is_some() => whole("ssm_g_b.weight"),
        W::AttnGate => whole("attn_gate.weight"),
        W::HeadNorm => whole("ssm_norm.weight"),
        W::O => whole("ssm_out.weight attn_output.weight"),
        _ => return None,
    })
}
