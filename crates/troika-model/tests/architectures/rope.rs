//! Rope: inverse frequencies and factors, against numbers of the transformers library 5.23
//! (`ROPE_INIT_FUNCTIONS`, computed in single precision).

use serde_json::{Value, json};
use troika_graph::{RopeFreqs, RopeStyle};
use troika_model::spec::RopeSpec;

use crate::{attn, golden, llama, refusal, spec, with, without};

fn rope_of(config: &Value) -> RopeSpec {
    attn(&spec(config), 0).rope.clone().unwrap()
}

fn close(freqs: &RopeFreqs, factor: f64, expected: &[f64]) {
    let near = |a: f32, b: f64| (f64::from(a) - b).abs() <= 3e-7 * b;
    assert!(near(freqs.factor, factor), "{} and {factor}", freqs.factor);
    assert_eq!(freqs.inv_freq.len(), expected.len());
    let all = freqs.inv_freq.iter().zip(expected).all(|(a, b)| near(*a, *b));
    assert!(all, "{:?} and {expected:?}", freqs.inv_freq);
}

fn check(parameters: Value, factor: f64, expected: &[f64]) {
    let rope = rope_of(&with(llama(), json!({ "rope_parameters": parameters })));
    assert_eq!((rope.rotary_dim, rope.style, rope.long.is_none()), (16, RopeStyle::Half, true));
    close(&rope.freqs, factor, expected);
}

const PLAIN: [f64; 8] = [
    1.0,
    0.316227764,
    0.100000001,
    0.0316227786,
    0.00999999978,
    0.00316227786,
    0.00100000005,
    0.000316227786,
];

#[test]
fn default_and_linear() {
    check(json!({"rope_type": "default", "rope_theta": 10000.0}), 1.0, &PLAIN);
    let quarter = PLAIN.map(|f| f / 4.0);
    check(json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}), 1.0, &quarter);
}

#[test]
fn llama3() {
    let parameters = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0
    });
    let expected = [
        1.0,
        0.193922758,
        0.0376060307,
        0.00729266508,
        0.000524846022,
        3.42810235e-05,
        6.64786967e-06,
        1.28917316e-06,
    ];
    check(parameters, 1.0, &expected);
}

#[test]
fn yarn() {
    let parameters = json!({
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
        "original_max_position_embeddings": 32768
    });
    let expected = [
        1.0,
        0.177827939,
        0.0316227786,
        0.00421755994,
        0.000500000024,
        4.44569851e-05,
        7.90569356e-06,
        1.40585337e-06,
    ];
    check(parameters, 1.13862944, &expected);
}

#[test]
fn yarn_with_mscale() {
    let parameters = json!({
        "rope_type": "yarn", "factor": 40.0, "rope_theta": 1e4, "mscale": 0.707,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096
    });
    let expected = [
        1.0,
        0.316227764,
        0.100000001,
        0.0239147246,
        0.00512499968,
        0.000849862176,
        2.49999994e-05,
        7.90569447e-06,
    ];
    check(parameters, 0.921042355, &expected);
}

#[test]
fn yarn_with_its_own_attention_factor_and_range() {
    let parameters = json!({
        "rope_type": "yarn", "factor": 40.0, "rope_theta": 1e4, "attention_factor": 0.75,
        "beta_fast": 16, "beta_slow": 2, "original_max_position_embeddings": 4096
    });
    let expected = [
        1.0,
        0.316227764,
        0.100000001,
        0.0316227786,
        0.00674999924,
        0.00110679714,
        2.49999994e-05,
        7.90569447e-06,
    ];
    check(parameters, 0.75, &expected);
}

/// gpt-oss's default without any rope field: yarn, not truncated.
const GPT_OSS: [f64; 8] = [
    1.0,
    0.225418001,
    0.0508132726,
    0.00679495931,
    0.000456483918,
    1.8188337e-05,
    4.09997847e-06,
    9.24208962e-07,
];

