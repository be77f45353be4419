//! `generation_config.json`: what a model's authors recommend.

use std::path::Path;

use serde_json::Value;
use troika_model::files::read_small;
use troika_model::spec::{GgufMeta, GgufValue};
use troika_model::tokenizer::Tokenizer;
use troika_weights::FileSource;

/// Recommended sampling and stop tokens. Absent fields are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a generation.
    pub stop_tokens: Vec<u32>,
    /// `false` asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Top-k.
    pub top_k: Option<usize>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Min-p.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repeat_penalty: Option<f32>,
}

fn ids(v: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match v {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        v => one(v).into_iter().collect(),
    }
}

/// Tokens that end a turn under these names, whatever the file's metadata lists. llama.cpp treats
/// them as ends of generation, too.
const TURN_ENDS: [&str; 10] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<end_of_utterance>",
];

impl GenerationDefaults {
    /// Adds the tokenizer's end of text and, for files without a `generation_config.json`, the
    /// usual names of turn ends.
    pub(crate) fn add_from_tokenizer(&mut self, tokenizer: &Tokenizer, by_name: bool) {
        let named = TURN_ENDS.iter().filter(|_| by_name).filter_map(|t| tokenizer.id(t));
        for id in named.chain(tokenizer.eos()) {
            if !self.stop_tokens.contains(&id) {
                self.stop_tokens.push(id);
            }
        }
    }

    /// Reads the files beside a model, or GGUF metadata. The text is a warning about a file that
    /// is there but cannot be used.
    pub fn read(source: &FileSource) -> (GenerationDefaults, Option<String>) {
        match source {
            FileSource::HuggingFace { dir, config } => from_folder(dir, config),
            FileSource::Gguf { meta, .. } => (from_gguf(meta), None),
        }
    }
}

/// The contents of a `generation_config.json`, null when there is none, and what is wrong with it.
fn read_file(path: &Path) -> (Value, Option<String>) {
    let read = match read_small(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (Value::Null, None),
        Err(e) => Err(e.to_string()),
        Ok(text) => serde_json::from_slice::<Value>(&text).map_err(|e| e.to_string()),
    };
    let why = match read {
        Ok(file @ Value::Object(_)) => {
            let end = &file["eos_token_id"];
            let many = end.as_array().map_or(1, Vec::len);
            if end.is_null() || ids(end).len() == many {
                return (file, None);
            }
            format!("its eos_token_id is {end}, which is no token id")
        }
        Ok(_) => "it is no JSON object".to_string(),
        Err(why) => why,
    };
    let warning = format!("{}: {why}; it is read as if it were not there", path.display());
    (Value::Null, Some(warning))
}

fn from_folder(dir: &Path, config: &Value) -> (GenerationDefaults, Option<String>) {
    let (file, warning) = read_file(&dir.join("generation_config.json"));
    let number = |name: &str| file[name].as_f64().filter(|n| n.is_finite());
    let mut stop_tokens = ids(&file["eos_token_id"]);
    if stop_tokens.is_empty() {
        stop_tokens = ids(&config["eos_token_id"]);
        stop_tokens.extend(ids(&config["text_config"]["eos_token_id"]));
    }
    let defaults = GenerationDefaults {
        stop_tokens,
        do_sample: file["do_sample"].as_bool(),
        temperature: number("temperature").map(|n| n as f32),
        top_k: file["top_k"].as_u64().map(|n| n as usize),
        top_p: number("top_p").map(|n| n as f32),
        min_p: number("min_p").map(|n| n as f32),
        repeat_penalty: number("repetition_penalty").map(|n| n as f32),
    };
    (defaults, warning)
}

fn from_gguf(meta: &GgufMeta) -> GenerationDefaults {
    let id = |key: &str| meta.get(key).and_then(GgufValue::as_u64).and_then(|n| n.try_into().ok());
    let keys =
        ["eos_token_id", "eot_token_id", "eom_token_id"].map(|k| format!("tokenizer.ggml.{k}"));
    let mut stop_tokens: Vec<u32> = keys.iter().filter_map(|k| id(k)).collect();
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    GenerationDefaults { stop_tokens, ..GenerationDefaults::default() }
}
