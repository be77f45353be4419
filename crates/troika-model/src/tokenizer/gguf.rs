//! Makes tokenizers from GGUF metadata, in the structure of `tokenizer.json`.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::{Model, ModelWrapper};

use super::encode::Tokenizer;
use super::error::{Result, TokenizerError};
use super::vocab::{self, BpeOptions, PIECE};
use super::{json, pre};
use crate::spec::{GgufMeta, GgufValue};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
/// Pre-tokenizers of vocabularies of SentencePiece's pieces with merges of their own, as Gemma 4's.
const OF_PIECES: [&str; 3] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn metadata(name: &str, why: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::File(format!("the GGUF file's {} {why}", key(name)))
}

fn texts<'a>(meta: &'a GgufMeta, name: &str) -> Result<impl Iterator<Item = &'a str>> {
    let Some(v) = meta.get(&key(name)) else { return Ok(None.into_iter().flatten()) };
    let list = v.as_texts().ok_or_else(|| metadata(name, "is not a list of texts"))?;
    Ok(Some(list.iter()).into_iter().flatten())
}

fn numbers(meta: &GgufMeta, name: &str, len: usize) -> Result<Option<Vec<f64>>> {
    let Some(v) = meta.get(&key(name)) else { return Ok(None) };
    let list = v.as_array().ok_or_else(|| metadata(name, "is not a list"))?;
    let all: Option<Vec<f64>> = list.iter().map(GgufValue::as_f64).collect();
    let all = all.ok_or_else(|| metadata(name, "is not a list of numbers"))?;
    if all.len() != len {
        return Err(metadata(name, format!("has {} entries for {len} tokens", all.len())));
    }
    Ok(Some(all))
}

impl Tokenizer {
    /// Makes the tokenizer of a GGUF file; `None` if the file has none. Also returns a warning
    /// about an unknown pre-tokenizer.
    ///
    /// # Errors
    /// Inconsistent metadata, or an unsupported kind of tokenizer.
    pub fn from_gguf(meta: &GgufMeta) -> Result<Option<(Tokenizer, Option<String>)>> {
        let Some((mut tokenizer, warnings)) = build(meta)? else { return Ok(None) };
        tokenizer.fim = tokenizer.find_fim(Some(meta));
        Ok(Some((tokenizer, (!warnings.is_empty()).then(|| warnings.join("; ")))))
    }
}

/// The tokenizer of a file, if it has one, with warnings.
fn build(meta: &GgufMeta) -> Result<Option<(Tokenizer, Vec<String>)>> {
    let text = |name: &str| meta.get(&key(name)).and_then(GgufValue::as_str);
    let Some(model) = text("model") else { return Ok(None) };
    let tokens: Vec<&str> = texts(meta, "tokens")?.collect();
    if tokens.is_empty() {
        return Ok(None);
    }
    let (types, mut warnings) = (numbers(meta, "token_type", tokens.len())?, Vec::new());
    let [bos, eos] = ["bos_token_id", "eos_token_id"]
        .map(|name| special(meta, name, tokens.len(), &mut warnings));
    let flag = |name: &str| meta.get(&key(name)).and_then(GgufValue::as_bool);
    let spelled = model == "gpt2" && text("pre").is_some_and(|pre| OF_PIECES.contains(&pre));
    let model = if spelled { "gemma4" } else { model };
    let (mut json, model, adds_bos) = match model {
        "gpt2" => {
            let pre = pre_tokenizer(meta, &mut warnings);
            let model = bpe_of_bytes(&tokens, &pairs(texts(meta, "merges")?)?, &pre)?;
            (byte_level(&pre), model, pre.adds_bos)
        }
        // SentencePiece's pieces with merges of their own.
        "gemma4" => {
            let unknown = special(meta, "unknown_token_id", tokens.len(), &mut warnings);
            let merges = pairs(texts(meta, "merges")?)?.into_iter();
            let merges = merges.map(|(a, b)| (a.into(), b.into())).collect();
            (sentencepiece(false), of_pieces(&tokens, vocabulary(&tokens), merges, unknown)?, true)
        }
        "llama" => {
            let unknown = special(meta, "unknown_token_id", tokens.len(), &mut warnings);
            let scores = numbers(meta, "scores", tokens.len())?;
            let vocab = vocabulary(&tokens);
            let merges = merges(&tokens, types.as_deref(), scores.as_deref(), &vocab)?;
            let prefix = flag("add_space_prefix").unwrap_or(true);
            (sentencepiece(prefix), of_pieces(&tokens, vocab, merges, unknown)?, true)
        }
        other => {
            let supported = "gpt2 (byte-level BPE), llama (SentencePiece)";
            let why = format!("tokenizer model {other:?} is not supported; supported: {supported}");
            return Err(TokenizerError::File(why));
        }
    };
    json["added_tokens"] = added(&tokens, types.as_deref());
    let twins = twins(&tokens, &model);
    let mut tokenizer = Tokenizer::of(json::tokenizer(json, Some(model)).map_err(no_tokenizer)?);
    let adds_bos = flag("add_bos_token").unwrap_or(adds_bos);
    tokenizer.add = Some((adds_bos, flag("add_eos_token").unwrap_or(false)));
    (tokenizer.bos, tokenizer.eos, tokenizer.twins) = (bos, eos, twins);
    tokenizer.warnings.clear();
    Ok(Some((tokenizer, warnings)))
}

