//! The places of packed, fused, transposed and per-head weights in tensors.

use serde_json::json;
use troika_model::spec::{Cols, Key, Recipe, WeightRole};

use crate::{golden, llama, model, with};

fn candidates(config: &serde_json::Value, key: Key) -> Vec<Recipe> {
    let m = model(config);
    m.names.candidates(&m.spec, key)
}

fn has(config: &serde_json::Value, key: Key, recipe: Recipe) {
    let all = candidates(config, key);
    assert!(all.contains(&recipe), "{recipe:?} is not in {all:?}");
}

#[test]
fn prefixes() {
    let key = Key::layer(1, WeightRole::Q);
    for prefix in ["model.", "", "language_model.model.", "model.language_model."] {
        has(&llama(), key, Recipe::whole(format!("{prefix}layers.1.self_attn.q_proj.weight")));
    }
    let head = Key::model(WeightRole::Head);
    for name in ["lm_head.weight", "output.weight", "language_model.lm_head.weight"] {
        has(&llama(), head, Recipe::whole(name));
    }
}

#[test]
fn layers_that_are_not_there_have_no_candidates() {
    assert_eq!(candidates(&llama(), Key::layer(2, WeightRole::Q)), []);
    assert_eq!(candidates(&llama(), Key::indexed(0, WeightRole::ExpertGate, 0)), []);
}

#[test]
fn phi3_packs_rows() {
    let config = golden("phi-3");
    let at = |role, name: &str, rows| {
        let tensor = format!("model.layers.0.{name}");
        has(&config, Key::layer(0, role), Recipe::rows(tensor, rows));
    };
    at(WeightRole::Q, "self_attn.qkv_proj.weight", 0..32);
    at(WeightRole::K, "self_attn.qkv_proj.weight", 32..48);
    at(WeightRole::V, "self_attn.qkv_proj.weight", 48..64);
    at(WeightRole::Gate, "mlp.gate_up_proj.weight", 0..112);
    at(WeightRole::Up, "mlp.gate_up_proj.weight", 112..224);
}

#[test]
fn internlm2_packs_by_group() {
    let config = with(llama(), json!({"model_type": "internlm2"}));
    // Two groups, each of two query heads, a key and a value, 16 wide.
    let at = |role, rows: [std::ops::Range<usize>; 2]| {
        let whole = Recipe::whole("model.layers.0.attention.wqkv.weight");
        has(&config, Key::layer(0, role), Recipe { rows: rows.to_vec(), ..whole });
    };
    at(WeightRole::Q, [0..32, 64..96]);
    at(WeightRole::K, [32..48, 96..112]);
    at(WeightRole::V, [48..64, 112..128]);
    let whole = |role, name: &str| {
        let tensor = format!("model.layers.0.{name}.weight");
        has(&config, Key::layer(0, role), Recipe::whole(tensor));
    };
    whole(WeightRole::O, "attention.wo");
    whole(WeightRole::AttnPre, "attention_norm");
    whole(WeightRole::FfnPre, "ffn_norm");
    whole(WeightRole::Gate, "feed_forward.w1");
    whole(WeightRole::Down, "feed_forward.w2");
    whole(WeightRole::Up, "feed_forward.w3");
    has(&config, Key::model(WeightRole::Embed), Recipe::whole("model.tok_embeddings.weight"));
}

#[test]
fn experts_one_by_one_and_fused() {
    let config = golden("mixtral");
    let at = |role, recipe| has(&config, Key::indexed(2, role, 3), recipe);
    let prefix = "model.layers.2";
    for (role, old, new) in [
        (WeightRole::ExpertGate, "w1", "gate_proj"),
        (WeightRole::ExpertUp, "w3", "up_proj"),
        (WeightRole::ExpertDown, "w2", "down_proj"),
    ] {
        at(role, Recipe::whole(format!("{prefix}.block_sparse_moe.experts.3.{old}.weight")));
        at(role, Recipe::whole(format!("{prefix}.mlp.experts.3.{new}.weight")));
    }
    // [experts, 2 * inter, hidden], gate first; [experts, hidden, inter].
    let gate_up = format!("{prefix}.mlp.experts.gate_up_proj");
    at(WeightRole::ExpertGate, Recipe::rows(gate_up.clone(), 960..1120));
    at(WeightRole::ExpertUp, Recipe::rows(gate_up, 1120..1280));
    at(WeightRole::ExpertDown, Recipe::rows(format!("{prefix}.mlp.experts.down_proj"), 192..256));
}

#[test]
fn gpt_oss_interleaves_and_transposes() {
    let config = golden("gpt-oss");
    let at = |role, recipe| has(&config, Key::indexed(0, role, 1), recipe);
    let name = |n: &str| format!("model.layers.0.mlp.experts.{n}");
    let cols = |start| Some(Cols { start, len: 112, step: 2 });
    // [experts, hidden, 2 * inter], gate in the even columns; [experts, inter, hidden].
    let gate_up = || Recipe { transpose: true, ..Recipe::rows(name("gate_up_proj"), 96..192) };
    at(WeightRole::ExpertGate, Recipe { cols: cols(0), ..gate_up() });
    at(WeightRole::ExpertUp, Recipe { cols: cols(1), ..gate_up() });
    let down = Recipe { transpose: true, ..Recipe::rows(name("down_proj"), 112..224) };
    at(WeightRole::ExpertDown, down);
    let bias = |n| Recipe::rows(name(n), 1..2);
    at(WeightRole::ExpertGateBias, Recipe { cols: cols(0), ..bias("gate_up_proj_bias") });
    at(WeightRole::ExpertUpBias, Recipe { cols: cols(1), ..bias("gate_up_proj_bias") });
    let all = Some(Cols { start: 0, len: 96, step: 1 });
    at(WeightRole::ExpertDownBias, Recipe { cols: all, ..bias("down_proj_bias") });
}

#[test]
fn latent_attention_is_cut_by_head() {
    let config = golden("deepseek-v2");
    let name = |n: &str| format!("model.layers.0.self_attn.{n}.weight");
    let down = name("kv_a_proj_with_mqa");
    has(&config, Key::layer(0, WeightRole::KvDown), Recipe::rows(down.clone(), 0..32));
    has(&config, Key::layer(0, WeightRole::KRope), Recipe::rows(down, 32..40));
    let up = name("kv_b_proj");
    let absorb = Recipe { transpose: true, ..Recipe::rows(up.clone(), 64..80) };
    has(&config, Key::indexed(0, WeightRole::KAbsorb, 2), absorb);
    has(&config, Key::indexed(0, WeightRole::VUp, 2), Recipe::rows(up, 80..96));
}

#[test]
fn the_same_name_is_another_norm_in_sandwiches() {
    let first = |config: &serde_json::Value, role| {
        candidates(config, Key::layer(0, role))[0].tensor.clone()
    };
    let after = "model.layers.0.post_attention_layernorm.weight";
    assert_eq!(first(&llama(), WeightRole::FfnPre), after);
    // GLM-4 has this name for the one before the feed-forward.
    let mixed = "model.layers.0.post_self_attn_layernorm.weight";
    let of = |name| candidates(&golden(name), Key::layer(0, WeightRole::AttnPost));
    let names = |name| of(name).into_iter().map(|of| of.tensor).collect::<Vec<_>>();
    assert_eq!(names("gemma-2")[..2], [mixed, after]);
    let before = "model.layers.0.pre_feedforward_layernorm.weight";
    assert_eq!(first(&golden("gemma-2"), WeightRole::FfnPre), before);
    assert_eq!(names("exaone-4")[..2], [mixed, after]);
}
