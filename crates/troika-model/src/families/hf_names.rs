//! Tensor names of Hugging Face checkpoints in one table for all families. Equal names have equal
//! meanings everywhere, except for norms around feed-forwards.

use troika_graph::Activation;

use super::delta_names;
use super::names::{
    Candidates, TensorNames, beside_queries, beside_weight, gate_rows, mamba_of, mamba_rows,
    packed_rows, whole,
};
use crate::spec::{
    Attn, Cols, Key, Layer, Mixer, ModelSpec, Moe, Recipe, WeightRole, WeightRole as W,
};

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
        if let Some(biases) = beside_weight(self, spec, key) {
            return biases;
        }
        let mut all = self.places(spec, key);
        let is_norm = [W::AttnPre, W::FfnPre, W::FinalNorm];
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
    let (to, from) = (format!("altup_projections.{i}"), format!("altup_unembed_projections.{i}"));
    let names: &str = match key.role {
        W::Embed => "embed_tokens tok_embeddings embeddings word_embeddings",
        W::FinalNorm => "norm final_layernorm embedding_norm norm_f",
        W::Head => return modules("lm_head output language_model.lm_head"),
        W::PerLayerEmbed => "embed_tokens_per_layer",
        W::PerLayerIn => "per_layer_model_projection",
        W::PerLayerInNorm => "per_layer_projection_norm",
        W::AltIn => &to,
        W::AltOut => &from,
        _ => return Vec::new(),
    };
    // Rows behind those of tokens are for pictures and sounds.
    let tables = [W::Embed, W::PerLayerEmbed];
    let cut = spec.altup.is_some() && tables.contains(&key.role);
    PREFIXES
        .iter()
        .flat_map(|p| modules(names).into_iter().map(move |r| format!("{p}{}", r.tensor)))
        .map(|n| if cut { Recipe::rows(n, 0..spec.vocab) } else { Recipe::whole(n) })
        .collect()
}

/// The weights of modules, in a list like that of [`whole`].
fn modules(list: &str) -> Candidates {
    list.split(' ').map(|module| Recipe::whole(format!("{module}.weight"))).collect()
}

/// A weight of one layer (and one expert or head).
struct One<'a> {
    layer: &'a Layer,
    hidden: usize,
    index: usize,
}

