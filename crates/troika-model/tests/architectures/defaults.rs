//! Absent and null fields have the meaning of the transformers library's config classes.

use serde_json::{Value, json};
use troika_graph::Activation;

use crate::{attn, dense, golden, llama, model, moe, ropes, spec, windows, with, without};

fn as_type(name: &str, changes: Value) -> Value {
    with(with(llama(), json!({ "model_type": name })), changes)
}

#[test]
fn windows_when_absent_or_null() {
    let window = |name, changes| windows(&spec(&as_type(name, changes)))[0];
    assert_eq!(window("mistral", json!({})), Some(4096));
    assert_eq!(window("mistral", json!({"sliding_window": null})), None);
    assert_eq!(window("mistral", json!({"sliding_window": 0})), None);
    assert_eq!(window("mixtral", json!({})), None);
    assert_eq!(window("phi3", json!({})), None);
    assert_eq!(window("gpt_oss", json!({})), Some(128));
    assert_eq!(window("gemma2", json!({})), Some(4096));
    // A window is given, but not in use.
    assert_eq!(window("qwen3_moe", json!({"sliding_window": 9})), None);
    let on = json!({"sliding_window": 9, "use_sliding_window": true});
    assert_eq!(window("qwen3_moe", on.clone()), Some(9));
    assert_eq!(window("qwen2", with(on, json!({"max_window_layers": 0}))), Some(9));
    let null = json!({
        "sliding_window": null, "use_sliding_window": true, "max_window_layers": 0
    });
    assert_eq!(window("qwen2", null), None);
}

#[test]
fn qwen_windows_start_and_end_with_layers() {
    let on = json!({
        "num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 9,
        "max_window_layers": 3
    });
    assert_eq!(windows(&spec(&as_type("qwen2", on.clone()))), [None, None, None, Some(9)]);
    assert_eq!(windows(&spec(&as_type("qwen3", on.clone()))), [None, None, None, Some(9)]);
    assert_eq!(windows(&spec(&as_type("qwen2_moe", on))), [Some(9), None, Some(9), None]);
}

#[test]
fn exaone_patterns() {
    let layers = |changes| {
        let base = json!({"num_hidden_layers": 5, "sliding_window": 8});
        let s = spec(&as_type("exaone4", with(base, changes)));
        (windows(&s).iter().map(Option::is_some).collect::<Vec<_>>(), ropes(&s))
    };
    let (l, g) = (true, false);
    let every_fourth = vec![l, l, l, g, l];
    assert_eq!(layers(json!({})), (every_fourth.clone(), every_fourth));
    let every_second = vec![l, g, l, g, l];
    let two = layers(json!({"sliding_window_pattern": 2}));
    assert_eq!(two, (every_second.clone(), every_second));
    // With letters the last layer is global in any case.
    let letters = vec![l, l, l, g, g];
    let named = layers(json!({"sliding_window_pattern": "LLLG"}));
    assert_eq!(named, (letters.clone(), letters));
    let none = layers(json!({"sliding_window": null}));
    assert_eq!(none, (vec![g; 5], vec![true; 5]));
}

#[test]
fn smollm3_rope_list_and_interval() {
    let six = |changes| {
        let base = json!({"num_hidden_layers": 6});
        ropes(&spec(&as_type("smollm3", with(base, changes))))
    };
    assert_eq!(six(json!({})), [true, true, true, false, true, true]);
    assert_eq!(six(json!({"no_rope_layer_interval": 2})), [true, false, true, false, true, false]);
    // The list may be longer than the model.
    let list = json!({"no_rope_layers": [0, 1, 1, 1, 1, 0, 0, 0]});
    assert_eq!(six(list), [false, true, true, true, true, false]);
}

#[test]
fn heads_and_their_width() {
    let attn = |config: &Value| attn(&spec(config), 0).clone();
    let no_kv = without(llama(), &["num_key_value_heads"]);
    assert_eq!(attn(&no_kv).kv_heads, 4);
    assert_eq!(attn(&with(llama(), json!({"num_key_value_heads": null}))).kv_heads, 4);
    // Mistral's class has its own default.
    let mistral = with(no_kv, json!({"model_type": "mistral", "num_attention_heads": 16}));
    assert_eq!(attn(&mistral).kv_heads, 8);
    assert_eq!(attn(&with(llama(), json!({"head_dim": null}))).k_dim, 16);
    assert_eq!(attn(&with(llama(), json!({"head_dim": 24}))).k_dim, 24);
    assert_eq!(attn(&as_type("qwen3", json!({}))).k_dim, 128);
    assert_eq!(attn(&as_type("qwen3_moe", json!({}))).k_dim, 16);
    assert_eq!(attn(&as_type("gemma2", json!({}))).k_dim, 256);
    assert_eq!(attn(&as_type("gpt_oss", json!({}))).k_dim, 64);
}

