//! Tokenizers: GGUF metadata against `tokenizer.json`, streaming, SentencePiece.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod families;
mod streams;
mod untrusted;
mod vocabularies;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::Value;
use troika_model::spec::{GgufMeta, GgufValue};
use troika_model::tokenizer::{Detokenizer, Tokenizer};

fn tiny_moe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe")
}

fn strings(list: impl IntoIterator<Item = impl AsRef<str>>) -> GgufValue {
    GgufValue::Texts(list.into_iter().collect())
}

fn meta(pairs: Vec<(&str, GgufValue)>) -> GgufMeta {
    let full = |(k, v): (&str, GgufValue)| (format!("tokenizer.ggml.{k}"), v);
    GgufMeta(pairs.into_iter().map(full).collect::<BTreeMap<_, _>>())
}

/// The built-in model's tokenizer as GGUF metadata.
fn as_gguf() -> GgufMeta {
    let json: Value =
        serde_json::from_slice(&std::fs::read(tiny_moe().join("tokenizer.json")).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    vocab.iter().for_each(|(t, id)| tokens[id.as_u64().unwrap() as usize] = t.clone());
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(|m| match m {
        Value::String(s) => s.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let merges: Vec<String> = merges.collect();
    let special: Vec<u64> = json["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["id"].as_u64().unwrap())
        .collect();
    let types =
        (0..tokens.len() as u64).map(|i| GgufValue::Int(if special.contains(&i) { 3 } else { 1 }));
    meta(vec![
        ("model", GgufValue::Str("gpt2".into())),
        ("pre", GgufValue::Str("gpt-2".into())),
        ("token_type", GgufValue::Array(types.collect())),
        ("tokens", strings(tokens)),
        ("merges", strings(merges)),
        ("eos_token_id", GgufValue::Uint(0)),
    ])
}

const TEXTS: [&str; 6] = [
    "It was a dark and stormy night; the rain fell in torrents.",
    "  leading  and   many spaces\n\nnew\tlines ",
    "Ünïcödé, 日本語 and 🦀🦀 in 1234567 lines; don't!",
    "<|endoftext|> inside <|endoftext|>",
    "",
    "a",
];

#[test]
fn gguf_metadata_tokenizes_as_tokenizer_json_does() {
    let hf = Tokenizer::from_hf_dir(&tiny_moe()).unwrap().unwrap();
    let (gguf, warning) = Tokenizer::from_gguf(&as_gguf()).unwrap().unwrap();
    assert_eq!(warning, None);
    for text in TEXTS {
        for parse_special in [true, false] {
            let expected = hf.encode(text, false, parse_special).unwrap();
            assert_eq!(gguf.encode(text, false, parse_special).unwrap(), expected, "{text:?}");
            assert_eq!(
                gguf.decode(&expected, false).unwrap(),
                hf.decode(&expected, false).unwrap()
            );
        }
    }
    assert_eq!(hf.encode("<|endoftext|>", false, true).unwrap(), [0]);
    assert_ne!(hf.encode("<|endoftext|>", false, false).unwrap(), [0]);
}

#[test]
fn merges_of_tokens_that_a_file_lacks_are_left_out() {
    let (whole, _) = Tokenizer::from_gguf(&as_gguf()).unwrap().unwrap();
    let key = "tokenizer.ggml.merges";
    let meta = as_gguf();
    let merges = meta.get(key).unwrap().as_texts().unwrap();
    // Halves that are not tokens, halves whose whole is not a token, and one longer than any token.
    let long = format!("{} a", "q".repeat(1000));
    let lacking = ["qqzzqq zzqqzz", "Z Z", &long];
    let mut more = as_gguf();
    more.0.insert(key.into(), strings(lacking.into_iter().chain(merges.iter())));
    let (more, warning) = Tokenizer::from_gguf(&more).unwrap().unwrap();
    assert_eq!(warning, None);
    for text in TEXTS {
        let expected = whole.encode(text, false, true).unwrap();
        assert_eq!(more.encode(text, false, true).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn text_survives_the_round_trip() {
    let t = Tokenizer::from_hf_dir(&tiny_moe()).unwrap().unwrap();
    for text in TEXTS {
        let ids = t.encode(text, false, false).unwrap();
        assert_eq!(t.decode(&ids, false).unwrap(), text);
    }
}

/// Loaded once for all cases.
static TINY: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_hf_dir(&tiny_moe()).unwrap().unwrap());

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn streaming_joins_to_the_whole(text in ".{0,60}", emoji in "[🦀é日a \u{FFFD}]{0,12}") {
        let t = &*TINY;
        let whole = format!("{text}{emoji}");
        let ids = t.encode(&whole, false, false).unwrap();
        let mut stream = Detokenizer::new(t);
        let mut joined = String::new();
        for id in ids {
            let piece = stream.push(id).unwrap_or_default();
            let broken = piece.contains(char::REPLACEMENT_CHARACTER);
            prop_assert!(!broken || whole.contains(char::REPLACEMENT_CHARACTER));
            joined.push_str(&piece);
        }
        joined.push_str(&stream.finish());
        prop_assert_eq!(joined, whole);
    }

    #[test]
    fn any_ids_stream_without_a_panic(ids in proptest::collection::vec(0u32..5000, 0..40)) {
        let t = &*TINY;
        let mut stream = Detokenizer::new(t);
        for id in ids {
            stream.push(id);
        }
        stream.finish();
    }
}

/// A SentencePiece vocabulary, each token with a lower score than the one before.
fn sentencepiece(tokens: Vec<String>, types: Vec<i64>, ids: &[(&str, u64)]) -> GgufMeta {
    let scores = (0..tokens.len()).map(|i| GgufValue::Float(-(i as f64)));
    let mut pairs = vec![
        ("model", GgufValue::Str("llama".into())),
        ("scores", GgufValue::Array(scores.collect())),
        ("token_type", GgufValue::Array(types.into_iter().map(GgufValue::Int).collect())),
        ("tokens", strings(tokens)),
    ];
    pairs.extend(ids.iter().map(|(key, id)| (*key, GgufValue::Uint(*id))));
    meta(pairs)
}

/// A SentencePiece vocabulary by hand: bytes, letters, and merges ranked by score.
fn pieces() -> GgufMeta {
    let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
    let mut types = vec![2, 3, 3];
    for b in 0..256 {
        tokens.push(format!("<0x{b:02X}>"));
        types.push(6);
    }
    for p in ["▁", "h", "e", "l", "o", "ll", "he", "hell", "▁hell", "▁hello", "lo"] {
        tokens.push(p.into());
        types.push(1);
    }
    let ids = [("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)];
    sentencepiece(tokens, types, &ids)
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let (t, _) = Tokenizer::from_gguf(&pieces()).unwrap().unwrap();
    let tokens = |text: &str| -> Vec<String> {
        t.encode(text, true, true).unwrap().iter().map(|&i| t.token(i).unwrap()).collect()
    };
    assert_eq!(tokens("hello"), ["<s>", "▁hello"]);
    assert_eq!(tokens("hello hello"), ["<s>", "▁hello", "▁hello"]);
    assert_eq!(tokens("hé"), ["<s>", "▁", "h", "<0xC3>", "<0xA9>"]);
    let ids = t.encode("hello héllo", true, true).unwrap();
    assert_eq!(t.decode(&ids, true).unwrap(), "hello héllo");
    let mut stream = Detokenizer::new(&t);
    let mut joined: String = ids.iter().filter_map(|&i| stream.push(i)).collect();
    joined.push_str(&stream.finish());
    assert_eq!(joined, "hello héllo");
}

#[test]
fn contradictions_are_errors() {
    let change = |key: &str, v: GgufValue| {
        let mut m = pieces();
        m.0.insert(format!("tokenizer.ggml.{key}"), v);
        Tokenizer::from_gguf(&m).err().unwrap().to_string()
    };
    assert!(change("scores", GgufValue::Array(vec![])).contains("scores"));
    assert!(change("tokens", GgufValue::Uint(3)).contains("tokens"));
    assert!(change("model", GgufValue::Str("bert".into())).contains("bert"));
    assert!(matches!(Tokenizer::from_gguf(&GgufMeta::default()), Ok(None)));
    let mut odd = as_gguf();
    odd.0.insert("tokenizer.ggml.pre".into(), GgufValue::Str("unheard-of".into()));
    let (_, warning) = Tokenizer::from_gguf(&odd).unwrap().unwrap();
    assert!(warning.unwrap().contains("unheard-of"));
    odd.0.insert("tokenizer.ggml.merges".into(), strings(["nospace"]));
    let error = Tokenizer::from_gguf(&odd).err().unwrap().to_string();
    assert!(error.contains("tokenizer.ggml.merges has \"nospace\""), "{error}");
}
