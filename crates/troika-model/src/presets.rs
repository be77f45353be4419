//! Shapes of known models, for measurements without a download, with public config values. The
//! small MoE shapes are invented.

use serde_json::{Value, json};

/// A name with the function that makes its config.
type Preset = (&'static str, fn() -> Value);

const PRESETS: &[Preset] = &[
    ("qwen3-0.6b", qwen3_0_6b),
    ("qwen3-1.7b", qwen3_1_7b),
    ("qwen3-8b", qwen3_8b),
    ("qwen3-moe-1b", qwen3_moe_1b),
    ("qwen3-moe-tiny", qwen3_moe_tiny),
    ("llama-3.2-1b", llama_3_2_1b),
    ("olmoe-1b-7b", olmoe_1b_7b),
    ("qwen1.5-1.8b", qwen1_5_1_8b),
    ("llama-2-7b", llama_2_7b),
    ("llama-3-8b", llama_3_8b),
    ("llama-3.2-3b", llama_3_2_3b),
    ("internlm2-1.8b", internlm2_1_8b),
    ("mistral-7b", mistral_7b),
    ("gemma-2b", gemma_2b),
    ("gemma-2-2b", gemma_2_2b),
    ("phi-2", phi_2),
    ("phi-3.5-moe", phi_3_5_moe),
    ("phi-tiny-moe", phi_tiny_moe),
    ("qwen3-30b-a3b", qwen3_30b_a3b),
    ("exaone-4.0-1.2b", exaone_4_1_2b),
    ("hyperclovax-seed-1.5b", hyperclovax_seed_1_5b),
    ("kanana-1.5-2.1b", kanana_1_5_2_1b),
];

/// All preset names.
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.0).collect()
}

/// The config of a preset.
pub fn config(name: &str) -> Option<Value> {
    PRESETS.iter().find(|p| p.0 == name).map(|p| p.1())
}

fn qwen3(hidden: u32, layers: u32, inter: u32) -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": inter, "vocab_size": 151_936, "max_position_embeddings": 40_960,
        "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    })
}

fn qwen3_0_6b() -> Value {
    qwen3(1024, 28, 3072)
}

fn qwen3_1_7b() -> Value {
    qwen3(2048, 28, 6144)
}

fn qwen3_8b() -> Value {
    let mut config = qwen3(4096, 36, 12_288);
    config["num_attention_heads"] = 32.into();
    config["tie_word_embeddings"] = false.into();
    config
}

fn qwen3_moe_1b() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
        "intermediate_size": 768, "moe_intermediate_size": 768, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "vocab_size": 32_000,
        "max_position_embeddings": 32_768, "rope_theta": 1e6, "tie_word_embeddings": true,
    })
}

fn qwen3_moe_tiny() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 256, "moe_intermediate_size": 256, "num_experts": 16,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "vocab_size": 2048,
        "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": true,
    })
}

fn llama_3_2_1b() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "vocab_size": 128_256, "max_position_embeddings": 131_072,
        "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    })
}

fn olmoe_1b_7b() -> Value {
    json!({
        "model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
        "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50_304,
        "max_position_embeddings": 4096, "rope_theta": 1e4, "rms_norm_eps": 1e-5,
    })
}

fn qwen1_5_1_8b() -> Value {
    json!({
        "model_type": "qwen2", "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5504,
        "vocab_size": 151_936, "max_position_embeddings": 32_768, "rope_theta": 1e6,
        "tie_word_embeddings": false,
    })
}

/// Layers, hidden size, heads, key/value heads, inner size, vocabulary.
fn llama([layers, hidden, heads, kv_heads, inter, vocab]: [u32; 6]) -> Value {
    json!({
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inter, "vocab_size": vocab, "max_position_embeddings": 8192,
        "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    })
}

fn llama_2_7b() -> Value {
    let mut config = llama([32, 4096, 32, 32, 11_008, 32_000]);
    config["max_position_embeddings"] = 4096.into();
    config["rope_theta"] = 1e4.into();
    config
}

fn llama_3_8b() -> Value {
    llama([32, 4096, 32, 8, 14_336, 128_256])
}

fn llama_3_2_3b() -> Value {
    let mut config = llama_3_2_1b();
    config["num_hidden_layers"] = 28.into();
    config["hidden_size"] = 3072.into();
    config["num_attention_heads"] = 24.into();
    config["head_dim"] = 128.into();
    config
}

fn internlm2_1_8b() -> Value {
    json!({
        "model_type": "internlm2", "num_hidden_layers": 24, "hidden_size": 2048,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
        "vocab_size": 92_544, "max_position_embeddings": 32_768, "rope_theta": 1e6,
        "rms_norm_eps": 1e-5, "bias": false, "tie_word_embeddings": false,
    })
}

fn mistral_7b() -> Value {
    let mut config = llama([32, 4096, 32, 8, 14_336, 32_000]);
    config["model_type"] = "mistral".into();
    config["max_position_embeddings"] = 32_768.into();
    config["rope_theta"] = 1e6.into();
    config
}

fn gemma_2b() -> Value {
    json!({
        "model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "intermediate_size": 16_384, "vocab_size": 256_000, "max_position_embeddings": 8192,
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
    })
}

fn gemma_2_2b() -> Value {
    json!({
        "model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "intermediate_size": 9216, "vocab_size": 256_000, "max_position_embeddings": 8192,
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    })
}

fn phi_2() -> Value {
    json!({
        "model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 10_240,
        "vocab_size": 51_200, "max_position_embeddings": 2048, "rope_theta": 1e4,
        "partial_rotary_factor": 0.4, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new",
        "qk_layernorm": false, "tie_word_embeddings": false,
    })
}

/// Without the factors of its long rope, which do not affect shapes.
fn phi_3_5_moe() -> Value {
    json!({
        "model_type": "phimoe", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 6400,
        "num_local_experts": 16, "num_experts_per_tok": 2, "vocab_size": 32_064,
        "max_position_embeddings": 131_072, "rope_theta": 1e4, "rms_norm_eps": 1e-5,
        "attention_bias": true, "lm_head_bias": true, "router_jitter_noise": 0.01,
        "tie_word_embeddings": false,
    })
}

fn phi_tiny_moe() -> Value {
    let mut config = phi_3_5_moe();
    config["num_attention_heads"] = 16.into();
    config["num_key_value_heads"] = 4.into();
    config["head_dim"] = 128.into();
    config["intermediate_size"] = 448.into();
    config["max_position_embeddings"] = 4096.into();
    config
}

fn qwen3_30b_a3b() -> Value {
    json!({
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
    })
}

fn exaone_4_1_2b() -> Value {
    json!({
        "model_type": "exaone4", "num_hidden_layers": 30, "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 4096, "vocab_size": 102_400, "max_position_embeddings": 65_536,
        "rope_theta": 1e6, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "sliding_window": null, "tie_word_embeddings": true,
    })
}

fn hyperclovax_seed_1_5b() -> Value {
    let mut config = llama([24, 2048, 16, 8, 7168, 110_592]);
    config["head_dim"] = 128.into();
    config["tie_word_embeddings"] = true.into();
    config
}

fn kanana_1_5_2_1b() -> Value {
    let mut config = llama([32, 1792, 24, 8, 8064, 128_259]);
    config["head_dim"] = 128.into();
    config["max_position_embeddings"] = 32_768.into();
    config["tie_word_embeddings"] = true.into();
    config
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