#[test]
fn tied_when_the_class_says_so() {
    for (name, tied) in [("llama", false), ("gemma", true), ("gemma3_text", true), ("phi", false)] {
        assert_eq!(spec(&as_type(name, json!({}))).tied, tied, "{name}");
    }
    assert!(spec(&as_type("smollm3", json!({}))).tied);
}

#[test]
fn activations_of_gemma() {
    let act = |name, changes| dense(&spec(&as_type(name, changes)), 0).act;
    assert_eq!(act("gemma", json!({"hidden_act": "gelu"})), Activation::GeluTanh);
    assert_eq!(act("gemma", json!({})), Activation::GeluTanh);
    // Gemma 2 and 3 read another field only.
    let two = json!({"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"});
    assert_eq!(act("gemma2", two.clone()), Activation::GeluTanh);
    assert_eq!(act("gemma3_text", two), Activation::GeluTanh);
    assert_eq!(act("phi", json!({})), Activation::GeluTanh);
    assert_eq!(act("llama", json!({"hidden_act": "relu"})), Activation::Relu);
    assert_eq!(act("llama", json!({"hidden_act": "gelu"})), Activation::Gelu);
}

#[test]
fn biases() {
    let s = spec(&with(llama(), json!({"attention_bias": true, "mlp_bias": true})));
    let a = attn(&s, 0);
    assert!(a.qkv_bias && a.o_bias && dense(&s, 0).bias);
    let off = as_type("gpt_oss", json!({"attention_bias": false}));
    assert!(!attn(&spec(&off), 0).qkv_bias);
    let off = as_type("qwen2_moe", json!({"qkv_bias": false}));
    assert!(!attn(&spec(&off), 0).qkv_bias);
}

#[test]
fn dense_layers_between_experts() {
    let kinds = |changes| {
        let base = json!({"num_hidden_layers": 4, "moe_intermediate_size": 24});
        let s = spec(&as_type("qwen3_moe", with(base, changes)));
        let is_moe = |l: &troika_model::spec::Layer| l.moe().is_some();
        s.layers.iter().map(is_moe).collect::<Vec<_>>()
    };
    assert_eq!(kinds(json!({})), [true; 4]);
    assert_eq!(kinds(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(kinds(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    let deepseek = with(golden("deepseek-v2"), json!({"first_k_dense_replace": 2}));
    assert_eq!(dense(&spec(&deepseek), 1).inter, 176);
}

#[test]
fn experts_under_all_their_names() {
    let m = |name: &str| {
        let config = json!({name: 6, "moe_intermediate_size": 24, "num_experts_per_tok": 2});
        moe(&spec(&as_type("qwen3_moe", config)), 0).experts
    };
    assert_eq!((m("num_experts"), m("num_local_experts"), m("n_routed_experts")), (6, 6, 6));
}

#[test]
fn deepseek_scale_and_groups() {
    let groups = json!({
        "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 16.0,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 40.0, "rope_theta": 1e4, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096
        }
    });
    let s = spec(&with(golden("deepseek-v2"), groups));
    assert_eq!((moe(&s, 1).groups, moe(&s, 1).scale), (Some((4, 2)), 16.0));
    let m = 0.1 * 0.707 * 40f64.ln() + 1.0;
    let scale = (m * m / 24f64.sqrt()) as f32;
    assert!((attn(&s, 0).scale - scale).abs() < 1e-7);
    // Equal factors cancel in sine and cosine.
    assert_eq!(attn(&s, 0).rope.as_ref().unwrap().freqs.factor, 1.0);
    let absent = without(golden("deepseek-v2"), &["q_lora_rank"]);
    assert_eq!(attn(&spec(&absent), 0).latent.unwrap().q_rank, Some(1536));
}

/// A text_config omits its class's defaults: google/gemma-3-4b-it's.
#[test]
fn a_sparse_text_config() {
    let config = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}
    });
    let m = model(&config);
    let a = attn(&m.spec, 0);
    assert_eq!((m.spec.vocab, m.spec.hidden, m.spec.layers.len()), (262_208, 2560, 34));
    assert_eq!((a.heads, a.kv_heads, a.k_dim, a.window), (8, 4, 256, Some(1024)));
    assert!(m.spec.tied && m.spec.context == 131_072);
    // llava-1.5's has little more than the vocabulary.
    let llava = json!({
        "model_type": "llava",
        "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5}
    });
    let s = spec(&llava);
    assert_eq!((s.vocab, s.hidden, s.layers.len(), dense(&s, 0).inter), (32064, 4096, 32, 11008));
}
