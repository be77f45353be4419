//! Tensor names of Hugging Face checkpoints in one table for all families. Equal names have equal
//! meanings everywhere, except for norms around feed-forwards.

use std::ops::Range;

use troika_graph::Activation;

use super::delta_names;
use super::names::{
    Candidates, TensorNames, beside_queries, gate_rows, mamba_of, mamba_rows, packed_rows, whole,
};
use crate::spec::{Attn, Key, Layer, Mixer, ModelSpec, Moe, WeightRole};
use crate::spec::{Cols, Recipe};

/// Prefixes of the decoder's tensors: the usual one, none, and the ones of multimodal models.
const PREFIXES: [&str; 5] =
    ["model.", "", "language_model.model.", "model.language_model.", "backbone."];

/// Families that name some modules otherwise.
const RENAMING: [&str; 2] = ["bailing_hybrid", "kimi_linear"];
/// These modules, and their other names.
const MODULES: [(&str, &str); 2] = [("self_attn.", "attention."), ("mlp.", "block_sparse_moe.")];

pub(super) struct HfNames;

impl TensorNames for HfNames {
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates {
        let mut all = self.places(spec, key);
        let is_norm = [WeightRole::AttnPre, WeightRole::FfnPre, WeightRole::FinalNorm];
        if spec.family == "nemotron" && is_norm.contains(&key.role) {
            all.iter_mut().for_each(|recipe| recipe.plus_one = true);
        }
        all
    }

    fn layer(&self, tensor: &str) -> Option<usize> {
        let inside = |p: &str| tensor.strip_prefix(p)?.strip_prefix("layers.")?.split_once('.');
        PREFIXES.iter().find_map(|p| inside(p)?.0.parse().ok())
    }

    fn layers_key(&self) -> &'static str {
        "num_hidden_layers"
    }
}

impl HfNames {
    fn places(&self, spec: &ModelSpec, key: Key) -> Candidates {
        let Some(index) = key.layer else { return outer(spec, key) };
        let Some(layer) = spec.layers.get(index) else { return Vec::new() };
        let one = One { layer, hidden: spec.hidden, index: key.index.unwrap_or(0) };
        let recipes = one.recipes(key.role);
        let mut all = Vec::with_capacity(recipes.len() * PREFIXES.len());
        let renames = RENAMING.contains(&&*spec.family);
        for prefix in PREFIXES {
            let named = |name: &str| format!("{prefix}layers.{index}.{name}");
            let place = |name: &str, r: &Recipe| Recipe {
                tensor: named(name),
                below: r.below.iter().map(|name| named(name)).collect(),
                ..r.clone()
            };
            all.extend(recipes.iter().map(|r| place(&r.tensor, r)));
            let modules = if renames { &MODULES[..] } else { &[] };
            for (usual, other) in modules {
                let renamed = recipes.iter().filter_map(|r| {
                    let rest = r.tensor.strip_prefix(*usual)?;
                    Some(place(&format!("{other}{rest}"), r))
                });
                all.extend(renamed);
            }
        }
        all
    }
}

fn outer(spec: &ModelSpec, key: Key) -> Candidates {
    let i = key.index.unwrap_or(0);
    let (to, from) =
        (format!("altup_projections.{i}.weight"), format!("altup_unembed_projections.{i}.weight"));
    let names: &[&str] = match key.role {
        WeightRole::Embed => &[
            "embed_tokens.weight",
            "tok_embeddings.weight",
            "embeddings.weight",
            "word_embeddings.weight",
        ],
        WeightRole::FinalNorm => {
            &["norm.weight", "final_layernorm.weight", "embedding_norm.weight", "norm_f.weight"]
        }
        WeightRole::FinalNormBias => &["norm.bias", "final_layernorm.bias"],
        WeightRole::Head => {
            let all = ["lm_head.weight", "output.weight", "language_model.lm_head.weight"];
            return all.into_iter().map(Recipe::whole).collect();
        }
        WeightRole::HeadBias => return vec![Recipe::whole("lm_head.bias")],
        WeightRole::PerLayerEmbed => &["embed_tokens_per_layer.weight"],
        WeightRole::PerLayerIn => &["per_layer_model_projection.weight"],
        WeightRole::PerLayerInNorm => &["per_layer_projection_norm.weight"],
        WeightRole::AltIn => &[&to],
        WeightRole::AltOut => &[&from],
        _ => &[],
    };
    // Rows behind those of tokens are for pictures and sounds.
    let tables = [WeightRole::Embed, WeightRole::PerLayerEmbed];
    let cut = spec.altup.is_some() && tables.contains(&key.role);
    PREFIXES
        .iter()
        .flat_map(|p| names.iter().map(move |n| Recipe::whole(format!("{p}{n}"))))
        .map(|r| if cut { Recipe::rows(r.tensor, 0..spec.vocab) } else { r })
        .collect()
}

