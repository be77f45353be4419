//! Configs: both formats, defaults, and refusals by name.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use troika_graph::{Activation, Score};
use troika_model::families::{ConfigError, from_config};
use troika_model::spec::{Ffn, ModelSpec, Norm, weight_requirements};

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap()
}

fn spec(config: &Value) -> ModelSpec {
    from_config(config).map_err(|e| e.to_string()).unwrap().spec
}

fn error(name: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut c = golden(name);
    edit(&mut c);
    from_config(&c).err().expect("accepted").to_string()
}

/// The format of transformers before version 5.
fn old_spelling(mut c: Value) -> Value {
    let map = c.as_object_mut().unwrap();
    if let Some(Value::Object(mut p)) = map.remove("rope_parameters") {
        map.insert("rope_theta".into(), p.remove("rope_theta").unwrap());
        if let Some(f) = p.remove("partial_rotary_factor") {
            map.insert("partial_rotary_factor".into(), f);
        }
        let kind = p.remove("rope_type").unwrap();
        if kind != "default" {
            p.insert("type".into(), kind);
            map.insert("rope_scaling".into(), Value::Object(p));
        } else {
            map.insert("rope_scaling".into(), Value::Null);
        }
    }
    if let Some(d) = map.remove("dtype") {
        map.insert("torch_dtype".into(), d);
    }
    if let Some(n) = map.remove("num_local_experts") {
        map.insert("num_experts".into(), n);
    }
    c
}

#[test]
fn old_and_new_spellings_give_one_spec() {
    for name in ["llama-3.2", "phi-2", "qwen3-moe", "deepseek-v2", "gpt-oss", "mixtral", "smollm3"]
    {
        assert_eq!(spec(&golden(name)), spec(&old_spelling(golden(name))), "{name}");
    }
    let mut old = golden("gemma-3");
    let map = old.as_object_mut().unwrap();
    map.remove("rope_parameters");
    map.remove("layer_types");
    map.insert("rope_theta".into(), json!(1e6));
    map.insert("rope_local_base_freq".into(), json!(1e4));
    map.insert("sliding_window_pattern".into(), json!(6));
    assert_eq!(spec(&golden("gemma-3")), spec(&old));
}

#[test]
fn facts_of_families() {
    let phi = spec(&golden("phi-2"));
    assert!(phi.layers[0].parallel && phi.head_bias);
    assert_eq!(phi.layers[0].attention().unwrap().rope.as_ref().unwrap().rotary_dim, 4);
    let smol = spec(&golden("smollm3"));
    assert!(
        smol.layers[3].attention().unwrap().rope.is_none()
            && smol.layers[2].attention().unwrap().rope.is_some()
    );
    let exaone = spec(&golden("exaone-4"));
    assert!(exaone.layers[0].attn_pre.is_none() && exaone.layers[0].attn_post.is_some());
    assert!(
        exaone.layers[3].attention().unwrap().window.is_none()
            && exaone.layers[3].attention().unwrap().rope.is_none()
    );
    let ds = spec(&golden("deepseek-v2"));
    assert!(ds.layers[0].dense().is_some());
    assert!(ds.layers[0].attention().unwrap().latent.is_some());
    let oss = &spec(&golden("gpt-oss"));
    let oss = oss.layers[0].moe().unwrap();
    assert_eq!(oss.score, Score::TopKSoftmax);
    assert!(matches!(oss.act, Activation::ClampedSwiglu { .. }));
    let gemma = spec(&golden("gemma-2"));
    assert!((gemma.layers[0].attention().unwrap().scale - 1.0 / 24f32.sqrt()).abs() < 1e-7);
    assert_eq!(gemma.logit_softcap, Some(30.0));
}

#[test]
fn multimodal_configs_are_read_by_their_text_part() {
    let text = golden("gemma-3");
    let outer = json!({"model_type": "gemma3", "text_config": text, "vision_config": {}});
    assert_eq!(spec(&outer), spec(&golden("gemma-3")));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let has = |e: String, words: &[&str]| {
        words.iter().for_each(|w| assert!(e.contains(w), "{w:?} is not in {e:?}"));
    };
    has(error("qwen3", |c| c["model_type"] = json!("mamba")), &["mamba", "qwen3_moe"]);
    has(error("qwen3", |c| c["hidden_act"] = json!("xielu")), &["xielu", "silu"]);
    let rope = |c: &mut Value| c["rope_parameters"]["rope_type"] = json!("spiral");
    has(error("qwen3", rope), &["spiral", "yarn"]);
    let quant = |c: &mut Value| c["quantization_config"] = json!({"quant_method": "bitsandbytes"});
    has(error("qwen3", quant), &["bitsandbytes", "GGUF"]);
    has(error("gemma-3", |c| c["use_bidirectional_attention"] = json!(true)), &["bidirectional"]);
    has(error("deepseek-v2", |c| c["topk_method"] = json!("noaux_tc")), &["noaux_tc"]);
    has(error("gpt-oss", |c| c["layer_types"][0] = json!("linear")), &["linear"]);
}

