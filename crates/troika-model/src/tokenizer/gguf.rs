//! Makes tokenizers from GGUF metadata, in the structure of `tokenizer.json`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::json::{self, Read};
use super::pre;
use super::vocab::PIECE;
use crate::spec::{GgufMeta, GgufValue};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

pub(super) struct Built {
    pub read: Read,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub warning: Option<String>,
    /// Ids of tokens that occur again in the list, with the later id.
    pub twins: HashMap<u32, u32>,
}

type Res<T> = Result<T, TokenizerError>;

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn metadata(name: &str, why: impl Into<String>) -> TokenizerError {
    TokenizerError::Metadata { key: key(name), why: why.into() }
}

fn strings<'a>(meta: &'a GgufMeta, name: &str) -> Res<Vec<&'a str>> {
    let Some(v) = meta.get(&key(name)) else { return Ok(Vec::new()) };
    let list = v.as_array().ok_or_else(|| metadata(name, "is not a list"))?;
    let all: Option<Vec<&str>> = list.iter().map(GgufValue::as_str).collect();
    all.ok_or_else(|| metadata(name, "is not a list of texts"))
}

fn numbers(meta: &GgufMeta, name: &str, len: usize) -> Res<Option<Vec<f64>>> {
    let Some(v) = meta.get(&key(name)) else { return Ok(None) };
    let list = v.as_array().ok_or_else(|| metadata(name, "is not a list"))?;
    let all: Option<Vec<f64>> = list.iter().map(GgufValue::as_f64).collect();
    let all = all.ok_or_else(|| metadata(name, "is not a list of numbers"))?;
    if all.len() != len {
        return Err(metadata(name, format!("has {} entries for {len} tokens", all.len())));
    }
    Ok(Some(all))
}

pub(super) fn build(meta: &GgufMeta) -> Res<Option<Built>> {
    let Some(model) = meta.get(&key("model")).and_then(GgufValue::as_str) else { return Ok(None) };
    let tokens = strings(meta, "tokens")?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let types = numbers(meta, "token_type", tokens.len())?;
    let mut warnings = Vec::new();
    let mut id = |name: &str| {
        let id = meta.get(&key(name))?;
        let known = id.as_u64().filter(|&i| i < tokens.len() as u64).map(|i| i as u32);
        if known.is_none() {
            warnings.push(format!(
                "the GGUF file's {} is none of its {} tokens; there is none",
                key(name),
                tokens.len()
            ));
        }
        known
    };
    let (bos, eos, unknown) = (id("bos_token_id"), id("eos_token_id"), id("unknown_token_id"));
    let flag = |name: &str| meta.get(&key(name)).and_then(GgufValue::as_bool);
    let pre_name = meta.get(&key("pre")).and_then(GgufValue::as_str).unwrap_or("default");
    let (mut json, adds_bos) = match model {
        "gpt2" => {
            let pre = pre::find(pre_name).unwrap_or_else(|| {
                warnings.push(format!(
                    "the pre-tokenizer {pre_name:?} is not known; text may be split differently \
                     from what the model was trained on"
                ));
                pre::FALLBACK
            });
            (byte_level(&tokens, &strings(meta, "merges")?, &pre)?, pre.adds_bos)
        }
        "llama" => {
            let scores = numbers(meta, "scores", tokens.len())?;
            let prefix = flag("add_space_prefix").unwrap_or(true);
            let merges = merges(&tokens, types.as_deref(), scores.as_deref())?;
            (sentencepiece(&tokens, merges, unknown, prefix), true)
        }
        other => return Err(TokenizerError::Unsupported(other.into())),
    };
    json["added_tokens"] = added(&tokens, types.as_deref());
    let read = json::tokenizer(json)
        .map_err(|e| metadata("tokens", format!("make no tokenizer: what they make {e}")))?;
    Ok(Some(Built {
        read,
        bos,
        eos,
        add_bos: flag("add_bos_token").unwrap_or(adds_bos),
        add_eos: flag("add_eos_token").unwrap_or(false),
        warning: (!warnings.is_empty()).then(|| warnings.join("; ")),
        twins: twins(&tokens),
    }))
}

