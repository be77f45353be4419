//! Shapes of known models, for measurements without a download. Public config values; the small
//! MoE shapes are made up.

use serde_json::{Value, json};

/// A name with the function that makes the config.
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
