//! Tensor names of Hugging Face checkpoints, all families in one table: a name that exists means
//! the same thing everywhere but for the norms around feed-forwards.

use std::ops::Range;

use troika_graph::Activation;

use super::names::{Candidates, TensorNames};
use crate::spec::{Attn, Ffn, Key, Layer, ModelSpec, Moe, Slot};
use crate::spec::{Cols, Recipe};

/// Prefixes of the decoder's tensors: usual, bare, and inside multimodal models.
const PREFIXES: [&str; 4] = ["model.", "", "language_model.model.", "model.language_model."];

pub(super) struct HfNames;

impl TensorNames for HfNames {
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates {
        let Some(index) = key.layer else { return outer(key.slot) };
        let Some(layer) = spec.layers.get(index) else { return Vec::new() };
        let one = One { layer, hidden: spec.hidden, index: key.index.unwrap_or(0) };
        let recipes = one.recipes(key.slot);
        let mut all = Vec::with_capacity(recipes.len() * PREFIXES.len());
        for prefix in PREFIXES {
            all.extend(recipes.iter().map(|r| {
                let tensor = format!("{prefix}layers.{index}.{}", r.tensor);
                Recipe { tensor, ..r.clone() }
            }));
        }
        all
    }
}

fn outer(slot: Slot) -> Candidates {
    let names: &[&str] = match slot {
        Slot::Embed => &["embed_tokens.weight", "tok_embeddings.weight"],
        Slot::FinalNorm => &["norm.weight", "final_layernorm.weight"],
        Slot::FinalNormBias => &["norm.bias", "final_layernorm.bias"],
        Slot::Head => {
            let all = ["lm_head.weight", "output.weight", "language_model.lm_head.weight"];
            return all.into_iter().map(Recipe::whole).collect();
        }
        Slot::HeadBias => return vec![Recipe::whole("lm_head.bias")],
        _ => &[],
    };
    PREFIXES
        .iter()
        .flat_map(|p| names.iter().map(move |n| Recipe::whole(format!("{p}{n}"))))
        .collect()
}

const DOWN_BIAS: &str = "self_attn.kv_a_proj_with_mqa.bias";

/// A weight of one layer (and one expert or head).
struct One<'a> {
    layer: &'a Layer,
    hidden: usize,
    index: usize,
}

fn whole(names: &[&str]) -> Candidates {
    names.iter().map(|n| Recipe::whole(*n)).collect()
}

/// A whole tensor, or rows (of a matrix) or elements (of a vector) of a packed one.
fn or_part(names: &[&str], packed: &str, range: Range<usize>) -> Candidates {
    let mut all = whole(names);
    all.push(match packed.ends_with(".bias") {
        true => Recipe::cols(packed, range.start, range.len()),
        false => Recipe::rows(packed, range),
    });
    all
}