#[test]
fn yarn_that_is_not_truncated() {
    close(&rope_of(&golden("gpt-oss")).freqs, 1.34657359, &GPT_OSS);
}

#[test]
fn gpt_oss_is_yarn_when_nothing_is_said() {
    let config = without(golden("gpt-oss"), &["rope_parameters"]);
    assert_eq!(rope_of(&config), rope_of(&golden("gpt-oss")));
    let config = with(config, json!({"rope_scaling": null, "rope_theta": 150000}));
    assert_eq!(rope_of(&config), rope_of(&golden("gpt-oss")));
}

fn longrope(kind: &str) -> Value {
    let rope = json!({
        "rope_type": kind, "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0]
    });
    let phi = json!({
        "model_type": "phi3", "rope_parameters": rope, "original_max_position_embeddings": 4096
    });
    with(llama(), phi)
}

#[test]
fn longrope_has_two_sets_of_frequencies() {
    let rope = rope_of(&longrope("longrope"));
    let short = [
        1.0,
        0.287479758,
        0.0833333358,
        0.0243252143,
        0.00714285718,
        0.00210818532,
        0.000624999986,
        0.000186016332,
    ];
    close(&rope.freqs, 1.19023807, &short);
    let (freqs, beyond) = rope.long.unwrap();
    let long = [
        1.0,
        0.158113882,
        0.0250000004,
        0.00395284733,
        0.000624999986,
        0.000131761582,
        3.12500015e-05,
        4.94105916e-06,
    ];
    close(&freqs, 1.19023807, &long);
    assert_eq!(beyond, 4096);
}

#[test]
fn phi3_calls_longrope_su_and_even_yarn() {
    let rope = rope_of(&longrope("longrope"));
    assert_eq!(rope_of(&longrope("su")), rope);
    assert_eq!(rope_of(&longrope("yarn")), rope);
    let silent = without(longrope("longrope"), &["original_max_position_embeddings"]);
    assert_eq!(rope_of(&silent), rope);
}

#[test]
fn phimoe_scales_by_length_and_keeps_the_short_frequencies() {
    let mut config = with(longrope("longrope"), json!({"model_type": "phimoe"}));
    config["rope_parameters"]["short_mscale"] = json!(1.25);
    config["rope_parameters"]["long_mscale"] = json!(1.5);
    let rope = rope_of(&config);
    let (long, beyond) = rope.long.clone().unwrap();
    assert_eq!((rope.freqs.factor, long.factor, beyond), (1.25, 1.5, 4096));
    assert_eq!(rope.freqs.inv_freq, long.inv_freq);
}

#[test]
fn a_part_of_a_head_is_rotated() {
    let rope = rope_of(&golden("phi-2"));
    assert_eq!((rope.rotary_dim, rope.freqs.inv_freq.len()), (4, 2));
    let full = with(llama(), json!({"model_type": "phi3", "partial_rotary_factor": 0.75}));
    assert_eq!(rope_of(&full).rotary_dim, 12);
}

#[test]
fn an_empty_rope_scaling_says_nothing() {
    let new = json!({"rope_type": "linear", "factor": 2.0});
    let one = with(llama(), json!({"rope_parameters": new}));
    let both = with(one.clone(), json!({"rope_scaling": {}}));
    assert_eq!(spec(&one), spec(&both));
}

#[test]
fn old_and_new_spelling_are_the_same() {
    let names = [
        "exaone-4",
        "gemma",
        "gemma-2",
        "llama-2",
        "llama-3.2",
        "mistral",
        "mixtral",
        "olmoe",
        "phi-2",
        "phi-3",
        "phimoe",
        "qwen1.5",
        "qwen2-moe",
        "qwen2.5",
        "qwen3",
        "qwen3-moe",
        "smollm3",
        "deepseek-v2",
        "gpt-oss",
    ];
    for name in names {
        let new = golden(name);
        for kind in ["type", "rope_type"] {
            assert_eq!(spec(&old_spelling(&new, kind)), spec(&new), "{name} {kind}");
        }
    }
}

