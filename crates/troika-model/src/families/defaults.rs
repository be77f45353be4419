//! Default sizes for absent config fields, from the transformers library's config classes.

use serde_json::{Map, Value};

const SIZES: &str = "vocab_size hidden_size intermediate_size num_hidden_layers \
    num_attention_heads num_key_value_heads";

/// Values for [`SIZES`]; 0 key/value heads mean as many as heads.
const CLASSES: &[(&str, [u32; 6])] = &[
    ("cohere2", [256_000, 8192, 22_528, 40, 64, 0]),
    ("deepseek_v2", [102_400, 4096, 11_008, 32, 32, 0]),
    ("exaone4", [102_400, 4096, 16_384, 32, 32, 32]),
    ("gemma", [256_000, 3072, 24_576, 28, 16, 16]),
    ("gemma2", [256_000, 2304, 9216, 26, 8, 4]),
    ("gemma3_text", [262_208, 2304, 9216, 26, 8, 4]),
    ("gemma3n_text", [262_400, 2048, 16_384, 35, 8, 2]),
    ("gpt_oss", [201_088, 2880, 2880, 36, 64, 8]),
    ("internlm2", [103_168, 4096, 11_008, 32, 32, 0]),
    ("llama", [32_000, 4096, 11_008, 32, 32, 0]),
    ("ministral3", [131_072, 4096, 14_336, 34, 32, 8]),
    ("mistral", [32_000, 4096, 14_336, 32, 32, 8]),
    ("mixtral", [32_000, 4096, 14_336, 32, 32, 8]),
    ("olmoe", [50_304, 2048, 2048, 16, 16, 0]),
    ("phi", [51_200, 2048, 8192, 24, 32, 0]),
    ("phi3", [32_064, 3072, 8192, 32, 32, 0]),
    ("phimoe", [32_064, 4096, 6400, 32, 32, 8]),
    ("qwen2", [151_936, 4096, 22_016, 32, 32, 32]),
    ("qwen2_moe", [151_936, 2048, 5632, 24, 16, 16]),
    ("qwen3", [151_936, 4096, 22_016, 32, 32, 32]),
    ("qwen3_moe", [151_936, 2048, 6144, 24, 32, 4]),
    ("smollm3", [128_256, 2048, 11_008, 36, 16, 4]),
];

/// Adds a config's class defaults. At the top level the library writes all sizes (a missing one is
/// an error when read), but in a nested config it omits those that equal the class's default.
pub(super) fn fill(name: &str, config: &Map<String, Value>, nested: bool) -> Map<String, Value> {
    let mut filled = config.clone();
    let Some((_, sizes)) = CLASSES.iter().find(|c| c.0 == name) else { return filled };
    for (field, &size) in SIZES.split(' ').zip(sizes) {
        if size > 0 && (nested || field == "num_key_value_heads") {
            filled.entry(field).or_insert(size.into());
        }
    }
    filled
}
