//! Refusals and their wording; no config causes a panic.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use troika_model::families::{from_config, supported};
use troika_model::spec::{Checkpoint, StoredTensor, weight_requirements};
use troika_weights::{FloatType, MappedCheckpoint, WeightStore, open};

use crate::changes::holds_together;
use crate::{data, golden, llama, model, refusal, with, without};

#[test]
fn unknown_model_types_name_the_known_ones() {
    let all = supported().join(", ");
    let nearest =
        [("deepseek_v5", "deepseek_v2"), ("Llama", "llama"), ("qwen3_6_moe", "qwen3_5_moe")];
    for (name, nearest) in nearest {
        let known = format!("{all}; the nearest name of these is {nearest}");
        assert_eq!(
            refusal(&with(llama(), json!({ "model_type": name }))),
            format!("model_type {name:?} is not supported; supported: {known}")
        );
    }
    assert_eq!(refusal(&without(llama(), &["model_type"])), "the config has no model_type");
    // Not the field, though its name is like one of a quantization.
    let unknown = json!({"model_type": "fancy", "activation_sparsity_pattern": [0.9, 0.0]});
    assert!(refusal(&with(llama(), unknown)).starts_with("model_type \"fancy\" is not supported"));
    assert!(
        supported().len() == 66
            && !all.contains("test")
            && all.starts_with("afmoe, apertus, arcee, bailing_hybrid, ")
    );
}

#[test]
fn features_that_are_not_there() {
    let llama = |changes| refusal(&with(llama(), changes));
    let acts = "silu, gelu, gelu_pytorch_tanh, gelu_new, relu, relu2";
    for act in ["quick_gelu", "xielu"] {
        let told = format!("hidden_act {act:?} is not supported; supported: {acts}");
        assert_eq!(llama(json!({ "hidden_act": act })), told);
    }
    let method = "gptq and awq (gemm, gemv) of 4 bits, gptq of 8 bits, fp8 (e4m3), \
                  compressed-tensors, mxfp4, mlx, float safetensors, or GGUF";
    assert_eq!(
        llama(json!({"quantization_config": {"quant_method": "bitsandbytes"}})),
        format!(
            "quantization_config of method \"bitsandbytes\" is not supported; supported: {method}"
        )
    );
    let bidirectional = with(golden("gemma-3"), json!({"use_bidirectional_attention": true}));
    assert_eq!(
        refusal(&bidirectional),
        "use_bidirectional_attention = true is not supported; supported: false"
    );
    let kinds = ["full_attention", "full_attention", "chunked_attention", "full_attention"];
    let types = with(golden("gemma-2"), json!({ "layer_types": kinds }));
    assert_eq!(
        refusal(&types),
        "layer_types of layer 2: \"chunked_attention\" is not supported; supported: \
         full_attention, sliding_attention"
    );
    let paligemma = json!({"model_type": "paligemma", "text_config": golden("gemma")});
    assert_eq!(
        refusal(&paligemma),
        "model_type \"paligemma\" (its prompts attend in both directions) is not supported; \
         supported: decoders that attend to the past"
    );
}

