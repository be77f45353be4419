//! `generation_config.json`: the recommendations of a model's authors.

use std::path::{Path, PathBuf};

use serde_json::Value;
use troika_engine::sample::SampleParams;
use troika_model::files::{parse_json, read_small};
use troika_model::spec::{GgufMeta, GgufValue};
use troika_model::tokenizer::{FimTokens, Tokenizer};
use troika_weights::FileSource;

/// Recommended sampling and stop tokens. Absent fields are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a generation.
    pub stop_tokens: Vec<u32>,
    /// `false` requests greedy decoding.
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

/// Tokens with these names end a turn, whatever the file's metadata lists. llama.cpp does the same.
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
    /// The recommended parameters; llama.cpp's defaults where there is no recommendation.
    pub fn params(&self) -> SampleParams {
        let base = SampleParams::default();
        let greedy = self.do_sample == Some(false);
        let recommended = if greedy { Some(0.0) } else { self.temperature };
        SampleParams {
            temperature: recommended.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            ..base
        }
    }

    /// Adds the tokenizer's end of text, its tokens around texts to be filled in and, for files
    /// without a `generation_config.json`, tokens with the usual names of turn ends.
    pub(crate) fn add_from_tokenizer(&mut self, tokenizer: &Tokenizer, by_name: bool) {
        let named = TURN_ENDS.iter().filter(|_| by_name).filter_map(|t| tokenizer.id(t));
        let fim = tokenizer.fim().into_iter().flat_map(FimTokens::all);
        for id in named.chain(tokenizer.eos()).chain(fim) {
            if !self.stop_tokens.contains(&id) {
                self.stop_tokens.push(id);
            }
        }
    }

    /// Reads the file beside a model of `vocab` tokens, or GGUF metadata. Returns warnings for a
    /// file or value that exists but cannot be used.
    pub fn read(source: &FileSource, vocab: usize) -> (GenerationDefaults, Vec<String>) {
        match source {
            FileSource::HuggingFace { dir, config } => from_folder(dir, config, vocab),
            FileSource::Gguf { meta, .. } => (from_gguf(meta), Vec::new()),
        }
    }
}

/// A JSON file of a model's folder; `None` if it is not there.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>, String> {
    let read = match read_small(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| e.to_string()),
    };
    let parsed = read.and_then(|text| parse_json(&text).map_err(|e| e.to_string()));
    parsed.map(Some).map_err(|why| format!("{}: {why}", path.display()))
}

/// The contents of a `generation_config.json` (null if there is none), and what is wrong with it.
fn read_file(path: &Path) -> (Value, Option<String>) {
    let why = match read_json(path) {
        Ok(None) => return (Value::Null, None),
        Ok(Some(file @ Value::Object(_))) => return (file, None),
        Ok(Some(_)) => format!("{}: it is no JSON object", path.display()),
        Err(why) => why,
    };
    (Value::Null, Some(format!("{why}; it is read as if it were not there")))
}

/// The values of a JSON file. An unusable value counts as absent, with a warning.
struct Values<'a> {
    path: PathBuf,
    json: &'a Value,
    warnings: Vec<String>,
}

impl Values<'_> {
    fn ignored(&mut self, key: &str, value: &Value, must: &str) {
        let path = self.path.display();
        self.warnings.push(format!("{path}: {key} is {value}, but must be {must}; it is ignored"));
    }

    /// A value, converted by `read`.
    fn get<T>(
        &mut self,
        key: &str,
        must: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let json = self.json;
        let value = json.get(key).filter(|v| !v.is_null())?;
        let found = read(value);
        if found.is_none() {
            self.ignored(key, value, must);
        }
        found
    }

    /// A number within the range that sampling allows for the field that `set` writes.
    fn number(&mut self, key: &str, set: impl FnOnce(&mut SampleParams, f32)) -> Option<f32> {
        let number = self.get(key, "a number", Value::as_f64)? as f32;
        let mut params = SampleParams::default();
        set(&mut params, number);
        match params.check() {
            Ok(()) => Some(number),
            Err(wrong) => {
                let json = self.json;
                self.ignored(key, &json[key], wrong.must);
                None
            }
        }
    }

    /// The valid token ids in a number or a list.
    fn tokens(&mut self, key: &str, vocab: usize) -> Vec<u32> {
        let json = self.json;
        let listed = match json.get(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let (mut ids, mut wrong) = (Vec::new(), None);
        for value in listed {
            let id = value.as_u64().and_then(|n| u32::try_from(n).ok());
            match id.filter(|&id| (id as usize) < vocab) {
                Some(id) => ids.push(id),
                None => wrong = wrong.or(Some(value)),
            }
        }
        // One warning per list, however many of its values are wrong.
        if let Some(value) = wrong {
            let must = format!("a token id, a whole number from 0 to {}", vocab.saturating_sub(1));
            self.ignored(key, value, &must);
        }
        ids
    }
}

fn from_folder(dir: &Path, config: &Value, vocab: usize) -> (GenerationDefaults, Vec<String>) {
    let path = dir.join("generation_config.json");
    let (file, warning) = read_file(&path);
    let mut file = Values { path, json: &file, warnings: warning.into_iter().collect() };
    let mut stop_tokens = file.tokens("eos_token_id", vocab);
    let defaults = GenerationDefaults {
        do_sample: file.get("do_sample", "true or false", Value::as_bool),
        temperature: file.number("temperature", |p, n| p.temperature = n),
        top_k: file.get("top_k", "a whole number of 0 or more", |v| v.as_u64()?.try_into().ok()),
        top_p: file.number("top_p", |p, n| p.top_p = n),
        min_p: file.number("min_p", |p, n| p.min_p = n),
        repeat_penalty: file.number("repetition_penalty", |p, n| p.repeat_penalty = n),
        stop_tokens: Vec::new(),
    };
    let mut warnings = file.warnings;
    let use_config = stop_tokens.is_empty();
    for json in [config, &config["text_config"]] {
        let path = dir.join("config.json");
        let mut values = Values { path, json, warnings: Vec::new() };
        let ids = values.tokens("eos_token_id", vocab);
        warnings.extend(values.warnings);
        if use_config {
            stop_tokens.extend(ids);
        }
    }
    (GenerationDefaults { stop_tokens, ..defaults }, warnings)
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
