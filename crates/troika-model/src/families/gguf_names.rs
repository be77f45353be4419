//! Tensor names of GGUF files: one table for all architectures.

use std::collections::HashSet;

use super::delta_names;
use super::names::{
    Candidates, TensorNames, beside_queries, beside_weight, gate_rows, mamba_of, mamba_rows,
    packed_rows, whole,
};
use crate::spec::{Checkpoint, Key, Layer, Mixer, ModelSpec, Recipe, WeightRole};

pub(super) struct GgufNames {
    /// Layers with a separate gate; in others `ffn_up` holds gate and up (Phi-3).
    gated: HashSet<usize>,
}

impl GgufNames {
    pub fn new(files: &dyn Checkpoint) -> GgufNames {
        let layer =
            |name: &str| name.strip_prefix("blk.")?.strip_suffix(".ffn_gate.weight")?.parse().ok();
        GgufNames { gated: files.names().into_iter().filter_map(layer).collect() }
    }
}

impl TensorNames for GgufNames {
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates {
        if let Some(biases) = beside_weight(self, spec, key) {
            return biases;
        }
        let Some(index) = key.layer else {
            let of = |tensor: &str| {
                let start = key.index.unwrap_or(0).saturating_mul(spec.hidden);
                vec![Recipe::rows(tensor, start..start + spec.hidden)]
            };
            return match key.role {
                WeightRole::Embed => whole("token_embd.weight"),
                WeightRole::FinalNorm => whole("output_norm.weight token_embd_norm.weight"),
                WeightRole::Head => whole("output.weight"),
                WeightRole::PerLayerEmbed => whole("per_layer_token_embd.weight"),
                WeightRole::PerLayerIn => whole("per_layer_model_proj.weight"),
                WeightRole::PerLayerInNorm => whole("per_layer_proj_norm.weight"),
                WeightRole::AltIn => of("altup_proj.weight"),
                WeightRole::AltOut => of("altup_unembd_proj.weight"),
                _ => Vec::new(),
            };
        };
        if index >= spec.layers.len() {
            return Vec::new();
        }
        let mut recipes = self.layer(spec, index, key.role, key.index.unwrap_or(0));
        for r in &mut recipes {
            r.tensor = format!("blk.{index}.{}", r.tensor);
        }
        recipes
    }

    fn layer(&self, tensor: &str) -> Option<usize> {
        tensor.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
    }

    fn layers_key(&self) -> &'static str {
        "block_count"
    }
}

/// The rows of an expert in a tensor of all experts, or a separate tensor (old files).
fn expert(part: &str, e: usize, rows: usize) -> Candidates {
    vec![
        Recipe::rows(format!("ffn_{part}_exps.weight"), e * rows..(e + 1) * rows),
        Recipe::whole(format!("ffn_{part}.{e}.weight")),
    ]
}

/// The row of an expert in a tensor of all biases.
fn expert_bias(part: &str, e: usize) -> Candidates {
    vec![Recipe::rows(format!("ffn_{part}_exps.bias"), e..e + 1)]
}

impl GgufNames {
    fn layer(&self, spec: &ModelSpec, index: usize, role: WeightRole, e: usize) -> Candidates {
        let layer = &spec.layers[index];
        if let Some(Mixer::DeltaRule(d)) = &layer.mixer
            && let Some(all) = delta_names::gguf(d, role, e)
        {
            return all;
        }
        match role {
            WeightRole::AttnPre => whole("attn_norm.weight"),
            WeightRole::AttnPost => whole("post_attention_norm.weight attn_post_norm.weight"),
            WeightRole::FfnPre if layer.attn_post.is_some() => whole("ffn_norm.weight"),
            WeightRole::FfnPre if layer.mixer.is_none() => whole("attn_norm.weight"),
            // gpt-oss files name it after the layer before it.
            WeightRole::FfnPre => whole("ffn_norm.weight post_attention_norm.weight"),
            WeightRole::FfnPost => whole("post_ffw_norm.weight ffn_post_norm.weight"),
            WeightRole::Q | WeightRole::K | WeightRole::V => qkv(layer, role),
            WeightRole::O => whole("attn_output.weight"),
            WeightRole::PerLayerGate => whole("inp_gate.weight"),
            WeightRole::PerLayerUp => whole("proj.weight"),
            WeightRole::PerLayerNorm => whole("post_norm.weight"),
            WeightRole::QNorm => whole("attn_q_norm.weight"),
            WeightRole::KNorm => whole("attn_k_norm.weight"),
            WeightRole::ExpertChoice => whole("exp_probs_b.bias exp_probs_b"),
            WeightRole::Sinks => whole("attn_sinks.weight"),
            WeightRole::QDown => whole("attn_q_a.weight"),
            WeightRole::QDownNorm => whole("attn_q_a_norm.weight"),
            WeightRole::QUp => whole("attn_q_b.weight"),
            WeightRole::KvDownNorm => whole("attn_kv_a_norm.weight"),
            WeightRole::KvDown | WeightRole::KRope | WeightRole::KAbsorb | WeightRole::VUp => {
                latent(layer, role, e)
            }
            WeightRole::Gate | WeightRole::Up | WeightRole::Down => self.mlp(layer, index, role),
            WeightRole::Router => whole("ffn_gate_inp.weight"),
            WeightRole::SharedGate => whole("ffn_gate_shexp.weight ffn_gate.weight"),
            WeightRole::SharedUp => whole("ffn_up_shexp.weight ffn_up.weight"),
            WeightRole::SharedDown => whole("ffn_down_shexp.weight ffn_down.weight"),
            WeightRole::SharedOutGate => whole("ffn_gate_inp_shexp.weight"),
            WeightRole::ExpertDown => expert("down", e, spec.hidden),
            WeightRole::ExpertGate | WeightRole::ExpertUp => gate_up_expert(layer, role, e),
            WeightRole::ExpertGateBias => expert_bias("gate", e),
            WeightRole::ExpertUpBias => expert_bias("up", e),
            WeightRole::ExpertDownBias => expert_bias("down", e),
            _ => mixer(layer, role),
        }
    }