const DOWN_BIAS: &str = "self_attn.kv_a_proj_with_mqa.bias";

/// A weight of one layer (and one expert or head).
struct One<'a> {
    layer: &'a Layer,
    hidden: usize,
    index: usize,
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
    fn recipes(&self, role: WeightRole) -> Candidates {
        use WeightRole as W;
        if let Some(Mixer::DeltaRule(d)) = &self.layer.mixer
            && let Some(all) = delta_names::hf(d, role, self.index)
        {
            return all;
        }
        whole(match role {
            W::Q => return self.qkv("q_proj.weight", role),
            W::K => return self.qkv("k_proj.weight", role),
            W::V if self.layer.attention().is_some_and(|a| a.v_is_k) => {
                return self.qkv("k_proj.weight", W::K);
            }
            W::V => return self.qkv("v_proj.weight", role),
            W::QBias => return self.qkv("q_proj.bias", role),
            W::KBias => return self.qkv("k_proj.bias", role),
            W::VBias => return self.qkv("v_proj.bias", role),
            W::O => &[
                "self_attn.o_proj.weight",
                "self_attn.dense.weight",
                "attention.wo.weight",
                "self_attn.out_proj.weight",
                "mixer.o_proj.weight",
            ],
            W::OBias => &["self_attn.o_proj.bias", "self_attn.dense.bias", "mixer.o_proj.bias"],
            W::QNorm => &[
                "self_attn.q_norm.weight",
                "self_attn.q_layernorm.weight",
                "self_attn.query_layernorm.weight",
            ],
            W::KNorm => &[
                "self_attn.k_norm.weight",
                "self_attn.k_layernorm.weight",
                "self_attn.key_layernorm.weight",
            ],
            W::AttnGate => return self.gate(),
            W::QNormBias => &["self_attn.q_layernorm.bias"],
            W::KNormBias => &["self_attn.k_layernorm.bias"],
            W::Sinks => &["self_attn.sinks", "self_attn.attention_sink_bias"],
            W::QDownBias => &["self_attn.q_a_proj.bias"],
            W::QDown => &["self_attn.q_a_proj.weight"],
            W::QUp => &["self_attn.q_b_proj.weight"],
            W::KvDownNorm => &["self_attn.kv_a_layernorm.weight"],
            W::KvDown | W::KRope | W::KAbsorb | W::VUp | W::KvDownBias | W::KRopeBias => {
                return self.latent(role);
            }
            W::QDownNorm => &["self_attn.q_a_layernorm.weight"],
            _ => {
                let beside = self.norm(role).or_else(|| self.mixer(role));
                return beside.unwrap_or_else(|| self.feed_forward(role));
            }
        })
    }

    /// Norms around mixers and feed-forwards.
    fn norm(&self, role: WeightRole) -> Option<Candidates> {
        use WeightRole as W;
        // In models with a norm after attention, that norm has the name of the one before the
        // feed-forward.
        let sandwich = self.layer.attn_post.is_some();
        Some(whole(match role {
            W::AttnPre => &[
                "input_layernorm.weight",
                "attention_norm.weight",
                "attention_layer_norm.weight",
                "operator_norm.weight",
                "norm.weight",
                "attention_layernorm.weight",
            ],
            W::AttnPreBias => &["input_layernorm.bias"],
            W::AttnPost => &[
                "post_self_attn_layernorm.weight",
                "post_attention_layernorm.weight",
                "post_operator_norm.weight",
                "feedforward_layer_norm.weight",
            ],
            W::FfnPost => &[
                "post_feedforward_layernorm.weight",
                "post_mlp_layernorm.weight",
                "post_ffn_norm.weight",
            ],
            W::FfnPre if sandwich => &[
                "pre_feedforward_layernorm.weight",
                "pre_mlp_layernorm.weight",
                "ffn_norm.weight",
                "post_attention_layernorm.weight",
            ],
            W::FfnPre => &[
                "post_attention_layernorm.weight",
                "ffn_norm.weight",
                "pre_ff_layernorm.weight",
                "feedforward_layer_norm.weight",
                "norm.weight",
                "feedforward_layernorm.weight",
            ],
            W::FfnPreBias => &["post_attention_layernorm.bias"],
            W::RouterNorm => &["router.scale"],
            W::ExpertPre => &["pre_feedforward_layernorm_2.weight"],
            W::ExpertPost => &["post_feedforward_layernorm_2.weight"],
            W::SharedPost => &["post_feedforward_layernorm_1.weight"],
            W::ExpertScales => &["router.per_expert_scale"],
            W::PerLayerGate => &["per_layer_input_gate.weight"],
            W::PerLayerUp => &["per_layer_projection.weight"],
            W::PerLayerNorm => &["post_per_layer_input_norm.weight"],
            W::AltRouter => &["altup.modality_router.weight"],
            W::AltRouterNorm => &["altup.router_norm.weight"],
            W::AltPredict => &["altup.prediction_coefs.weight"],
            W::AltCorrect => &["altup.correction_coefs.weight"],
            W::AltScale => &["altup.correct_output_scale"],
            W::LaurelDown => &["laurel.linear_left.weight"],
            W::LaurelUp => &["laurel.linear_right.weight"],
            W::LaurelNorm => &["laurel.post_laurel_norm.weight"],
            _ => return None,
        }))
    }

    /// Tensors of mixers beside attention.
    fn mixer(&self, role: WeightRole) -> Option<Candidates> {
        use WeightRole as W;
        Some(match role {
            W::MixIn | W::MixGate | W::MixStep => self.mix_in("weight", role),
            W::MixInBias | W::MixGateBias | W::MixStepBias => self.mix_in("bias", role),
            W::MixOut => mixers("out_proj.weight"),
            W::MixOutBias => mixers("out_proj.bias"),
            W::MixConv => {
                whole(&["mamba.conv1d.weight", "mixer.conv1d.weight", "conv.conv.weight"])
            }
            W::MixConvBias => whole(&["mamba.conv1d.bias", "mixer.conv1d.bias", "conv.conv.bias"]),
            W::MixRate => mixers("A_log"),
            W::MixSkip => mixers("D"),
            W::MixStepShift => mixers("dt_bias"),
            W::MixNorm => mixers("norm.weight"),
            _ => return None,
        })
    }

    /// Tensors of feed-forwards, dense and of experts.
    fn feed_forward(&self, role: WeightRole) -> Candidates {
        use WeightRole as W;
        whole(match role {
            W::Gate | W::Up | W::Down => return self.mlp(role),
            W::GateBias => &["mlp.gate_proj.bias"],
            W::UpBias => &["mlp.up_proj.bias", "mlp.fc1.bias", "mlp.c_fc.bias"],
            W::DownBias => &["mlp.down_proj.bias", "mlp.fc2.bias", "mlp.c_proj.bias"],
            W::Router => &[
                "mlp.gate.weight",
                "block_sparse_moe.gate.weight",
                "mlp.router.weight",
                "block_sparse_moe.router.weight",
                "mlp.router.gate.weight",
                "block_sparse_moe.router.layer.weight",
                "feed_forward.gate.weight",
                "mixer.gate.weight",
                "router.proj.weight",
            ],
            W::ExpertChoice => &[
                "mlp.gate.e_score_correction_bias",
                "mlp.e_score_correction_bias",
                "block_sparse_moe.e_score_correction_bias",
                "mlp.moe_statics.e_score_correction_bias",
                "mlp.experts.e_score_correction_bias",
                "mlp.expert_bias",
                "feed_forward.expert_bias",
                "mixer.gate.e_score_correction_bias",
                "mlp.gate.expert_bias",
            ],
            W::RouterBias => &["mlp.router.bias", "mlp.gate.bias"],
            W::SharedGate => return self.shared("gate_proj.weight", role),
            W::SharedGateBias => return self.shared("gate_proj.bias", role),
            W::SharedUp => return self.shared("up_proj.weight", role),
            W::SharedUpBias => return self.shared("up_proj.bias", role),
            W::SharedDown => return self.shared("down_proj.weight", role),
            W::SharedDownBias => return self.shared("down_proj.bias", role),
            W::SharedOutGate => &["mlp.shared_expert_gate.weight"],
            _ => return self.expert(role),
        })
    }

    /// A projection, or its rows in one that packs q, k and v in this order.
    fn qkv(&self, name: &str, role: WeightRole) -> Candidates {
        let Some(a) = self.layer.attention() else { return Vec::new() };
        if let Some(beside) = beside_queries(a, role, "self_attn.q_proj.weight") {
            return vec![beside];
        }
        let bias = name.ends_with("bias");
        let packed = if bias { "self_attn.qkv_proj.bias" } else { "self_attn.qkv_proj.weight" };
        let names = [&*format!("self_attn.{name}"), &format!("mixer.{name}")];
        let mut all = or_part(&names, packed, packed_rows(a, role));
        if !bias {
            all.push(grouped(a, role));
        }
        all
    }

    /// The gate of heads' outputs: a head's one number becomes a row for each of its elements.
    fn gate(&self) -> Candidates {
        let Some(a) = self.layer.attention() else { return Vec::new() };
        if let Some(beside) = beside_queries(a, WeightRole::AttnGate, "self_attn.q_proj.weight") {
            return vec![beside];
        }
        ["self_attn.gate_proj.weight", "self_attn.g_proj.weight"].map(|n| gate_rows(a, n)).to_vec()
    }

    /// The input projection of a mixer, or rows of the one of Mamba-2.
    fn mix_in(&self, part: &str, role: WeightRole) -> Candidates {
        let Some(m) = mamba_of(self.layer) else { return mixers(&format!("in_proj.{part}")) };
        let range = mamba_rows(m, role);
        let packed = |block| or_part(&[], &format!("{block}.in_proj.{part}"), range.clone());
        ["mamba", "mixer"].into_iter().flat_map(packed).collect()
    }

    fn shared(&self, part: &str, role: WeightRole) -> Candidates {
        let blocks = [
            "mlp.shared_expert",
            "mlp.shared_experts",
            "mlp.shared_mlp",
            "mixer.shared_experts",
            "mlp",
        ];
        let mut all = blocks.map(|s| Recipe::whole(format!("{s}.{part}"))).to_vec();
        let shared = self.layer.moe().and_then(|m| m.shared);
        all.extend(shared.map(|s| granite_shared(role, s.inter)));
        all
    }

    fn latent(&self, role: WeightRole) -> Candidates {
        let Some(a) = self.layer.attention() else { return Vec::new() };
        let Some(l) = a.latent else { return Vec::new() };
        let down = "self_attn.kv_a_proj_with_mqa.weight";
        let up = "self_attn.kv_b_proj.weight";
        let head = self.index * (l.nope + a.v_dim);
        vec![match role {
            WeightRole::KvDown => Recipe::rows(down, 0..l.kv_rank),
            WeightRole::KRope => Recipe::rows(down, l.kv_rank..l.kv_rank + l.rope),
            WeightRole::KvDownBias => Recipe::cols(DOWN_BIAS, 0, l.kv_rank),
            WeightRole::KRopeBias => Recipe::cols(DOWN_BIAS, l.kv_rank, l.rope),
            WeightRole::KAbsorb => {
                Recipe { transpose: true, ..Recipe::rows(up, head..head + l.nope) }
            }
            _ => Recipe::rows(up, head + l.nope..head + l.nope + a.v_dim),
        }]
    }

    fn mlp(&self, role: WeightRole) -> Candidates {
        let Some(m) = self.layer.dense() else { return Vec::new() };
        let packed = "mlp.gate_up_proj.weight";
        let n = m.inter;
        let mut all = match role {
            WeightRole::Gate => or_part(
                &[
                    "mlp.gate_proj.weight",
                    "feed_forward.w1.weight",
                    "feed_forward.gate_proj.weight",
                ],
                packed,
                0..n,
            ),
            WeightRole::Up => or_part(
                &[
                    "mlp.up_proj.weight",
                    "mlp.fc1.weight",
                    "feed_forward.w3.weight",
                    "mlp.c_fc.weight",
                    "feed_forward.up_proj.weight",
                    "mixer.up_proj.weight",
                ],
                packed,
                n..2 * n,
            ),
            _ => whole(&[
                "mlp.down_proj.weight",
                "mlp.fc2.weight",
                "feed_forward.w2.weight",
                "mlp.c_proj.weight",
                "feed_forward.down_proj.weight",
                "mixer.down_proj.weight",
            ]),
        };
        all.push(granite_shared(role, n));
        all
    }

    fn expert(&self, role: WeightRole) -> Candidates {
        let Some(m) = self.layer.moe() else { return Vec::new() };
        let e = self.index;
        let (long, short) = match role {
            WeightRole::ExpertGate => ("gate_proj", "w1"),
            WeightRole::ExpertUp => ("up_proj", "w3"),
            WeightRole::ExpertDown => ("down_proj", "w2"),
            _ => return vec![expert_bias(m, role, e, self.hidden)],
        };
        let mut all = Vec::new();
        for block in ["mlp", "block_sparse_moe", "feed_forward", "mixer"] {
            for name in [long, short] {
                all.push(Recipe::whole(format!("{block}.experts.{e}.{name}.weight")));
            }
            all.push(stacked(m, role, e, self.hidden, block));
        }
        // Gemma 4's lie beside its feed-forward, and Granite has other names for the same.
        let stacked = stacked(m, role, e, self.hidden, "block_sparse_moe");
        let tensor = stacked.tensor.replace("block_sparse_moe.", "");
        all.push(Recipe { tensor, ..stacked.clone() });
        let part = if role == WeightRole::ExpertDown { "output" } else { "input" };
        let tensor = format!("block_sparse_moe.{part}_linear.weight");
        all.push(Recipe { tensor, ..stacked });
        // MLX stacks experts by matrix.
        let n = if role == WeightRole::ExpertDown { self.hidden } else { m.inter };
        all.push(Recipe::rows(format!("mlp.switch_mlp.{long}.weight"), e * n..(e + 1) * n));
        all
    }
}

