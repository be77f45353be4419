use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// The reference: the same vocabulary with its control tokens spelled otherwise. There the
/// spellings in question are plain text, and the markers of the template are not.
struct Pair {
    tokenizer: Tokenizer,
    reference: Tokenizer,
}

const NAMES: [(&str, &str); 4] =
    [("<|im_begin|>", "{A}"), ("<|im_stop|>", "{B}"), ("<|user|>", "{C}"), ("</s>", "{D}")];

fn rename(text: &str) -> String {
    NAMES.iter().fold(text.to_string(), |t, (old, new)| t.replace(old, new))
}

fn load(json: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"bos_token": "</s>"}"#).unwrap();
    Tokenizer::from_hf_dir(dir.path()).unwrap().unwrap()
}

/// A vocabulary with control tokens. One of them takes the space behind it.
fn pair(mut json: Value, first: usize) -> Pair {
    let token = |id: usize, content: &str, special: bool, rstrip: bool| {
        json!({
            "id": id, "content": content, "special": special, "rstrip": rstrip, "lstrip": false,
            "normalized": false, "single_word": false,
        })
    };
    let added = |name: fn(&(&'static str, &'static str)) -> &'static str| {
        let mut list: Vec<Value> = NAMES
            .iter()
            .enumerate()
            .map(|(i, n)| token(first + i, name(n), true, n.0 == "<|user|>"))
            .collect();
        list.push(token(first + NAMES.len(), "<think>", false, false));
        Value::Array(list)
    };
    json["added_tokens"] = added(|n| n.0);
    let tokenizer = load(&json);
    json["added_tokens"] = added(|n| n.1);
    Pair { tokenizer, reference: load(&json) }
}

/// The built-in model's tokenizer, and the first id behind its vocabulary.
fn tiny_moe() -> (Value, usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe/tokenizer.json");
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let size = json["model"]["vocab"].as_object().unwrap().len();
    (json, size)
}

fn byte_level() -> Pair {
    let (json, size) = tiny_moe();
    pair(json, size)
}

fn characters() -> Vec<String> {
    let ascii = (0x21..0x7f).map(|c| char::from(c).to_string());
    ["<unk>", "▁", "é"].into_iter().map(String::from).chain(ascii).collect()
}

/// SentencePiece's BPE as `tokenizer.json`s have it: a space is put before every part of a text
/// that a control token cuts out.
fn sentencepiece_bpe() -> Pair {
    let mut tokens = characters();
    tokens.extend(["▁a", "▁b", "ab", "im", "<|", "|>", "</", "s>"].map(String::from));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(i, t)| (t.clone(), json!(i))).collect();
    let merges = [
        ["▁", "a"],
        ["▁", "b"],
        ["a", "b"],
        ["i", "m"],
        ["<", "|"],
        ["|", ">"],
        ["<", "/"],
        ["s", ">"],
    ];
    let json = json!({
        "version": "1.0", "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": true},
    });
    pair(json, tokens.len())
}

/// SentencePiece's unigrams, with a space before the first part only.
fn unigram(own: &[&str]) -> Pair {
    let mut tokens = characters();
    tokens.extend(["▁a", "▁b", "ab", "im", "<|", "|>"].map(String::from));
    tokens.extend(own.iter().map(|s| s.to_string()));
    let vocab: Vec<Value> =
        tokens.iter().map(|t| json!([t, -8.0 + t.chars().count() as f64])).collect();
    let space =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
    let json = json!({
        "version": "1.0", "normalizer": null, "post_processor": null, "pre_tokenizer": space,
        "decoder": space, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    });
    let first = if own.is_empty() { tokens.len() } else { tokens.len() + 100 };
    pair(json, first)
}

/// Texts with their plain control tokens in `«»`.
const TEXTS: [&str; 9] = [
    "<|im_begin|>user\nab «<|im_stop|>» ab<|im_stop|>\n",
    "«<|im_begin|>»ab <|im_stop|> ab",
    "<|im_stop|>ab«<|im_stop|>»",
    "<|user|>  «<|im_stop|>» ab <|user|> «<|user|>» b",
    "«<|im_stop|>»«<|im_begin|>»system<|im_stop|><|im_begin|>",
    "é é «<|im_stop|>» <think> «</s>» b</s>",
    "«<|im_stop|>»",
    " «<|im_begin|>» <|im_begin|> ",
    "a «<|user|>»<|im_stop|>«</s>»",
];

fn split(marked: &str) -> (String, Vec<usize>, String) {
    let (mut text, mut plain, mut renamed) = (String::new(), Vec::new(), String::new());
    for (i, part) in marked.split(['«', '»']).enumerate() {
        if i % 2 == 1 {
            plain.push(text.len());
        }
        text.push_str(part);
        renamed.push_str(&if i % 2 == 1 { part.to_string() } else { rename(part) });
    }
    (text, plain, renamed)
}

#[test]
fn marked_spellings_are_what_they_are_in_a_vocabulary_without_them() {
    for (kind, p) in
        [("BPE", byte_level()), ("SPM", sentencepiece_bpe()), ("unigram", unigram(&[]))]
    {
        for marked in TEXTS {
            let (text, plain, renamed) = split(marked);
            let ids = p.tokenizer.encode_marked(&text, &plain, false).unwrap();
            let expected = p.reference.encode(&renamed, false, true).unwrap();
            assert_eq!(ids, expected, "{kind}: {marked}");
            let live = p.tokenizer.encode(&text, false, true).unwrap();
            assert_ne!(ids, live, "{kind}: {marked}");
        }
    }
}

#[test]
fn without_plain_control_tokens_nothing_changes() {
    for p in [byte_level(), sentencepiece_bpe(), unigram(&[])] {
        for text in [
            "",
            "a",
            " ab  a\n<think>b",
            "<|im_begin|>ab <|user|>  a <|im_stop|>",
            "<|im_",
            "</s>a",
        ] {
            // Marks that no control token covers.
            for plain in [&[][..], &[text.len()], &[text.find('a').unwrap_or(0) + 1_000_000]] {
                for add_special in [false, true] {
                    assert_eq!(
                        p.tokenizer.encode_marked(text, plain, add_special).unwrap(),
                        p.tokenizer.encode(text, add_special, true).unwrap(),
                        "{text:?}"
                    );
                }
            }
        }
    }
}

/// Unigram models find pieces of their vocabulary by themselves, control tokens among them.
#[test]
fn a_piece_that_is_a_control_token_is_spelled_by_others() {
    let p = unigram(&["</s>"]);
    let control = p.tokenizer.id("</s>").unwrap();
    let (text, plain, _) = split("ab «</s>» a</s>");
    let ids = p.tokenizer.encode_marked(&text, &plain, false).unwrap();
    let at: Vec<usize> = (0..ids.len()).filter(|&i| ids[i] == control).collect();
    assert_eq!(at, [ids.len() - 1]);
    assert_eq!(p.tokenizer.decode(&ids, false).unwrap(), text);
}

#[test]
fn bos_is_added_once() {
    let (mut json, size) = tiny_moe();
    json["post_processor"] = json!({
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [size + 3], "tokens": ["</s>"]}},
    });
    let t = pair(json, size).tokenizer;
    let bos = t.id("</s>").unwrap();
    let ids = t.encode_marked("a <|im_stop|>", &[2], true).unwrap();
    assert_eq!(ids[0], bos);
    assert_eq!(ids[1..], t.encode_marked("a <|im_stop|>", &[2], false).unwrap());
    assert_eq!(t.control_tokens(), NAMES.map(|n| n.0));
}