impl One<'_> {
    fn recipes(&self, slot: Slot) -> Candidates {
        match slot {
            Slot::AttnPre | Slot::AttnPreBias | Slot::AttnPost | Slot::FfnPre => self.norms(slot),
            Slot::FfnPreBias | Slot::FfnPost => self.norms(slot),
            Slot::Q | Slot::K | Slot::V => self.qkv(slot),
            Slot::QBias | Slot::KBias | Slot::VBias => self.qkv_bias(slot),
            Slot::O => {
                whole(&["self_attn.o_proj.weight", "self_attn.dense.weight", "attention.wo.weight"])
            }
            Slot::OBias => whole(&["self_attn.o_proj.bias", "self_attn.dense.bias"]),
            Slot::QNorm => whole(&["self_attn.q_norm.weight", "self_attn.q_layernorm.weight"]),
            Slot::KNorm => whole(&["self_attn.k_norm.weight", "self_attn.k_layernorm.weight"]),
            Slot::QNormBias => whole(&["self_attn.q_layernorm.bias"]),
            Slot::KNormBias => whole(&["self_attn.k_layernorm.bias"]),
            Slot::Sinks => whole(&["self_attn.sinks"]),
            Slot::QDownBias => whole(&["self_attn.q_a_proj.bias"]),
            Slot::QDown => whole(&["self_attn.q_a_proj.weight"]),
            Slot::QDownNorm => whole(&["self_attn.q_a_layernorm.weight"]),
            Slot::QUp => whole(&["self_attn.q_b_proj.weight"]),
            Slot::KvDownNorm => whole(&["self_attn.kv_a_layernorm.weight"]),
            Slot::KvDown | Slot::KRope | Slot::KAbsorb | Slot::VUp => self.latent(slot),
            Slot::KvDownBias | Slot::KRopeBias => self.latent(slot),
            Slot::Gate | Slot::Up | Slot::Down => self.mlp(slot),
            Slot::GateBias => whole(&["mlp.gate_proj.bias"]),
            Slot::UpBias => whole(&["mlp.up_proj.bias", "mlp.fc1.bias"]),
            Slot::DownBias => whole(&["mlp.down_proj.bias", "mlp.fc2.bias"]),
            Slot::Router => whole(&[
                "mlp.gate.weight",
                "block_sparse_moe.gate.weight",
                "mlp.router.weight",
                "block_sparse_moe.router.weight",
            ]),
            Slot::RouterBias => whole(&["mlp.router.bias", "mlp.gate.bias"]),
            Slot::SharedGate => self.shared("gate_proj.weight"),
            Slot::SharedGateBias => self.shared("gate_proj.bias"),
            Slot::SharedUpBias => self.shared("up_proj.bias"),
            Slot::SharedDownBias => self.shared("down_proj.bias"),
            Slot::SharedUp => self.shared("up_proj.weight"),
            Slot::SharedDown => self.shared("down_proj.weight"),
            Slot::SharedOutGate => whole(&["mlp.shared_expert_gate.weight"]),
            _ => self.expert(slot),
        }
    }

    fn norms(&self, slot: Slot) -> Candidates {
        let sandwich = self.layer.attn_post.is_some();
        match slot {
            Slot::AttnPre => whole(&["input_layernorm.weight", "attention_norm.weight"]),
            Slot::AttnPreBias => whole(&["input_layernorm.bias"]),
            Slot::AttnPost => whole(&["post_attention_layernorm.weight"]),
            Slot::FfnPost => whole(&["post_feedforward_layernorm.weight"]),
            // The same name is the norm after attention in models that have one.
            Slot::FfnPre if sandwich => whole(&["pre_feedforward_layernorm.weight"]),
            Slot::FfnPre => whole(&["post_attention_layernorm.weight", "ffn_norm.weight"]),
            _ => whole(&["post_attention_layernorm.bias"]),
        }
    }

    /// Rows of q, k and v in a projection that packs them one after the other.
    fn packed_rows(&self, slot: Slot) -> Range<usize> {
        let a = &self.layer.attn;
        let (q, k) = (a.heads * a.k_dim, a.kv_heads * a.k_dim);
        match slot {
            Slot::Q | Slot::QBias => 0..q,
            Slot::K | Slot::KBias => q..q + k,
            _ => q + k..q + k + a.kv_heads * a.v_dim,
        }
    }

    fn qkv(&self, slot: Slot) -> Candidates {
        let name = match slot {
            Slot::Q => "self_attn.q_proj.weight",
            Slot::K => "self_attn.k_proj.weight",
            _ => "self_attn.v_proj.weight",
        };
        let mut all = or_part(&[name], "self_attn.qkv_proj.weight", self.packed_rows(slot));
        all.push(grouped(&self.layer.attn, slot));
        all
    }

    fn qkv_bias(&self, slot: Slot) -> Candidates {
        let name = match slot {
            Slot::QBias => "self_attn.q_proj.bias",
            Slot::KBias => "self_attn.k_proj.bias",
            _ => "self_attn.v_proj.bias",
        };
        or_part(&[name], "self_attn.qkv_proj.bias", self.packed_rows(slot))
    }

    fn latent(&self, slot: Slot) -> Candidates {
        let a = &self.layer.attn;
        let Some(l) = a.latent else { return Vec::new() };
        let down = "self_attn.kv_a_proj_with_mqa.weight";
        let up = "self_attn.kv_b_proj.weight";
        let head = self.index * (l.nope + a.v_dim);
        vec![match slot {
            Slot::KvDown => Recipe::rows(down, 0..l.kv_rank),
            Slot::KRope => Recipe::rows(down, l.kv_rank..l.kv_rank + l.rope),
            Slot::KvDownBias => Recipe::cols(DOWN_BIAS, 0, l.kv_rank),
            Slot::KRopeBias => Recipe::cols(DOWN_BIAS, l.kv_rank, l.rope),
            Slot::KAbsorb => Recipe { transpose: true, ..Recipe::rows(up, head..head + l.nope) },
            _ => Recipe::rows(up, head + l.nope..head + l.nope + a.v_dim),
        }]
    }

    fn mlp(&self, slot: Slot) -> Candidates {
        let Ffn::Dense(m) = &self.layer.ffn else { return Vec::new() };
        let packed = "mlp.gate_up_proj.weight";
        let n = m.inter;
        match slot {
            Slot::Gate => {
                or_part(&["mlp.gate_proj.weight", "feed_forward.w1.weight"], packed, 0..n)
            }
            Slot::Up => or_part(
                &["mlp.up_proj.weight", "mlp.fc1.weight", "feed_forward.w3.weight"],
                packed,
                n..2 * n,
            ),
            _ => whole(&["mlp.down_proj.weight", "mlp.fc2.weight", "feed_forward.w2.weight"]),
        }
    }

    fn shared(&self, part: &str) -> Candidates {
        ["shared_expert", "shared_experts"]
            .iter()
            .map(|s| Recipe::whole(format!("mlp.{s}.{part}")))
            .collect()
    }

    fn expert(&self, slot: Slot) -> Candidates {
        let Ffn::Moe(m) = &self.layer.ffn else { return Vec::new() };
        let e = self.index;
        let (long, short) = match slot {
            Slot::ExpertGate => ("gate_proj", "w1"),
            Slot::ExpertUp => ("up_proj", "w3"),
            Slot::ExpertDown => ("down_proj", "w2"),
            _ => return vec![expert_bias(m, slot, e, self.hidden)],
        };
        let mut all = Vec::new();
        for block in ["mlp", "block_sparse_moe"] {
            for name in [long, short] {
                all.push(Recipe::whole(format!("{block}.experts.{e}.{name}.weight")));
            }
            all.push(stacked(m, slot, e, self.hidden, block));
        }
        all
    }
}