#[test]
fn impossible_values_are_refused_by_field() {
    let cases: &[(&str, &str, Value)] = &[
        ("qwen3", "num_attention_heads", json!(0)),
        ("qwen3", "num_key_value_heads", json!(4)),
        ("qwen3", "hidden_size", json!(-1)),
        ("qwen3", "hidden_size", json!(3.5)),
        ("qwen3", "num_hidden_layers", json!(1_000_000)),
        ("qwen3", "vocab_size", json!(1u64 << 40)),
        ("qwen3", "head_dim", json!(15)),
        ("qwen3", "rms_norm_eps", json!(0)),
        ("qwen3", "layer_types", json!(["full_attention"])),
        ("qwen3-moe", "num_experts_per_tok", json!(9)),
        ("phimoe", "num_experts_per_tok", json!(3)),
        ("llama-3.2", "num_hidden_layers", Value::Null),
    ];
    for (name, field, value) in cases {
        let e = error(name, |c| c[*field] = value.clone());
        let word = if *field == "head_dim" { "rotary dimension" } else { field };
        assert!(e.contains(word), "{field} is not in {e:?}");
    }
    assert_eq!(from_config(&json!({})).err(), Some(ConfigError::Missing("model_type".into())));
    assert!(from_config(&json!([1])).is_err());
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-5i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (1e-40f64..1e40).prop_map(Value::from),
        Just(json!(1e-40)),
        Just(json!(1e30)),
        "[a-z_]{0,12}".prop_map(Value::from),
        proptest::collection::vec((0i64..9).prop_map(Value::from), 0..5).prop_map(Value::from),
        Just(json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0})),
    ]
}

proptest! {
    #[test]
    fn changed_configs_are_described_or_refused(
        which in 0usize..20,
        field in 0usize..120,
        value in values(),
    ) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let mut config = golden(names[which % names.len()].to_str().unwrap());
        // Also the fields of the rope.
        let mut map = config.as_object_mut().unwrap();
        if field >= 60 && map.get("rope_parameters").is_some_and(|r| r.get("rope_theta").is_some()) {
            map = map.get_mut("rope_parameters").unwrap().as_object_mut().unwrap();
            map.extend(extra_rope_fields());
        }
        let key = map.keys().nth(field % map.len()).unwrap().clone();
        map.insert(key, value);
        if let Ok(model) = from_config(&config) {
            holds_together(&model.spec);
        }
    }
}

fn extra_rope_fields() -> serde_json::Map<String, Value> {
    let fields = json!({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64});
    fields.as_object().unwrap().clone()
}

/// What later stages rely on without another check.
fn holds_together(spec: &ModelSpec) {
    assert!(spec.vocab > 0 && spec.hidden > 0 && spec.context > 0 && !spec.layers.is_empty());
    let fine = |x: f32| x.is_finite() && x > 0.0;
    assert!(fine(spec.embed_scale) && fine(spec.logit_scale));
    assert!(spec.logit_softcap.is_none_or(fine), "{:?}", spec.logit_softcap);
    for layer in &spec.layers {
        let norms = [layer.attn_pre, layer.attn_post, layer.ffn_pre, layer.ffn_post];
        for norm in norms.into_iter().flatten().chain([spec.final_norm]) {
            let (Norm::Rms { eps, .. } | Norm::Layer { eps, .. }) = norm;
            assert!(fine(eps), "{norm:?}");
        }
        match layer.ffn.as_ref().unwrap() {
            Ffn::Dense(m) => assert!(m.inter > 0),
            Ffn::Moe(m) => {
                assert!(m.inter > 0 && (1..=m.experts).contains(&m.top_k), "{m:?}");
                assert!(m.scale.is_finite() && m.shared.is_none_or(|s| s.inter > 0), "{m:?}");
                let fits = |(n, k): (usize, usize)| {
                    m.experts % n == 0 && k <= n && m.top_k <= k * (m.experts / n)
                };
                assert!(m.groups.is_none_or(fits), "{m:?}");
            }
        }
        let Some(a) = layer.attention() else { continue };
        assert!(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0);
        assert!(a.k_dim > 0 && a.v_dim > 0 && a.window != Some(0) && fine(a.scale), "{a:?}");
        assert!(a.softcap.is_none_or(fine) && a.clip_qkv.is_none_or(fine), "{a:?}");
        if let Some(rope) = &a.rope {
            let long = rope.long.iter().map(|l| &l.0);
            for f in [&rope.freqs].into_iter().chain(long) {
                assert_eq!(f.inv_freq.len() * 2, rope.rotary_dim);
                assert!(f.factor.is_finite() && f.inv_freq.iter().all(|x| x.is_finite()), "{f:?}");
            }
            assert!(rope.rotary_dim <= a.k_dim, "{a:?}");
        }
    }
    for need in weight_requirements(spec).take(2000) {
        assert!(need.rows > 0 && need.cols > 0, "{need:?}");
    }
}

/// The property above only concerns described configs: most changes of one field give one, but
/// enough do not.
#[test]
fn some_changes_are_described_and_some_refused() {
    let mut counts = [0, 0];
    for value in [json!(3), json!(64), json!("x"), json!(0.5), json!(1e-300), json!(null)] {
        for key in golden("gpt-oss").as_object().unwrap().keys() {
            let mut config = golden("gpt-oss");
            config[key.as_str()] = value.clone();
            match from_config(&config) {
                Ok(model) => {
                    holds_together(&model.spec);
                    counts[0] += 1;
                }
                Err(_) => counts[1] += 1,
            }
        }
    }
    assert!(counts.into_iter().all(|n| n >= 30), "{counts:?}");
}