#[test]
fn features_of_deepseek_that_are_not_there() {
    let deepseek = |changes| refusal(&with(golden("deepseek-v2"), changes));
    assert_eq!(
        deepseek(json!({"topk_method": "noaux_tc"})),
        "topk_method \"noaux_tc\" is not supported; supported: greedy, group_limited_greedy"
    );
    assert_eq!(
        deepseek(json!({"scoring_func": "sigmoid"})),
        "scoring_func other than softmax is not supported; supported: softmax"
    );
    let three = json!({"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1});
    assert_eq!(
        deepseek(three),
        "the config's n_group is 3, which is not possible with 8 experts and topk_group 1"
    );
}

#[test]
fn sizes_that_cannot_be() {
    let llama = |changes| refusal(&with(llama(), changes));
    let bad = |field: &str, value: &str, problem: &str| {
        format!("the config's {field} is {value}, which is {problem}")
    };
    let size = "not a whole number from 1 to 16777216";
    for v in ["0", "-1", "64.0", "99999999", "\"64\"", "true", "[]", "1e300"] {
        let value: Value = serde_json::from_str(v).unwrap();
        let said = llama(json!({ "hidden_size": value.clone() }));
        assert_eq!(said, bad("hidden_size", &value.to_string(), size));
    }
    assert_eq!(llama(json!({"vocab_size": 1u64 << 40})), bad("vocab_size", "1099511627776", size));
    for field in ["hidden_size", "num_hidden_layers"] {
        assert_eq!(llama(json!({ field: null })), format!("the config has no {field}"));
    }
    let count = "not a whole number from 0 to 4096";
    assert_eq!(
        llama(json!({"num_hidden_layers": 10_000})),
        bad("num_hidden_layers", "10000", count)
    );
    let none = "not at least 1";
    assert_eq!(llama(json!({"num_hidden_layers": 0})), bad("num_hidden_layers", "0", none));
    assert_eq!(llama(json!({"num_attention_heads": 0})), bad("num_attention_heads", "0", none));
    let kv = |n: usize| {
        bad("num_key_value_heads", &n.to_string(), "not a divisor of num_attention_heads 4")
    };
    assert_eq!(llama(json!({"num_key_value_heads": 3})), kv(3));
    assert_eq!(llama(json!({"num_key_value_heads": 0})), kv(0));
    assert_eq!(
        llama(json!({"num_attention_heads": 6, "num_key_value_heads": 2})),
        bad("num_attention_heads", "6", "not a divisor of hidden_size 64, and head_dim is absent")
    );
    assert_eq!(
        llama(json!({"head_dim": 15})),
        bad("rotary dimension", "15", "not an even number of at least 2")
    );
    assert_eq!(llama(json!({"rms_norm_eps": 0})), bad("rms_norm_eps", "0", "not more than 0"));
}

#[test]
fn lists_and_experts_that_cannot_be() {
    let gemma = |changes| refusal(&with(golden("gemma-2"), changes));
    for (n, without) in [(3, ": layer 3 has none"), (5, "")] {
        let list = format!("the config's layer_types is a list of {n}");
        assert_eq!(
            gemma(json!({"layer_types": vec!["full_attention"; n]})),
            format!("{list}, which is not one for each of 4 layers{without}")
        );
    }
    assert_eq!(
        gemma(json!({"layer_types": "all"})),
        "the config's layer_types is \"all\", which is not a list"
    );
    let mixtral = |changes| refusal(&with(golden("mixtral"), changes));
    assert_eq!(
        mixtral(json!({"num_experts_per_tok": 5})),
        "the config's num_experts_per_tok is 5, which is not between 1 and the 4 experts"
    );
    assert_eq!(
        mixtral(json!({"num_local_experts": 5000})),
        "the config's num_local_experts is 5000, which is not a whole number from 0 to 4096"
    );
    assert_eq!(
        refusal(&with(golden("phimoe"), json!({"num_experts_per_tok": 3}))),
        "the config's num_experts_per_tok is 3, which is not 2, which sparsemixer routing needs"
    );
    assert_eq!(
        refusal(&with(golden("smollm3"), json!({"no_rope_layers": [1, 1]}))),
        "the config's no_rope_layers is a list of 2, which is too short for 4 layers"
    );
    assert_eq!(
        refusal(&with(golden("smollm3"), json!({"no_rope_layers": [1, 1, "x", 0]}))),
        "the config's no_rope_layers is \"x\", which is neither 0 nor 1"
    );
    let letters = json!({"sliding_window_pattern": "LLX", "layer_types": null});
    assert_eq!(
        refusal(&with(golden("exaone-4"), letters)),
        "the config's sliding_window_pattern is \"LLX\", which is not letters L and G"
    );
}

#[test]
fn things_that_are_no_config() {
    for v in [json!(null), json!([]), json!("llama"), json!(3)] {
        assert_eq!(refusal(&v), "the config's config is this, which is not a JSON object");
    }
    assert_eq!(
        refusal(&with(llama(), json!({"text_config": 3}))),
        "the config's text_config is 3, which is not an object"
    );
}

/// Every field of every golden config with every kind of wrong value: described or refused.
#[test]
fn nothing_panics() {
    let wrong = [
        json!(null),
        json!(0),
        json!(1),
        json!(-1),
        json!(2.5),
        json!(1e308),
        json!(16777216),
        json!(u64::MAX),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!(true),
        json!([1, "x"]),
        json!({"full_attention": 3}),
        json!({"rope_type": "yarn"}),
        json!({"rope_theta": 1.0}),
        json!({"rope_type": "yarn", "factor": 1e-30, "rope_theta": 1.0}),
        json!({"rope_type": "longrope", "short_factor": [], "long_factor": []}),
    ];
    for entry in std::fs::read_dir(data("golden")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let config = golden(&name);
        for field in config.as_object().unwrap().keys() {
            for value in &wrong {
                let config = with(config.clone(), json!({ field.as_str(): value }));
                let Ok(model) = from_config(&config) else { continue };
                for need in weight_requirements(&model.spec).take(500) {
                    model.names.candidates(&model.spec, need.key);
                }
                holds_together(&model.spec);
            }
        }
    }
}

/// A checkpoint without tensors that counts the requests.
#[derive(Default)]
struct Empty(AtomicUsize);

impl Checkpoint for Empty {
    fn tensor(&self, _: &str) -> Option<&StoredTensor> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
    fn origin(&self, _: &str) -> String {
        "the folder".into()
    }
    fn unusable(&self, _: &str) -> Option<&str> {
        None
    }
}

impl MappedCheckpoint for Empty {}

#[test]
fn a_small_config_cannot_ask_for_more_weights_than_are_there() {
    let many = |layers, experts| {
        let changes = json!({"num_hidden_layers": layers, "num_local_experts": experts});
        with(golden("mixtral"), changes)
    };
    assert_eq!(
        refusal(&many(4096, 4096)),
        "a model of 16777216 experts in its 4096 layers together is not supported; supported: at \
         most 262144"
    );
    let changes = json!({"num_hidden_layers": 4096, "num_attention_heads": 4096,
        "num_key_value_heads": 4096, "first_k_dense_replace": 4096});
    let heads = refusal(&with(golden("deepseek-v2"), changes));
    assert!(heads.contains("16777216 heads of latent attention"), "{heads}");
    // The largest possible numbers: nothing is searched beyond the first missing tensor.
    let model = model(&many(4096, 64));
    assert_eq!(weight_requirements(&model.spec).count(), 3 + 4096 * (7 + 3 * 64));
    let files = Empty::default();
    let error = WeightStore::bind(&model, &files, FloatType::Auto.into()).err().unwrap();
    assert!(error.to_string().contains("embed_tokens"), "{error}");
    let asked = files.0.into_inner();
    assert!(asked < 130_000, "{asked} names were looked for");
}

/// Lists of layers name what is wrong with which layer.
#[test]
fn kinds_of_layers_are_refused_by_layer() {
    let lfm2 = |changes| {
        let conv = json!({"model_type": "lfm2", "conv_L_cache": 3});
        refusal(&with(with(llama(), conv), changes))
    };
    assert_eq!(
        lfm2(json!({"layer_types": ["conv", "mlp"]})),
        "layer_types of layer 1: \"mlp\" is not supported; supported: full_attention, attention, \
         *, sliding_attention, conv, linear_attention, mamba, M"
    );
    assert_eq!(
        lfm2(json!({"layer_types": ["conv"]})),
        "the config's layer_types is a list of 1, which is not one for each of 2 layers: layer 1 has none"
    );
    let nemotron = json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"});
    assert_eq!(
        refusal(&with(llama(), nemotron)),
        "layers_block_type of layer 1: \"?\" is not supported; supported: full_attention, \
         attention, *, conv, linear_attention, mamba, M, mlp, -, moe, E"
    );
}

#[test]
fn delta_rules_that_cannot_be() {
    let of =
        |name: &str, changes| refusal(&with(golden(&format!("../golden-2026/{name}")), changes));
    let types = ["linear_attention", "linear_attention", "conv", "full_attention"];
    assert_eq!(
        of("qwen3.5", json!({ "layer_types": types })),
        "layer_types of layer 2: \"conv\" is not supported; supported: full_attention, \
         linear_attention"
    );
    let short = of("kimi-linear", json!({ "layer_types": types[..2] }));
    assert!(short.contains("layer_types"), "{short}");
    assert_eq!(
        of("qwen3-next", json!({"linear_conv_kernel_dim": 0})),
        "the config's linear_conv_kernel_dim is 0, which is a convolution of less than 2 positions"
    );
    assert_eq!(
        of("qwen3.5", json!({"linear_num_value_heads": 3})),
        "the config's linear_num_value_heads is 3, which is not a multiple of \
         linear_num_key_heads 2"
    );
    assert_eq!(
        of("kimi-linear", json!({"moe_router_activation_func": "softmax"})),
        "moe_router_activation_func other than sigmoid is not supported; supported: sigmoid"
    );
    let bailing = json!({"model_type": "bailing_hybrid"});
    assert_eq!(
        of("kimi-linear", bailing.clone()),
        "a bailing_hybrid of another linear attention is not supported; supported: the gated \
         delta rule with kda_safe_gate and kda_lower_bound"
    );
    assert_eq!(
        refusal(&with(
            with(golden("../golden-2026/kimi-linear"), bailing),
            json!({"kda_lower_bound": 5.0})
        )),
        "the config's kda_lower_bound is 5, which is not below 0"
    );
}

#[test]
fn streams_that_cannot_be() {
    let config = golden("../golden-2026/gemma-3n");
    for (changes, said) in [
        (json!({"altup_num_inputs": 0}), "altup_num_inputs is 0, which is not from 2 to 16"),
        (json!({"altup_num_inputs": 1}), "altup_num_inputs is 1, which is not from 2 to 16"),
        (
            json!({"altup_active_idx": 4}),
            "altup_active_idx is 4, which is not less than altup_num_inputs 4",
        ),
        (
            json!({"altup_active_idx": -1}),
            "altup_active_idx is -1, which is not a whole number from 0 to 4096",
        ),
        (
            json!({"activation_sparsity_pattern": [0.95, 0.0]}),
            "activation_sparsity_pattern is a list of 2, which is not one for each of 5 layers: \
             layer 2 has none",
        ),
        (
            json!({"activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0, 1.0]}),
            "activation_sparsity_pattern is 1.0, which is not a list of shares from 0 to less than 1",
        ),
        (
            json!({"activation_sparsity_pattern": [-0.1, 0.0, 0.0, 0.0, 0.0]}),
            "activation_sparsity_pattern is -0.1, which is not a list of shares from 0 to less than 1",
        ),
        (
            json!({"laurel_rank": 0}),
            "laurel_rank is 0, which is not a whole number from 1 to 16777216",
        ),
        (
            json!({"num_kv_shared_layers": 5}),
            "num_kv_shared_layers is 5, which is not less than the 5 layers",
        ),
        (
            json!({"intermediate_size": [96, 96]}),
            "intermediate_size is a list of 2, which is not one for each of 5 layers: layer 2 has \
             none",
        ),
    ] {
        assert_eq!(refusal(&with(config.clone(), changes)), format!("the config's {said}"));
    }
}

/// As it is published: counted from one, in an object of its own.
#[test]
fn kimi_linear_in_both_spellings() {
    let new = golden("../golden-2026/kimi-linear");
    let inner = json!({"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4,
        "full_attn_layers": [3], "kda_layers": [1, 2, 4]});
    let fields = ["layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"];
    let old = with(without(new.clone(), &fields), json!({ "linear_attn_config": inner }));
    assert_eq!(model(&old).spec, model(&new).spec);
}

/// A checkpoint's tensors, and names of others.
struct More<'a>(&'a dyn Checkpoint, &'a [&'a str]);

impl Checkpoint for More<'_> {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.0.tensor(name)
    }
    fn names(&self) -> Vec<&str> {
        [self.0.names().as_slice(), self.1].concat()
    }
    fn origin(&self, _: &str) -> String {
        "the folder".into()
    }
    fn unusable(&self, _: &str) -> Option<&str> {
        None
    }
}

