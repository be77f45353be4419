//! The model of a tokenizer (its vocabulary and how words are divided), checked as it is read.

use std::collections::HashSet;
use std::mem::take;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BpeBuilder, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, ModelWrapper};

/// What checks or makes a part of a model; an error is what is wrong with the file.
type Result<T, E = String> = std::result::Result<T, E>;

/// The longest affix and piece, and the most bytes of pieces. Pieces are stored byte by byte in a
/// tree that is built and dropped recursively. SentencePiece makes pieces of up to 16 characters;
/// the largest published vocabularies have about 4 MB.
const AFFIX: usize = 256;
pub(super) const PIECE: usize = 1024;
const PIECES: usize = 16 << 20;
/// The longest word for WordPiece, whose time grows with the cube. Published models have 100.
const WORD: u64 = 2000;

/// An added token with the id its file gives it.
#[derive(Deserialize)]
pub(super) struct Added {
    pub id: u32,
    #[serde(flatten)]
    pub token: AddedToken,
}

/// Parses a part of the file.
pub(super) fn part<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| format!("has a {name} that cannot be used: {e}"))
}

/// Reads a model; `added` are the file's added tokens.
pub(super) fn model(
    mut model: Map<String, Value>,
    added: &[Added],
    warnings: &mut Vec<String>,
) -> Result<ModelWrapper> {
    let kind = match model.remove("type") {
        Some(Value::String(kind)) => kind,
        Some(other) => return Err(format!("has a model of type {other}")),
        // Early files do not name it.
        None if model.contains_key("merges") => "BPE".into(),
        None if model.get("vocab").is_some_and(Value::is_array) => "Unigram".into(),
        None if model.contains_key("max_input_chars_per_word") => "WordPiece".into(),
        None => "WordLevel".into(),
    };
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if let Some(text) = model.get(affix).and_then(Value::as_str).filter(|t| t.len() > AFFIX) {
            return Err(format!("has a {affix} of {} bytes; at most {AFFIX} can be", text.len()));
        }
    }
    if kind == "Unigram" {
        pieces(&model, added, warnings)?;
        return Ok(ModelWrapper::Unigram(part::<Unigram>("model", Value::Object(model))?));
    }
    ids(&mut model, added)?;
    match kind.as_str() {
        "BPE" => {
            let vocab: Vocab = part("model", model.remove("vocab").unwrap_or_default())?;
            let longest = vocab.keys().map(String::len).max().unwrap_or(0);
            let list = model.remove("merges").unwrap_or_default();
            let options: BpeOptions = part("model", Value::Object(model))?;
            let merges = merges(list, longest, options.prefix())?;
            bpe(vocab, merges, options)
        }
        "WordPiece" => {
            let longest = model.get("max_input_chars_per_word").and_then(Value::as_u64);
            if let Some(n) = longest.filter(|&n| n > WORD) {
                return Err(format!("has max_input_chars_per_word {n}; at most {WORD} can be"));
            }
            Ok(ModelWrapper::WordPiece(part::<WordPiece>("model", Value::Object(model))?))
        }
        "WordLevel" => {
            Ok(ModelWrapper::WordLevel(part::<WordLevel>("model", Value::Object(model))?))
        }
        other => Err(format!(
            "has a model of type {other:?}; BPE, Unigram, WordPiece and WordLevel are supported"
        )),
    }
}

/// Checks that every id belongs to one token. Adds tokens whose id the crate would not find, since
/// it numbers added tokens from the vocabulary's size.
fn ids(model: &mut Map<String, Value>, added: &[Added]) -> Result<()> {
    let Some(Value::Object(vocab)) = model.get_mut("vocab") else {
        return Err("has a model without a vocabulary".into());
    };
    let twice = |id: u32, of: &str| format!("gives id {id} to two tokens, one of them {of:?}");
    let mut taken = HashSet::with_capacity(vocab.len());
    for (token, id) in vocab.iter() {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| format!("gives token {token:?} no id of 32 bits"))?;
        if !taken.insert(id) {
            return Err(twice(id, token));
        }
    }
    let missing = missing(added, |token| vocab.contains_key(token));
    let counted = (vocab.len() as u64..).zip(&missing).all(|(id, a)| id == u64::from(a.id));
    if counted {
        return Ok(());
    }
    for a in missing {
        if !taken.insert(a.id) {
            return Err(twice(a.id, &a.token.content));
        }
        vocab.insert(a.token.content.clone(), a.id.into());
    }
    Ok(())
}