    fn mlp(&self, layer: &Layer, index: usize, role: WeightRole) -> Candidates {
        let Some(m) = layer.dense() else { return Vec::new() };
        let packed = !self.gated.contains(&index);
        match role {
            WeightRole::Gate if packed => {
                vec![Recipe::whole("ffn_gate.weight"), Recipe::rows("ffn_up.weight", 0..m.inter)]
            }
            WeightRole::Up if packed && m.gated => {
                vec![Recipe::rows("ffn_up.weight", m.inter..2 * m.inter)]
            }
            WeightRole::Gate => whole("ffn_gate.weight"),
            WeightRole::Up => whole("ffn_up.weight"),
            _ => whole("ffn_down.weight"),
        }
    }
}

fn qkv(layer: &Layer, role: WeightRole) -> Candidates {
    let Some(a) = layer.attention() else { return Vec::new() };
    let role = if a.v_is_k && role == WeightRole::V { WeightRole::K } else { role };
    if let Some(beside) = beside_queries(a, role, "attn_q.weight") {
        return vec![beside];
    }
    let name = match role {
        WeightRole::Q => "attn_q.weight",
        WeightRole::K => "attn_k.weight",
        _ => "attn_v.weight",
    };
    vec![Recipe::whole(name), Recipe::rows("attn_qkv.weight", packed_rows(a, role))]
}

/// Gates of attention, tensors of mixers and streams beside it, and norms of experts.
fn mixer(layer: &Layer, role: WeightRole) -> Candidates {
    match role {
        WeightRole::AttnGate => {
            let attn = layer.attention().into_iter();
            let beside = |a| beside_queries(a, role, "attn_q.weight");
            attn.map(|a| beside(a).unwrap_or_else(|| gate_rows(a, "attn_gate.weight"))).collect()
        }
        WeightRole::MixIn | WeightRole::MixGate | WeightRole::MixStep => match mamba_of(layer) {
            Some(m) => vec![Recipe::rows("ssm_in.weight", mamba_rows(m, role))],
            None => whole("shortconv.in_proj.weight"),
        },
        WeightRole::MixOut => whole("ssm_out.weight shortconv.out_proj.weight"),
        WeightRole::MixConv => whole("ssm_conv1d.weight shortconv.conv.weight"),
        WeightRole::MixRate => whole("ssm_a"),
        WeightRole::MixSkip => whole("ssm_d"),
        WeightRole::MixStepShift => whole("ssm_dt.bias"),
        WeightRole::MixNorm => whole("ssm_norm.weight"),
        WeightRole::AltRouter => whole("altup_router.weight"),
        WeightRole::AltRouterNorm => whole("altup_router_norm.weight"),
        WeightRole::AltPredict => whole("altup_predict_coef.weight"),
        WeightRole::AltCorrect => whole("altup_correct_coef.weight"),
        WeightRole::AltScale => whole("altup_correct_scale.weight"),
        WeightRole::LaurelDown => whole("laurel_l.weight"),
        WeightRole::LaurelUp => whole("laurel_r.weight"),
        WeightRole::LaurelNorm => whole("laurel_post_norm.weight"),
        WeightRole::RouterNorm => whole("ffn_gate_inp.scale"),
        WeightRole::ExpertPre => whole("pre_ffw_norm_2.weight"),
        WeightRole::ExpertPost => whole("post_ffw_norm_2.weight"),
        WeightRole::SharedPost => whole("post_ffw_norm_1.weight"),
        WeightRole::ExpertScales => whole("ffn_down_exps.scale"),
        _ => Vec::new(),
    }
}

fn gate_up_expert(layer: &Layer, role: WeightRole, e: usize) -> Candidates {
    let Some(m) = layer.moe() else { return Vec::new() };
    let (part, second) = if role == WeightRole::ExpertGate { ("gate", 0) } else { ("up", 1) };
    let mut all = expert(part, e, m.inter);
    let start = (2 * e + second) * m.inter;
    all.push(Recipe::rows("ffn_gate_up_exps.weight", start..start + m.inter));
    all
}

/// New files split the key/value expansion by head and transpose the keys' part; old ones do not.
fn latent(layer: &Layer, role: WeightRole, head: usize) -> Candidates {
    let Some(a) = layer.attention() else { return Vec::new() };
    let Some(l) = a.latent else { return Vec::new() };
    let old = head * (l.nope + a.v_dim);
    match role {
        WeightRole::KvDown => vec![Recipe::rows("attn_kv_a_mqa.weight", 0..l.kv_rank)],
        WeightRole::KRope => {
            vec![Recipe::rows("attn_kv_a_mqa.weight", l.kv_rank..l.kv_rank + l.rope)]
        }
        WeightRole::KAbsorb => vec![
            Recipe::rows("attn_k_b.weight", head * l.kv_rank..(head + 1) * l.kv_rank),
            Recipe { transpose: true, ..Recipe::rows("attn_kv_b.weight", old..old + l.nope) },
        ],
        _ => vec![
            Recipe::rows("attn_v_b.weight", head * a.v_dim..(head + 1) * a.v_dim),
            Recipe::rows("attn_kv_b.weight", old + l.nope..old + l.nope + a.v_dim),
        ],
    }
}