/// InternLM2 packs, per key/value head, its query heads, the key and the value.
fn grouped(a: &Attn, slot: Slot) -> Recipe {
    let per_kv = a.heads / a.kv_heads.max(1);
    let group = (per_kv + 2) * a.k_dim;
    let (start, len) = match slot {
        Slot::Q => (0, per_kv * a.k_dim),
        Slot::K => (per_kv * a.k_dim, a.k_dim),
        _ => ((per_kv + 1) * a.k_dim, a.k_dim),
    };
    let rows = (0..a.kv_heads).map(|g| g * group + start..g * group + start + len).collect();
    Recipe { rows, ..Recipe::whole("attention.wqkv.weight") }
}

/// gpt-oss stores experts transposed, with gate and up columns interleaved.
fn interleaved(m: &Moe) -> bool {
    matches!(m.act, Activation::ClampedSwiglu { .. })
}

/// An expert in a 3-D tensor of all experts.
fn stacked(m: &Moe, slot: Slot, e: usize, hidden: usize, block: &str) -> Recipe {
    let n = m.inter;
    if slot == Slot::ExpertDown {
        let name = format!("{block}.experts.down_proj");
        return match interleaved(m) {
            true => Recipe { transpose: true, ..Recipe::rows(name, e * n..(e + 1) * n) },
            false => Recipe::rows(name, e * hidden..(e + 1) * hidden),
        };
    }
    let name = format!("{block}.experts.gate_up_proj");
    let second = usize::from(slot == Slot::ExpertUp);
    if interleaved(m) {
        let cols = Some(Cols { start: second, len: n, step: 2 });
        let rows = Recipe::rows(name, e * hidden..(e + 1) * hidden);
        return Recipe { cols, transpose: true, ..rows };
    }
    let start = (2 * e + second) * n;
    Recipe::rows(name, start..start + n)
}

fn expert_bias(m: &Moe, slot: Slot, e: usize, hidden: usize) -> Recipe {
    let (name, cols) = match slot {
        Slot::ExpertGateBias => ("gate_up_proj_bias", Cols { start: 0, len: m.inter, step: 2 }),
        Slot::ExpertUpBias => ("gate_up_proj_bias", Cols { start: 1, len: m.inter, step: 2 }),
        _ => ("down_proj_bias", Cols { start: 0, len: hidden, step: 1 }),
    };
    Recipe { cols: Some(cols), ..Recipe::rows(format!("mlp.experts.{name}"), e..e + 1) }
}