/// The id of a special token, if the file names one of its `count` tokens.
fn special(meta: &GgufMeta, name: &str, count: usize, warnings: &mut Vec<String>) -> Option<u32> {
    let id = meta.get(&key(name))?;
    let known = id.as_u64().filter(|&id| id < count as u64).map(|id| id as u32);
    if known.is_none() {
        let key = key(name);
        warnings
            .push(format!("the GGUF file's {key} is none of its {count} tokens; there is none"));
    }
    known
}

fn pre_tokenizer(meta: &GgufMeta, warnings: &mut Vec<String>) -> pre::Pre {
    let name = meta.get(&key("pre")).and_then(GgufValue::as_str).unwrap_or("default");
    pre::find(name).unwrap_or_else(|| {
        warnings.push(format!(
            "the pre-tokenizer {name:?} is not known; text may be split differently from what the \
             model was trained on"
        ));
        pre::FALLBACK
    })
}

fn no_tokenizer(why: String) -> TokenizerError {
    metadata("tokens", format!("make no tokenizer: what they make {why}"))
}

/// Ids whose token stands in the list again, by the id it has there.
fn twins(tokens: &[&str], model: &ModelWrapper) -> HashMap<u32, u32> {
    if tokens.len() == model.get_vocab_size() {
        return HashMap::new();
    }
    let last = |(t, i): (&&str, u32)| model.token_to_id(t).filter(|&l| l != i).map(|l| (i, l));
    tokens.iter().zip(0..).filter_map(last).collect()
}

/// Of tokens that stand in the list more than once, the last is the one text is encoded to.
fn vocabulary(tokens: &[&str]) -> Vocab {
    tokens.iter().map(|&t| t.to_string()).zip(0..).collect()
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

/// Merges: each is two tokens with a space between; tokens themselves have none.
fn pairs<'a>(merges: impl Iterator<Item = &'a str>) -> Result<Vec<(&'a str, &'a str)>> {
    let bad = |m: &str| metadata("merges", format!("has {m:?}"));
    merges.map(|m| m.split_once(' ').ok_or_else(|| bad(m))).collect()
}

/// A model that merges bytes, which are spelled as letters.
fn bpe_of_bytes(tokens: &[&str], merges: &[(&str, &str)], pre: &pre::Pre) -> Result<ModelWrapper> {
    let longest = tokens.iter().map(|t| t.len()).max().unwrap_or(0);
    let build = |all: bool| {
        let vocab = vocabulary(tokens);
        let known = |a: &str, b: &str| {
            let [a, b, joined] = [a, b, &[a, b].concat()].map(|t| vocab.contains_key(t));
            a && b && joined
        };
        let merges = merges.iter().filter(|(a, b)| a.len() + b.len() <= longest);
        let merges = merges.filter(|(a, b)| all || known(a, b));
        let merges = merges.map(|&(a, b)| (a.into(), b.into())).collect();
        let options = BpeOptions { ignore_merges: Some(pre.whole_words), ..BpeOptions::default() };
        vocab::bpe(vocab, merges, options)
    };
    // The crate looks each merge's tokens up, too: only where one is missing it is done twice.
    build(true).or_else(|_| build(false)).map_err(no_tokenizer)
}

fn byte_level(pre: &pre::Pre) -> Value {
    let split = |p: &&str| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Value> = pre.patterns.iter().map(split).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    steps.push(bytes.clone());
    json!({
        "normalizer": pre.composed.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": bytes,
    })
}

/// The most bytes of merges for a SentencePiece vocabulary. The largest published vocabularies have
/// 600,000 merges of 20 bytes.
const MERGES: usize = 256 << 20;

/// The merges of SentencePiece's pieces follow from these and their scores.
fn merges(
    tokens: &[&str],
    types: Option<&[f64]>,
    scores: Option<&[f64]>,
    ids: &Vocab,
) -> Result<Merges> {
    let score = |i: usize| scores.map_or(-(i as f64), |s| s[i]);
    let mut merges: Vec<(f64, u32, u32, u32)> = Vec::new();
    let mut bytes = 0;
    for (i, token) in tokens.iter().enumerate() {
        // Looking for all pairs takes time that grows with the square of the length.
        if token.len() > PIECE {
            if types.is_some_and(|t| t[i] as i64 != NORMAL) {
                continue;
            }
            let why = format!("has a piece of {} bytes; at most {PIECE} can be", token.len());
            return Err(metadata("tokens", why));
        }
        for (at, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(at);
            if let Some(&a) = ids.get(a)
                && let Some(&b) = ids.get(b)
            {
                merges.push((score(i), i as u32, a, b));
                bytes += token.len();
            }
        }
        if bytes > MERGES {
            return Err(metadata("tokens", format!("make merges of more than {MERGES} bytes")));
        }
    }
    merges.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2, x.3).cmp(&(y.1, y.2, y.3))));
    let text = |id: u32| tokens[id as usize].to_string();
    Ok(merges.iter().map(|&(_, _, a, b)| (text(a), text(b))).collect())
}

/// A model of pieces, which spells what is none of them by bytes, or by the token `unknown`.
fn of_pieces(
    tokens: &[&str],
    vocab: Vocab,
    merges: Merges,
    unknown: Option<u32>,
) -> Result<ModelWrapper> {
    let options = BpeOptions {
        unk_token: unknown.map(|id| tokens[id as usize].into()),
        fuse_unk: Some(true),
        byte_fallback: Some(true),
        ..BpeOptions::default()
    };
    vocab::bpe(vocab, merges, options).map_err(no_tokenizer)
}

fn sentencepiece(space_prefix: bool) -> Value {
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
        "decoder": {"type": "Sequence", "decoders": decoders},
    })
}