/// For tokens that occur more than once in the list: text is encoded to the last one.
fn twins(tokens: &[&str]) -> HashMap<u32, u32> {
    let last: HashMap<&str, u32> = tokens.iter().zip(0..).map(|(t, i)| (*t, i)).collect();
    let earlier = |(t, i): (&&str, u32)| last.get(t).filter(|&&l| l != i).map(|&l| (i, l));
    tokens.iter().zip(0..).filter_map(earlier).collect()
}

fn vocab(tokens: &[&str]) -> Map<String, Value> {
    tokens.iter().enumerate().map(|(i, t)| ((*t).to_string(), json!(i))).collect()
}

fn added(tokens: &[&str], types: Option<&[f64]>) -> Value {
    let mut list = Vec::new();
    for (i, (token, kind)) in tokens.iter().zip(types.unwrap_or_default()).enumerate() {
        let kind = *kind as i64;
        if kind != CONTROL && kind != USER_DEFINED || token.is_empty() {
            continue;
        }
        list.push(json!({
            "id": i, "content": token, "special": kind == CONTROL, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        }));
    }
    Value::Array(list)
}

fn byte_level(tokens: &[&str], merges: &[&str], pre: &pre::Pre) -> Res<Value> {
    let vocab = vocab(tokens);
    let mut pairs = Vec::with_capacity(merges.len());
    for m in merges {
        // A merge is two tokens with a space between; tokens themselves have none.
        let (a, b) = m.split_once(' ').ok_or_else(|| metadata("merges", format!("has {m:?}")))?;
        let known = [a, b, &format!("{a}{b}")].iter().all(|t| vocab.contains_key(*t));
        if known {
            pairs.push(json!([a, b]));
        }
    }
    let split = |p: &&str| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Value> = pre.patterns.iter().map(split).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    steps.push(bytes.clone());
    Ok(json!({
        "normalizer": pre.composed.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs,
                  "ignore_merges": pre.whole_words},
    }))
}

/// The most bytes of merges for a SentencePiece vocabulary. The largest published vocabularies have
/// 600,000 merges of 20 bytes.
const MERGES: usize = 256 << 20;

/// SentencePiece BPE: merges follow from the pieces and their scores.
fn merges(tokens: &[&str], types: Option<&[f64]>, scores: Option<&[f64]>) -> Res<Vec<Value>> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    let score = |i: usize| scores.map_or(-(i as f64), |s| s[i]);
    let mut merges: Vec<(f64, usize, usize, usize)> = Vec::new();
    let mut bytes = 0;
    for (i, token) in tokens.iter().enumerate() {
        // Searching all pairs takes quadratic time in the length.
        if token.len() > PIECE {
            if types.is_some_and(|t| t[i] as i64 != NORMAL) {
                continue;
            }
            let why = format!("has a piece of {} bytes; at most {PIECE} can be", token.len());
            return Err(metadata("tokens", why));
        }
        for (at, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(at);
            if let (Some(&a), Some(&b)) = (ids.get(a), ids.get(b)) {
                merges.push((score(i), i, a, b));
                bytes += token.len();
            }
        }
        if bytes > MERGES {
            return Err(metadata("tokens", format!("make merges of more than {MERGES} bytes")));
        }
    }
    merges.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2, x.3).cmp(&(y.1, y.2, y.3))));
    Ok(merges.iter().map(|&(_, _, a, b)| json!([tokens[a], tokens[b]])).collect())
}

fn sentencepiece(
    tokens: &[&str],
    merges: Vec<Value>,
    unknown: Option<u32>,
    space_prefix: bool,
) -> Value {
    let mut normalizers =
        vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if space_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocab(tokens), "merges": merges, "byte_fallback": true,
            "fuse_unk": true, "unk_token": unknown.map(|u| tokens[u as usize]),
        },
    })
}