/// Gives fields their names in older configs, and those of `rope_parameters` their places there.
fn old_spelling(new: &Value, kind: &str) -> Value {
    let mut rope = new["rope_parameters"].as_object().unwrap().clone();
    let mut old = without(new.clone(), &["rope_parameters"]);
    for field in ["rope_theta", "partial_rotary_factor"] {
        if let Some(v) = rope.remove(field) {
            old[field] = v;
        }
    }
    for (new, name) in [("dtype", "torch_dtype"), ("num_local_experts", "num_experts")] {
        let value = old.as_object_mut().unwrap().remove(new);
        value.into_iter().for_each(|v| old[name] = v);
    }
    let name = rope.remove("rope_type").unwrap();
    old["rope_scaling"] = Value::Null;
    if name != "default" {
        rope.insert(kind.into(), name);
        old["rope_scaling"] = rope.into();
    }
    old
}

#[test]
fn gemma3_has_two_ropes_in_both_spellings() {
    let new = golden("gemma-3");
    let old = json!({"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": null,
        "sliding_window_pattern": 6});
    let fields = ["rope_parameters", "layer_types"];
    assert_eq!(spec(&with(without(new.clone(), &fields), old)), spec(&new));
    // Both bases are defaults.
    assert_eq!(spec(&without(new.clone(), &["rope_parameters"])), spec(&new));
    let scaled = json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let scaled = spec(&with(without(new.clone(), &["rope_parameters"]), scaled));
    let plain = spec(&new);
    let freqs = |s: &troika_model::spec::ModelSpec, l: usize| {
        attn(s, l).rope.as_ref().unwrap().freqs.inv_freq.clone()
    };
    assert_eq!(freqs(&scaled, 0), freqs(&plain, 0));
    let eighth: Vec<f32> = freqs(&plain, 5).iter().map(|f| f / 8.0).collect();
    assert_eq!(freqs(&scaled, 5).to_vec(), eighth);
}

#[test]
fn gemma3_local_rope_does_not_take_the_global_base() {
    let kinds = json!({
        "full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}
    });
    let config = with(golden("gemma-3"), json!({"rope_parameters": kinds, "rope_theta": 1e6}));
    assert_eq!(spec(&config), spec(&golden("gemma-3")));
}

#[test]
fn scaling_that_cannot_be() {
    let with_rope = |rope: Value| refusal(&with(llama(), json!({ "rope_parameters": rope })));
    assert_eq!(
        with_rope(json!({"rope_type": "alibi"})),
        "rope type alibi is not supported; supported: default, linear, proportional, llama3, yarn, \
         longrope"
    );
    assert_eq!(
        with_rope(json!({"rope_type": "linear"})),
        "the config has no rope_parameters.factor"
    );
    assert_eq!(
        with_rope(json!({"rope_type": "linear", "factor": 0})),
        "the config's factor is 0, which is not more than 0"
    );
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4
    });
    assert_eq!(
        with_rope(llama3),
        "the config's high_freq_factor is 4, which is not above low_freq_factor 4"
    );
    let factors = |short: Value| {
        let rope = json!({"rope_type": "longrope", "short_factor": short, "long_factor": [1]});
        with_rope(rope)
    };
    assert_eq!(
        factors(json!([1.0, 2.0])),
        "the config's short_factor is a list of 2, which is not 8 positive numbers"
    );
    assert_eq!(
        factors(json!(["x"])),
        "the config's short_factor is a list, which is not a list of finite numbers"
    );
    assert_eq!(
        with_rope(json!({"rope_theta": 1e-300})),
        "the config's rope_theta is 1e-300, which is less than 1e-30"
    );
    let both = with_rope(json!({"rope_type": "linear", "factor": 1e-30, "rope_theta": 1e-30}));
    assert!(both.ends_with("which is giving frequencies that are not finite"), "{both}");
}
