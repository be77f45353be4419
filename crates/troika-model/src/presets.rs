//! Shapes of known models, for measurements without a download, with public config values. The
//! small MoE shapes are invented.

use serde_json::{Map, Value, json};

/// The name, the `model_type`, the numbers of [`FIELDS`] (0: none), the base of rope, whether the head
/// is tied, and the other fields as the text of an object without its braces.
struct Preset(&'static str, &'static str, [u32; 8], f64, bool, &'static str);

const FIELDS: &str = "num_hidden_layers hidden_size num_attention_heads num_key_value_heads \
    head_dim intermediate_size vocab_size max_position_embeddings";

const EPS_5: &str = r#""rms_norm_eps": 1e-5"#;
const LLAMA3_ROPE: &str = r#""rms_norm_eps": 1e-5, "rope_scaling": {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}"#;
/// Without the factors of its long rope, which do not affect shapes.
const PHI_MOE: &str = r#""num_local_experts": 16, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
    "attention_bias": true, "lm_head_bias": true, "router_jitter_noise": 0.01"#;

#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset("qwen3-0.6b", "qwen3", [28, 1024, 16, 8, 128, 3072, 151_936, 40_960], 1e6, true, ""),
    Preset("qwen3-1.7b", "qwen3", [28, 2048, 16, 8, 128, 6144, 151_936, 40_960], 1e6, true, ""),
    Preset("qwen3-8b", "qwen3", [36, 4096, 32, 8, 128, 12_288, 151_936, 40_960], 1e6, false, ""),
    Preset("qwen3-moe-1b", "qwen3_moe", [16, 1024, 16, 4, 64, 768, 32_000, 32_768], 1e6, true,
        r#""moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true"#),
    Preset("qwen3-moe-tiny", "qwen3_moe", [4, 256, 4, 2, 64, 256, 2048, 4096], 1e6, true,
        r#""moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": true"#),
    Preset("llama-3.2-1b", "llama", [16, 2048, 32, 8, 64, 8192, 128_256, 131_072], 5e5, true, LLAMA3_ROPE),
    Preset("olmoe-1b-7b", "olmoe", [16, 2048, 16, 16, 0, 1024, 50_304, 4096], 1e4, false,
        r#""num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5"#),
    Preset("qwen1.5-1.8b", "qwen2", [24, 2048, 16, 16, 0, 5504, 151_936, 32_768], 1e6, false, ""),
    Preset("llama-2-7b", "llama", [32, 4096, 32, 32, 0, 11_008, 32_000, 4096], 1e4, false, EPS_5),
    Preset("llama-3-8b", "llama", [32, 4096, 32, 8, 0, 14_336, 128_256, 8192], 5e5, false, EPS_5),
    Preset("llama-3.2-3b", "llama", [28, 3072, 24, 8, 128, 8192, 128_256, 131_072], 5e5, true, LLAMA3_ROPE),
    Preset("internlm2-1.8b", "internlm2", [24, 2048, 16, 8, 0, 8192, 92_544, 32_768], 1e6, false, EPS_5),
    Preset("mistral-7b", "mistral", [32, 4096, 32, 8, 0, 14_336, 32_000, 32_768], 1e6, false, EPS_5),
    Preset("gemma-2b", "gemma", [18, 2048, 8, 1, 256, 16_384, 256_000, 8192], 1e4, true,
        r#""hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh""#),
    Preset("gemma-2-2b", "gemma2", [26, 2304, 8, 4, 256, 9216, 256_000, 8192], 1e4, true,
        r#""hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0"#),
    Preset("phi-2", "phi", [32, 2560, 32, 32, 0, 10_240, 51_200, 2048], 1e4, false,
        r#""partial_rotary_factor": 0.4, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "qk_layernorm": false"#),
    Preset("phi-3.5-moe", "phimoe", [32, 4096, 32, 8, 0, 6400, 32_064, 131_072], 1e4, false, PHI_MOE),
    Preset("phi-tiny-moe", "phimoe", [32, 4096, 16, 4, 128, 448, 32_064, 4096], 1e4, false, PHI_MOE),
    Preset("qwen3-30b-a3b", "qwen3_moe", [48, 2048, 32, 4, 128, 6144, 151_936, 40_960], 1e6, false,
        r#""moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true"#),
    Preset("gpt-oss-20b", "gpt_oss", [24, 2880, 64, 8, 64, 2880, 201_088, 131_072], 1.5e5, false,
        r#""num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128"#),
    Preset("deepseek-v2-lite", "deepseek_v2", [27, 2048, 16, 16, 0, 10_944, 102_400, 163_840], 1e4, false,
        r#""kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "norm_topk_prob": false"#),
    Preset("exaone-4.0-1.2b", "exaone4", [30, 2048, 32, 8, 64, 4096, 102_400, 65_536], 1e6, true,
        r#""rms_norm_eps": 1e-5, "hidden_act": "silu", "sliding_window": null"#),
    Preset("hyperclovax-seed-1.5b", "llama", [24, 2048, 16, 8, 128, 7168, 110_592, 8192], 5e5, true, EPS_5),
    Preset("kanana-1.5-2.1b", "llama", [32, 1792, 24, 8, 128, 8064, 128_259, 32_768], 5e5, true, EPS_5),
];

/// All preset names.
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.0).collect()
}

/// The config of a preset.
pub fn config(name: &str) -> Option<Value> {
    let preset = PRESETS.iter().find(|preset| preset.0 == name)?;
    let Preset(_, model_type, numbers, theta, tied, others) = *preset;
    let mut config: Map<String, Value> = serde_json::from_str(&format!("{{{others}}}")).ok()?;
    for (field, number) in FIELDS.split(' ').zip(numbers).filter(|(_, n)| *n > 0) {
        config.insert(field.to_string(), number.into());
    }
    config.insert("model_type".to_string(), model_type.into());
    config.insert("rope_theta".to_string(), json!(theta));
    config.insert("tie_word_embeddings".to_string(), tied.into());
    Some(Value::Object(config))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_preset_is_a_model() {
        for name in super::names() {
            let config = super::config(name).unwrap();
            crate::families::from_config(&config).map_err(|e| format!("{name}: {e}")).unwrap();
        }
        assert!(super::config("no such").is_none());
    }
}
