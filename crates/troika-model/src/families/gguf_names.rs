//! Tensor names of GGUF files: one table for all architectures.

use std::collections::HashSet;

use super::delta_names;
use super::names::{
    Candidates, TensorNames, beside_queries, beside_weight, gate_rows, mamba_of, mamba_rows,
    packed_rows, whole,
};
use crate::spec::{Checkpoint, Key, Layer, Mixer, ModelSpec, Recipe, WeightRole, WeightRole as W};

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
                W::Embed => whole("token_embd.weight"),
                W::FinalNorm => whole("output_norm.weight token_embd_norm.weight"),
                W::Head => whole("output.weight"),
                W::PerLayerEmbed => whole("per_layer_token_embd.weight"),
                W::PerLayerIn => whole("per_layer_model_proj.weight"),
                W::PerLayerInNorm => whole("per_layer_proj_norm.weight"),
                W::AltIn => of("altup_proj.weight"),
                W::AltOut => of("altup_unembd_proj.weight"),
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
            W::AttnPre => whole("attn_norm.weight"),
            W::AttnPost => whole("post_attention_norm.weight attn_post_norm.weight"),
            W::FfnPre if layer.attn_post.is_some() => whole("ffn_norm.weight"),
            W::FfnPre if layer.mixer.is_none() => whole("attn_norm.weight"),
            // gpt-oss files name it after the layer before it.
            W::FfnPre => whole("ffn_norm.weight post_attention_norm.weight"),
            W::FfnPost => whole("post_ffw_norm.weight ffn_post_norm.weight"),
            W::Q | W::K | W::V => qkv(layer, role),
            W::O => whole("attn_output.weight"),
            W::PerLayerGate => whole("inp_gate.weight"),
            W::PerLayerUp => whole("proj.weight"),
            W::PerLayerNorm => whole("post_norm.weight"),
            W::QNorm => whole("attn_q_norm.weight"),
            W::KNorm => whole("attn_k_norm.weight"),
            W::ExpertChoice => whole("exp_probs_b.bias exp_probs_b"),
            W::Sinks => whole("attn_sinks.weight"),
            W::QDown => whole("attn_q_a.weight"),
            W::QDownNorm => whole("attn_q_a_norm.weight"),
            W::QUp => whole("attn_q_b.weight"),
            W::KvDownNorm => whole("attn_kv_a_norm.weight"),
            W::KvDown | W::KRope | W::KAbsorb | W::VUp => latent(layer, role, e),
            W::Gate | W::Up | W::Down => self.mlp(layer, index, role),
            W::Router => whole("ffn_gate_inp.weight"),
            W::SharedGate => whole("ffn_gate_shexp.weight ffn_gate.weight"),
            W::SharedUp => whole("ffn_up_shexp.weight ffn_up.weight"),
            W::SharedDown => whole("ffn_down_shexp.weight ffn_down.weight"),
            W::SharedOutGate => whole("ffn_gate_inp_shexp.weight"),
            W::ExpertDown => expert("down", e, spec.hidden),
            W::ExpertGate | W::ExpertUp => gate_up_expert(layer, role, e),
            W::ExpertGateBias => expert_bias("gate", e),
            W::ExpertUpBias => expert_bias("up", e),
            W::ExpertDownBias => expert_bias("down", e),
            _ => mixer(layer, role),
        }
    }

    fn mlp(&self, layer: &Layer, index: usize, role: WeightRole) -> Candidates {
        let Some(m) = layer.dense() else { return Vec::new() };
        let packed = !self.gated.contains(&index);
        match role {
            W::Gate if packed => {
                vec![Recipe::whole("ffn_gate.weight"), Recipe::rows("ffn_up.weight", 0..m.inter)]
            }
            W::Up if packed && m.gated => {
                vec![Recipe::rows("ffn_up.weight", m.inter..2 * m.inter)]
            }
            W::Gate => whole("ffn_gate.weight"),
            W::Up => whole("ffn_up.weight"),
            _ => whole("ffn_down.weight"),
        }
    }
}

fn qkv(layer: &Layer, role: WeightRole) -> Candidates {
    let Some(a) = layer.attention() else { return Vec::new() };
    let role = if a.v_is_k && role == W::V { W::K } else { role };
    if let Some(beside) = beside_queries(a, role, "attn_q.weight") {
        return vec![beside];
    }
    let name = match role {
        W::Q => "attn_q.weight",
        W::K => "attn_k.weight",
        _ => "attn_v.weight",
    };
    vec![Recipe::whole(name), Recipe::rows("attn_qkv.weight", packed_rows(a, role))]
}

/// Gates of attention, tensors of mixers and streams beside it, and norms of experts.
fn mixer(layer: &Layer, role: WeightRole) -> Candidates {
    match role {
        W::AttnGate => {
            let attn = layer.attention().into_iter();
            let beside = |a| beside_queries(a, role, "attn_q.weight");
            attn.map(|a| beside(a).unwrap_or_else(|| gate_rows(a, "attn_gate.weight"))).collect()
        }
        W::MixIn | W::MixGate | W::MixStep => match mamba_of(layer) {
            Some(m) => vec![Recipe::rows("ssm_in.weight", mamba_rows(m, role))],
            None => whole("shortconv.in_proj.weight"),
        },
        W::MixOut => whole("ssm_out.weight shortconv.out_proj.weight"),
        W::MixConv => whole("ssm_conv1d.weight shortconv.conv.weight"),
        W::MixRate => whole("ssm_a"),
        W::MixSkip => whole("ssm_d"),
        W::MixStepShift => whole("ssm_dt.bias"),
        W::MixNorm => whole("ssm_norm.weight"),
        W::AltRouter => whole("altup_router.weight"),
        W::AltRouterNorm => whole("altup_router_norm.weight"),
        W::AltPredict => whole("altup_predict_coef.weight"),
        W::AltCorrect => whole("altup_correct_coef.weight"),
        W::AltScale => whole("altup_correct_scale.weight"),
        W::LaurelDown => whole("laurel_l.weight"),
        W::LaurelUp => whole("laurel_r.weight"),
        W::LaurelNorm => whole("laurel_post_norm.weight"),
        W::RouterNorm => whole("ffn_gate_inp.scale"),
        W::ExpertPre => whole("pre_ffw_norm_2.weight"),
        W::ExpertPost => whole("post_ffw_norm_2.weight"),
        W::SharedPost => whole("post_ffw_norm_1.weight"),
        W::ExpertScales => whole("ffn_down_exps.scale"),
        _ => Vec::new(),
    }
}

fn gate_up_expert(layer: &Layer, role: WeightRole, e: usize) -> Candidates {
    let Some(m) = layer.moe() else { return Vec::new() };
    let (part, second) = if role == W::ExpertGate { ("gate", 0) } else { ("up", 1) };
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
        W::KvDown => vec![Recipe::rows("attn_kv_a_mqa.weight", 0..l.kv_rank)],
        W::KRope => {
            vec![Recipe::rows("attn_kv_a_mqa.weight", l.kv_rank..l.kv_rank + l.rope)]
        }
        W::KAbsorb => vec![
            Recipe::rows("attn_k_b.weight", head * l.kv_rank..(head + 1) * l.kv_rank),
            Recipe { transpose: true, ..Recipe::rows("attn_kv_b.weight", old..old + l.nope) },
        ],
        _ => vec![
            Recipe::rows("attn_v_b.weight", head * a.v_dim..(head + 1) * a.v_dim),
            Recipe::rows("attn_kv_b.weight", old + l.nope..old + l.nope + a.v_dim),
        ],
    }
}
