//! Tensor names of GGUF files: one table for all architectures.

use std::collections::HashSet;
use std::ops::Range;

use super::names::{Candidates, TensorNames};
use crate::spec::{Checkpoint, Recipe};
use crate::spec::{Ffn, Key, Layer, ModelSpec, Slot};

pub(super) struct GgufNames {
    /// Layers with a gate of their own; in others `ffn_up` holds gate and up (Phi-3).
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
        let Some(index) = key.layer else {
            return match key.slot {
                Slot::Embed => whole(&["token_embd.weight"]),
                Slot::FinalNorm => whole(&["output_norm.weight"]),
                Slot::FinalNormBias => whole(&["output_norm.bias"]),
                Slot::Head => whole(&["output.weight"]),
                Slot::HeadBias => whole(&["output.bias"]),
                _ => Vec::new(),
            };
        };
        if index >= spec.layers.len() {
            return Vec::new();
        }
        let mut recipes = self.layer(spec, index, key.slot, key.index.unwrap_or(0));
        for r in &mut recipes {
            r.tensor = format!("blk.{index}.{}", r.tensor);
        }
        recipes
    }
}

fn whole(names: &[&str]) -> Candidates {
    names.iter().map(|n| Recipe::whole(*n)).collect()
}

/// The rows of one expert in a tensor of all, or a tensor of its own (old files).
fn expert(part: &str, e: usize, rows: usize) -> Candidates {
    vec![
        Recipe::rows(format!("ffn_{part}_exps.weight"), e * rows..(e + 1) * rows),
        Recipe::whole(format!("ffn_{part}.{e}.weight")),
    ]
}

/// The row of one expert in a tensor of all biases.
fn expert_bias(part: &str, e: usize) -> Candidates {
    vec![Recipe::rows(format!("ffn_{part}_exps.bias"), e..e + 1)]
}

fn qkv_part(layer: &Layer, slot: Slot) -> Range<usize> {
    let a = &layer.attn;
    let (q, k) = (a.heads * a.k_dim, a.kv_heads * a.k_dim);
    match slot {
        Slot::Q | Slot::QBias => 0..q,
        Slot::K | Slot::KBias => q..q + k,
        _ => q + k..q + k + a.kv_heads * a.v_dim,
    }
}

impl GgufNames {
    fn layer(&self, spec: &ModelSpec, index: usize, slot: Slot, e: usize) -> Candidates {
        let layer = &spec.layers[index];
        match slot {
            Slot::AttnPre => whole(&["attn_norm.weight"]),
            Slot::AttnPreBias => whole(&["attn_norm.bias"]),
            Slot::AttnPost => whole(&["post_attention_norm.weight", "attn_post_norm.weight"]),
            Slot::FfnPre if layer.attn_post.is_some() => whole(&["ffn_norm.weight"]),
            // gpt-oss files call it by what it follows.
            Slot::FfnPre => whole(&["ffn_norm.weight", "post_attention_norm.weight"]),
            Slot::FfnPreBias => whole(&["ffn_norm.bias"]),
            Slot::FfnPost => whole(&["post_ffw_norm.weight", "ffn_post_norm.weight"]),
            Slot::Q | Slot::K | Slot::V | Slot::QBias | Slot::KBias | Slot::VBias => {
                self.qkv(layer, slot)
            }
            Slot::O => whole(&["attn_output.weight"]),
            Slot::OBias => whole(&["attn_output.bias"]),
            Slot::QNorm => whole(&["attn_q_norm.weight"]),
            Slot::KNorm => whole(&["attn_k_norm.weight"]),
            Slot::QNormBias => whole(&["attn_q_norm.bias"]),
            Slot::KNormBias => whole(&["attn_k_norm.bias"]),
            Slot::Sinks => whole(&["attn_sinks.weight"]),
            Slot::QDown => whole(&["attn_q_a.weight"]),
            Slot::QDownNorm => whole(&["attn_q_a_norm.weight"]),
            Slot::QUp => whole(&["attn_q_b.weight"]),
            Slot::KvDownNorm => whole(&["attn_kv_a_norm.weight"]),
            Slot::KvDown | Slot::KRope | Slot::KAbsorb | Slot::VUp => latent(layer, slot, e),
            Slot::Gate | Slot::Up | Slot::Down => self.mlp(layer, index, slot),
            Slot::GateBias => whole(&["ffn_gate.bias"]),
            Slot::UpBias => whole(&["ffn_up.bias"]),
            Slot::DownBias => whole(&["ffn_down.bias"]),
            Slot::Router => whole(&["ffn_gate_inp.weight"]),
            Slot::RouterBias => whole(&["ffn_gate_inp.bias"]),
            Slot::SharedGate => whole(&["ffn_gate_shexp.weight"]),
            Slot::SharedUp => whole(&["ffn_up_shexp.weight"]),
            Slot::SharedDown => whole(&["ffn_down_shexp.weight"]),
            Slot::SharedOutGate => whole(&["ffn_gate_inp_shexp.weight"]),
            Slot::ExpertDown => expert("down", e, spec.hidden),
            Slot::ExpertGate | Slot::ExpertUp => gate_up_expert(layer, slot, e),
            Slot::ExpertGateBias => expert_bias("gate", e),
            Slot::ExpertUpBias => expert_bias("up", e),
            Slot::ExpertDownBias => expert_bias("down", e),
            _ => Vec::new(),
        }
    }