impl One<'_> {
    fn recipes(&self, role: WeightRole) -> Candidates {
        if let Some(Mixer::DeltaRule(d)) = &self.layer.mixer
            && let Some(all) = delta_names::hf(d, role, self.index)
        {
            return all;
        }
        modules(match role {
            W::Q => return self.qkv("q_proj", role),
            W::V if self.layer.attention().is_none_or(|a| !a.v_is_k) => {
                return self.qkv("v_proj", role);
            }
            W::K | W::V => return self.qkv("k_proj", W::K),
            W::O => "self_attn.o_proj self_attn.dense attention.wo self_attn.out_proj mixer.o_proj",
            W::QNorm => "self_attn.q_norm self_attn.q_layernorm self_attn.query_layernorm",
            W::KNorm => "self_attn.k_norm self_attn.k_layernorm self_attn.key_layernorm",
            W::AttnGate => return self.gate(),
            W::Sinks => return whole("self_attn.sinks self_attn.attention_sink_bias"),
            W::QDown => "self_attn.q_a_proj",
            W::QUp => "self_attn.q_b_proj",
            W::KvDownNorm => "self_attn.kv_a_layernorm",
            W::KvDown | W::KRope | W::KAbsorb | W::VUp => return self.latent(role),
            W::QDownNorm => "self_attn.q_a_layernorm",
            _ => {
                let beside = self.norm(role).or_else(|| self.mixer(role));
                return beside.unwrap_or_else(|| self.feed_forward(role));
            }
        })
    }

    /// Norms around mixers and feed-forwards.
    fn norm(&self, role: WeightRole) -> Option<Candidates> {
        // In models with a norm after attention, that norm has the name of the one before the
        // feed-forward.
        let sandwich = self.layer.attn_post.is_some();
        Some(modules(match role {
            W::AttnPre => {
                "input_layernorm attention_norm attention_layer_norm operator_norm norm \
                 attention_layernorm"
            }
            W::AttnPost => {
                "post_self_attn_layernorm post_attention_layernorm post_operator_norm \
                 feedforward_layer_norm"
            }
            W::FfnPost => "post_feedforward_layernorm post_mlp_layernorm post_ffn_norm",
            W::FfnPre if sandwich => {
                "pre_feedforward_layernorm pre_mlp_layernorm ffn_norm post_attention_layernorm"
            }
            W::FfnPre => {
                "post_attention_layernorm ffn_norm pre_ff_layernorm feedforward_layer_norm norm \
                 feedforward_layernorm"
            }
            W::RouterNorm => return Some(whole("router.scale")),
            W::ExpertPre => "pre_feedforward_layernorm_2",
            W::ExpertPost => "post_feedforward_layernorm_2",
            W::SharedPost => "post_feedforward_layernorm_1",
            W::ExpertScales => return Some(whole("router.per_expert_scale")),
            W::PerLayerGate => "per_layer_input_gate",
            W::PerLayerUp => "per_layer_projection",
            W::PerLayerNorm => "post_per_layer_input_norm",
            W::AltRouter => "altup.modality_router",
            W::AltRouterNorm => "altup.router_norm",
            W::AltPredict => "altup.prediction_coefs",
            W::AltCorrect => "altup.correction_coefs",
            W::AltScale => return Some(whole("altup.correct_output_scale")),
            W::LaurelDown => "laurel.linear_left",
            W::LaurelUp => "laurel.linear_right",
            W::LaurelNorm => "laurel.post_laurel_norm",
            _ => return None,
        }))
    }

    /// Tensors of mixers beside attention.
    fn mixer(&self, role: WeightRole) -> Option<Candidates> {
        Some(match role {
            W::MixIn | W::MixGate | W::MixStep => self.mix_in(role),
            W::MixOut => mixers("out_proj.weight"),
            W::MixConv => modules("mamba.conv1d mixer.conv1d conv.conv"),
            W::MixRate => mixers("A_log"),
            W::MixSkip => mixers("D"),
            W::MixStepShift => mixers("dt_bias"),
            W::MixNorm => mixers("norm.weight"),
            _ => return None,
        })
    }

    /// Tensors of feed-forwards, dense and of experts.
    fn feed_forward(&self, role: WeightRole) -> Candidates {
        modules(match role {
            W::Gate | W::Up | W::Down => return self.mlp(role),
            W::Router => {
                "mlp.gate block_sparse_moe.gate mlp.router block_sparse_moe.router \
                 mlp.router.gate block_sparse_moe.router.layer feed_forward.gate mixer.gate \
                 router.proj"
            }
            W::ExpertChoice => {
                return whole(
                    "mlp.gate.e_score_correction_bias mlp.e_score_correction_bias \
                     block_sparse_moe.e_score_correction_bias \
                     mlp.moe_statics.e_score_correction_bias \
                     mlp.experts.e_score_correction_bias mlp.expert_bias \
                     feed_forward.expert_bias mixer.gate.e_score_correction_bias \
                     mlp.gate.expert_bias",
                );
            }
            W::SharedGate => return self.shared("gate_proj", role),
            W::SharedUp => return self.shared("up_proj", role),
            W::SharedDown => return self.shared("down_proj", role),
            W::SharedOutGate => "mlp.shared_expert_gate",
            _ => return self.expert(role),
        })
    }

    /// A projection, or its rows in one that packs q, k and v in this order.
    fn qkv(&self, name: &str, role: WeightRole) -> Candidates {
        let Some(a) = self.layer.attention() else { return Vec::new() };
        if let Some(beside) = beside_queries(a, role, "self_attn.q_proj.weight") {
            return vec![beside];
        }
        let mut all = modules(&format!("self_attn.{name} mixer.{name}"));
        all.push(Recipe::rows("self_attn.qkv_proj.weight", packed_rows(a, role)));
        all.push(grouped(a, role));
        all
    }

    /// The gate of heads' outputs: a head's one number becomes a row for each of its elements.
    fn gate(&self) -> Candidates {
        let Some(a) = self.layer.attention() else { return Vec::new() };
        if let Some(beside) = beside_queries(a, W::AttnGate, "self_attn.q_proj.weight") {
            return vec![beside];
        }
        ["self_attn.gate_proj.weight", "self_attn.g_proj.weight"].map(|n| gate_rows(a, n)).to_vec()
    }

    /// The input projection of a mixer, or rows of the one of Mamba-2.
    fn mix_in(&self, role: WeightRole) -> Candidates {
        let Some(m) = mamba_of(self.layer) else { return mixers("in_proj.weight") };
        let packed = ["mamba.in_proj.weight", "mixer.in_proj.weight"];
        packed.map(|name| Recipe::rows(name, mamba_rows(m, role))).to_vec()
    }

    fn shared(&self, part: &str, role: WeightRole) -> Candidates {
        let blocks = "mlp.shared_expert mlp.shared_experts mlp.shared_mlp mixer.shared_experts mlp";
        let in_block = |block: &str| Recipe::whole(format!("{block}.{part}.weight"));
        let mut all: Candidates = blocks.split(' ').map(in_block).collect();
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
            W::KvDown => Recipe::rows(down, 0..l.kv_rank),
            W::KRope => Recipe::rows(down, l.kv_rank..l.kv_rank + l.rope),
            W::KAbsorb => Recipe { transpose: true, ..Recipe::rows(up, head..head + l.nope) },
            _ => Recipe::rows(up, head + l.nope..head + l.nope + a.v_dim),
        }]
    }

    fn mlp(&self, role: WeightRole) -> Candidates {
        let Some(m) = self.layer.dense() else { return Vec::new() };
        let n = m.inter;
        let (names, packed) = match role {
            W::Gate => ("mlp.gate_proj feed_forward.w1 feed_forward.gate_proj", Some(0..n)),
            W::Up => (
                "mlp.up_proj mlp.fc1 feed_forward.w3 mlp.c_fc feed_forward.up_proj mixer.up_proj",
                Some(n..2 * n),
            ),
            _ => (
                "mlp.down_proj mlp.fc2 feed_forward.w2 mlp.c_proj feed_forward.down_proj \
                 mixer.down_proj",
                None,
            ),
        };
        let mut all = modules(names);
        all.extend(packed.map(|rows| Recipe::rows("mlp.gate_up_proj.weight", rows)));
        all.push(granite_shared(role, n));
        all
    }

    fn expert(&self, role: WeightRole) -> Candidates {
        let Some(m) = self.layer.moe() else { return Vec::new() };
        let e = self.index;
        let (long, short) = match role {
            W::ExpertGate => ("gate_proj", "w1"),
            W::ExpertUp => ("up_proj", "w3"),
            W::ExpertDown => ("down_proj", "w2"),
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
        let part = if role == W::ExpertDown { "output" } else { "input" };
        let tensor = format!("block_sparse_moe.{part}_linear.weight");
        all.push(Recipe { tensor, ..stacked });
        // MLX stacks experts by matrix.
        let n = if role == W::ExpertDown { self.hidden } else { m.inter };
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
        W::SharedGate | W::Gate => Recipe::rows("shared_mlp.input_linear.weight", 0..inter),
        W::SharedUp | W::Up => Recipe::rows("shared_mlp.input_linear.weight", inter..2 * inter),
        _ => Recipe::whole("shared_mlp.output_linear.weight"),
    }
}

