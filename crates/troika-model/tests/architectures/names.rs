//! Where tensors are: packed, fused, transposed and per-head weights.

use serde_json::json;
use troika_model::spec::{Cols, Key, Recipe, Slot};

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
    let key = Key::layer(1, Slot::Q);
    for prefix in ["model.", "", "language_model.model.", "model.language_model."] {
        has(&llama(), key, Recipe::whole(format!("{prefix}layers.1.self_attn.q_proj.weight")));
    }
    let head = Key::model(Slot::Head);
    for name in ["lm_head.weight", "output.weight", "language_model.lm_head.weight"] {
        has(&llama(), head, Recipe::whole(name));
    }
}

#[test]
fn layers_that_are_not_there_have_no_candidates() {
    assert_eq!(candidates(&llama(), Key::layer(2, Slot::Q)), []);
    assert_eq!(candidates(&llama(), Key::indexed(0, Slot::ExpertGate, 0)), []);
}

#[test]
fn phi3_packs_rows() {
    let config = golden("phi-3");
    let at = |slot, name: &str, rows| {
        let tensor = format!("model.layers.0.{name}");
        has(&config, Key::layer(0, slot), Recipe::rows(tensor, rows));
    };
    at(Slot::Q, "self_attn.qkv_proj.weight", 0..32);
    at(Slot::K, "self_attn.qkv_proj.weight", 32..48);
    at(Slot::V, "self_attn.qkv_proj.weight", 48..64);
    at(Slot::Gate, "mlp.gate_up_proj.weight", 0..112);
    at(Slot::Up, "mlp.gate_up_proj.weight", 112..224);
}

#[test]
fn internlm2_packs_by_group() {
    let config = with(llama(), json!({"model_type": "internlm2"}));
    // Two groups, each of two query heads, a key and a value, 16 wide.
    let at = |slot, rows: [std::ops::Range<usize>; 2]| {
        let whole = Recipe::whole("model.layers.0.attention.wqkv.weight");
        has(&config, Key::layer(0, slot), Recipe { rows: rows.to_vec(), ..whole });
    };
    at(Slot::Q, [0..32, 64..96]);
    at(Slot::K, [32..48, 96..112]);
    at(Slot::V, [48..64, 112..128]);
    let whole = |slot, name: &str| {
        let tensor = format!("model.layers.0.{name}.weight");
        has(&config, Key::layer(0, slot), Recipe::whole(tensor));
    };
    whole(Slot::O, "attention.wo");
    whole(Slot::AttnPre, "attention_norm");
    whole(Slot::FfnPre, "ffn_norm");
    whole(Slot::Gate, "feed_forward.w1");
    whole(Slot::Down, "feed_forward.w2");
    whole(Slot::Up, "feed_forward.w3");
    has(&config, Key::model(Slot::Embed), Recipe::whole("model.tok_embeddings.weight"));
}

#[test]
fn experts_one_by_one_and_fused() {
    let config = golden("mixtral");
    let at = |slot, recipe| has(&config, Key::indexed(2, slot, 3), recipe);
    let prefix = "model.layers.2";
    for (slot, old, new) in [
        (Slot::ExpertGate, "w1", "gate_proj"),
        (Slot::ExpertUp, "w3", "up_proj"),
        (Slot::ExpertDown, "w2", "down_proj"),
    ] {
        at(slot, Recipe::whole(format!("{prefix}.block_sparse_moe.experts.3.{old}.weight")));
        at(slot, Recipe::whole(format!("{prefix}.mlp.experts.3.{new}.weight")));
    }
    // [experts, 2 * inter, hidden], gate first; [experts, hidden, inter].
    let gate_up = format!("{prefix}.mlp.experts.gate_up_proj");
    at(Slot::ExpertGate, Recipe::rows(gate_up.clone(), 960..1120));
    at(Slot::ExpertUp, Recipe::rows(gate_up, 1120..1280));
    at(Slot::ExpertDown, Recipe::rows(format!("{prefix}.mlp.experts.down_proj"), 192..256));
}

#[test]
fn gpt_oss_interleaves_and_transposes() {
    let config = golden("gpt-oss");
    let at = |slot, recipe| has(&config, Key::indexed(0, slot, 1), recipe);
    let name = |n: &str| format!("model.layers.0.mlp.experts.{n}");
    let cols = |start| Some(Cols { start, len: 112, step: 2 });
    // [experts, hidden, 2 * inter], gate in the even columns; [experts, inter, hidden].
    let gate_up = || Recipe { transpose: true, ..Recipe::rows(name("gate_up_proj"), 96..192) };
    at(Slot::ExpertGate, Recipe { cols: cols(0), ..gate_up() });
    at(Slot::ExpertUp, Recipe { cols: cols(1), ..gate_up() });
    let down = Recipe { transpose: true, ..Recipe::rows(name("down_proj"), 112..224) };
    at(Slot::ExpertDown, down);
    let bias = |n| Recipe::rows(name(n), 1..2);
    at(Slot::ExpertGateBias, Recipe { cols: cols(0), ..bias("gate_up_proj_bias") });
    at(Slot::ExpertUpBias, Recipe { cols: cols(1), ..bias("gate_up_proj_bias") });
    let all = Some(Cols { start: 0, len: 96, step: 1 });
    at(Slot::ExpertDownBias, Recipe { cols: all, ..bias("down_proj_bias") });
}

#[test]
fn latent_attention_is_cut_by_head() {
    let config = golden("deepseek-v2");
    let name = |n: &str| format!("model.layers.0.self_attn.{n}.weight");
    let down = name("kv_a_proj_with_mqa");
    has(&config, Key::layer(0, Slot::KvDown), Recipe::rows(down.clone(), 0..32));
    has(&config, Key::layer(0, Slot::KRope), Recipe::rows(down, 32..40));
    let up = name("kv_b_proj");
    let absorb = Recipe { transpose: true, ..Recipe::rows(up.clone(), 64..80) };
    has(&config, Key::indexed(0, Slot::KAbsorb, 2), absorb);
    has(&config, Key::indexed(0, Slot::VUp, 2), Recipe::rows(up, 80..96));
}

#[test]
fn the_same_name_is_another_norm_in_sandwiches() {
    let first = |config: &serde_json::Value, slot| {
        candidates(config, Key::layer(0, slot))[0].tensor.clone()
    };
    let after = "model.layers.0.post_attention_layernorm.weight";
    assert_eq!(first(&llama(), Slot::FfnPre), after);
    assert_eq!(first(&golden("gemma-2"), Slot::AttnPost), after);
    let before = "model.layers.0.pre_feedforward_layernorm.weight";
    assert_eq!(first(&golden("gemma-2"), Slot::FfnPre), before);
    assert_eq!(first(&golden("exaone-4"), Slot::AttnPost), after);
}