    fn qkv(&self, layer: &Layer, slot: Slot) -> Candidates {
        let range = qkv_part(layer, slot);
        let matrix =
            |name: &str| vec![Recipe::whole(name), Recipe::rows("attn_qkv.weight", range.clone())];
        let vector = |name: &str| {
            vec![Recipe::whole(name), Recipe::cols("attn_qkv.bias", range.start, range.len())]
        };
        match slot {
            Slot::Q => matrix("attn_q.weight"),
            Slot::K => matrix("attn_k.weight"),
            Slot::V => matrix("attn_v.weight"),
            Slot::QBias => vector("attn_q.bias"),
            Slot::KBias => vector("attn_k.bias"),
            _ => vector("attn_v.bias"),
        }
    }

    fn mlp(&self, layer: &Layer, index: usize, slot: Slot) -> Candidates {
        let Ffn::Dense(m) = &layer.ffn else { return Vec::new() };
        let packed = !self.gated.contains(&index);
        match slot {
            Slot::Gate if packed => {
                vec![Recipe::whole("ffn_gate.weight"), Recipe::rows("ffn_up.weight", 0..m.inter)]
            }
            Slot::Up if packed && m.gated => {
                vec![Recipe::rows("ffn_up.weight", m.inter..2 * m.inter)]
            }
            Slot::Gate => whole(&["ffn_gate.weight"]),
            Slot::Up => whole(&["ffn_up.weight"]),
            _ => whole(&["ffn_down.weight"]),
        }
    }
}

fn gate_up_expert(layer: &Layer, slot: Slot, e: usize) -> Candidates {
    let Ffn::Moe(m) = &layer.ffn else { return Vec::new() };
    let (part, second) = if slot == Slot::ExpertGate { ("gate", 0) } else { ("up", 1) };
    let mut all = expert(part, e, m.inter);
    let start = (2 * e + second) * m.inter;
    all.push(Recipe::rows("ffn_gate_up_exps.weight", start..start + m.inter));
    all
}

/// New files split the key/value expansion per head and transpose the key's; old ones do not.
fn latent(layer: &Layer, slot: Slot, head: usize) -> Candidates {
    let a = &layer.attn;
    let Some(l) = a.latent else { return Vec::new() };
    let old = head * (l.nope + a.v_dim);
    match slot {
        Slot::KvDown => vec![Recipe::rows("attn_kv_a_mqa.weight", 0..l.kv_rank)],
        Slot::KRope => {
            vec![Recipe::rows("attn_kv_a_mqa.weight", l.kv_rank..l.kv_rank + l.rope)]
        }
        Slot::KAbsorb => vec![
            Recipe::rows("attn_k_b.weight", head * l.kv_rank..(head + 1) * l.kv_rank),
            Recipe { transpose: true, ..Recipe::rows("attn_kv_b.weight", old..old + l.nope) },
        ],
        _ => vec![
            Recipe::rows("attn_v_b.weight", head * a.v_dim..(head + 1) * a.v_dim),
            Recipe::rows("attn_kv_b.weight", old + l.nope..old + l.nope + a.v_dim),
        ],
    }
}