/// InternLM2 packs by key/value head: its query heads, the key and the value.
fn grouped(a: &Attn, role: WeightRole) -> Recipe {
    let per_kv = a.heads / a.kv_heads.max(1);
    let group = (per_kv + 2) * a.k_dim;
    let (start, len) = match role {
        W::Q => (0, per_kv * a.k_dim),
        W::K => (per_kv * a.k_dim, a.k_dim),
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
    if role == W::ExpertDown {
        let name = format!("{block}.experts.down_proj");
        return match interleaved(m) {
            true => Recipe { transpose: true, ..Recipe::rows(name, e * n..(e + 1) * n) },
            false => Recipe::rows(name, e * hidden..(e + 1) * hidden),
        };
    }
    let name = format!("{block}.experts.gate_up_proj");
    let second = usize::from(role == W::ExpertUp);
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
        W::ExpertGateBias => ("gate_up_proj_bias", Cols { start: 0, len: m.inter, step: 2 }),
        W::ExpertUpBias => ("gate_up_proj_bias", Cols { start: 1, len: m.inter, step: 2 }),
        _ => ("down_proj_bias", Cols { start: 0, len: hidden, step: 1 }),
    };
    Recipe { cols: Some(cols), ..Recipe::rows(format!("mlp.experts.{name}"), e..e + 1) }
}