/// Tensors of Mamba-2, short convolutions and the recurrence of tests.
fn mixers(part: &str) -> Candidates {
    ["mamba", "mixer", "conv"].map(|m| Recipe::whole(format!("{m}.{part}"))).to_vec()
}

/// Granite packs the gate and the other inner projection of its shared feed-forward.
fn granite_shared(role: WeightRole, inter: usize) -> Recipe {
    match role {
        WeightRole::SharedGate | WeightRole::Gate => {
            Recipe::rows("shared_mlp.input_linear.weight", 0..inter)
        }
        WeightRole::SharedUp | WeightRole::Up => {
            Recipe::rows("shared_mlp.input_linear.weight", inter..2 * inter)
        }
        _ => Recipe::whole("shared_mlp.output_linear.weight"),
    }
}

/// InternLM2 packs by key/value head: its query heads, the key and the value.
fn grouped(a: &Attn, role: WeightRole) -> Recipe {
    let per_kv = a.heads / a.kv_heads.max(1);
    let group = (per_kv + 2) * a.k_dim;
    let (start, len) = match role {
        WeightRole::Q => (0, per_kv * a.k_dim),
        WeightRole::K => (per_kv * a.k_dim, a.k_dim),
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
fn stacked(m: &Moe, role: WeightRole, e: usize, hidden: usize, block: &str) -> Recipe {
    let n = m.inter;
    if role == WeightRole::ExpertDown {
        let name = format!("{block}.experts.down_proj");
        return match interleaved(m) {
            true => Recipe { transpose: true, ..Recipe::rows(name, e * n..(e + 1) * n) },
            false => Recipe::rows(name, e * hidden..(e + 1) * hidden),
        };
    }
    let name = format!("{block}.experts.gate_up_proj");
    let second = usize::from(role == WeightRole::ExpertUp);
    if interleaved(m) {
        let cols = Some(Cols { start: second, len: n, step: 2 });
        let rows = Recipe::rows(name, e * hidden..(e + 1) * hidden);
        return Recipe { cols, transpose: true, ..rows };
    }
    let start = (2 * e + second) * n;
    Recipe::rows(name, start..start + n)
}

fn expert_bias(m: &Moe, role: WeightRole, e: usize, hidden: usize) -> Recipe {
    let (name, cols) = match role {
        WeightRole::ExpertGateBias => {
            ("gate_up_proj_bias", Cols { start: 0, len: m.inter, step: 2 })
        }
        WeightRole::ExpertUpBias => ("gate_up_proj_bias", Cols { start: 1, len: m.inter, step: 2 }),
        _ => ("down_proj_bias", Cols { start: 0, len: hidden, step: 1 }),
    };
    Recipe { cols: Some(cols), ..Recipe::rows(format!("mlp.experts.{name}"), e..e + 1) }
}