/// The added tokens that a vocabulary lacks, without duplicates.
fn missing(added: &[Added], known: impl Fn(&str) -> bool) -> Vec<&Added> {
    let mut seen = HashSet::new();
    let mut missing = Vec::new();
    for a in added {
        let token = a.token.content.as_str();
        if !token.is_empty() && !known(token) && seen.insert(token) {
            missing.push(a);
        }
    }
    missing
}

/// What a BPE model has besides its vocabulary and merges. Dropout is left out: it makes training
/// see a text in several ways, and a prompt is read in one.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct BpeOptions {
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    pub fuse_unk: Option<bool>,
    pub byte_fallback: Option<bool>,
    pub ignore_merges: Option<bool>,
}

impl BpeOptions {
    fn prefix(&self) -> &str {
        self.continuing_subword_prefix.as_deref().unwrap_or("")
    }
}

/// A BPE model.
pub(super) fn bpe(vocab: Vocab, merges: Merges, options: BpeOptions) -> Result<ModelWrapper> {
    let mut builder = BpeBuilder::new()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(options.fuse_unk.unwrap_or(false))
        .byte_fallback(options.byte_fallback.unwrap_or(false))
        .ignore_merges(options.ignore_merges.unwrap_or(false));
    if let Some(token) = options.unk_token {
        builder = builder.unk_token(token);
    }
    if let Some(prefix) = options.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = options.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    let model = builder.build().map_err(|e| format!("has a model that cannot be used: {e}"))?;
    Ok(ModelWrapper::BPE(model))
}

/// Reads merges: lines of two tokens, or pairs. The crate joins a merge's halves in a buffer as
/// long as the longest token, without the second half's prefix, and looks for neither.
fn merges(list: Value, longest: usize, prefix: &str) -> Result<Merges> {
    let Value::Array(list) = list else { return Err("has a model without merges".into()) };
    let mut merges = Merges::with_capacity(list.len());
    for merge in list {
        let no_pair = |merge: &Value| format!("has the merge {merge}, which is no pair");
        let (a, b) = match merge {
            Value::String(line) if line.starts_with("#version") => continue,
            Value::String(line) => match line.split_once(' ') {
                Some((a, b)) if !b.contains(' ') => (a.into(), b.into()),
                _ => return Err(no_pair(&line.into())),
            },
            Value::Array(mut pair) => match pair.as_mut_slice() {
                [Value::String(a), Value::String(b)] => (take(a), take(b)),
                _ => return Err(no_pair(&pair.into())),
            },
            other => return Err(no_pair(&other)),
        };
        let joined = b.strip_prefix(prefix).map(|rest| a.len() + rest.len());
        if joined.is_none_or(|n| n > longest) {
            return Err(format!("has the merge {}, which makes no token", json!([a, b])));
        }
        merges.push((a, b));
    }
    Ok(merges)
}

/// Checks the pieces of a Unigram model.
fn pieces(model: &Map<String, Value>, added: &[Added], warnings: &mut Vec<String>) -> Result<()> {
    let list = model.get("vocab").and_then(Value::as_array);
    let list = list.ok_or("has a Unigram model without a list of pieces")?;
    let pieces = || list.iter().filter_map(|p| p[0].as_str());
    let (most, all) = pieces().fold((0, 0), |(most, all), p| (p.len().max(most), all + p.len()));
    if most > PIECE || all > PIECES {
        return Err(format!(
            "has pieces of up to {most} bytes, {all} together; at most {PIECE} and {PIECES} can be"
        ));
    }
    let known: HashSet<&str> = pieces().collect();
    for (id, a) in (list.len() as u64..).zip(missing(added, |t| known.contains(t))) {
        if id != u64::from(a.id) {
            warnings.push(format!(
                "the tokenizer gives {:?} id {}, it is read as id {id}, the next after its pieces",
                a.token.content, a.id
            ));
            break;
        }
    }
    Ok(())
}