impl MappedCheckpoint for More<'_> {}

#[test]
fn heads_for_several_tokens_are_named_and_images_alone_are_no_model() {
    let model = model(&golden("llama-3.2"));
    let layer = model.spec.layers.len();
    let opened = open(&data("golden").join("llama-3.2")).unwrap();
    let bind = |files: &dyn Checkpoint, more: &[&str]| {
        let store = WeightStore::bind(&model, &More(files, more), FloatType::Auto.into());
        store.map(|s| s.warnings().to_vec()).map_err(|e| e.to_string())
    };
    let names =
        ["eh_proj.weight", "input_layernorm.weight"].map(|n| format!("model.layers.{layer}.{n}"));
    let [head, norm] = names.each_ref().map(String::as_str);
    let unused = vec!["the folder: its head that predicts several tokens (MTP) is not used"];
    assert_eq!(bind(opened.files.as_ref(), &[]).unwrap(), Vec::<String>::new());
    assert_eq!(bind(opened.files.as_ref(), &[head, norm]).unwrap(), unused);
    // Without its layer, or as a part of its own.
    assert_eq!(bind(opened.files.as_ref(), &[head]).unwrap(), unused);
    assert_eq!(bind(opened.files.as_ref(), &["mtp.fc.weight"]).unwrap(), unused);
    // A layer without the head's parts is one that the config forgot.
    let told = bind(opened.files.as_ref(), &[norm]).unwrap();
    assert!(told.len() == 1 && told[0].contains("num_hidden_layers"), "{told:?}");
    let error = bind(&Empty::default(), &["vision_tower.patch_embed.weight"]).unwrap_err();
    assert!(error.contains("embed_tokens"), "{error}");
}
