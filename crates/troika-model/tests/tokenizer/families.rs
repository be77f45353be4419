//! Compares the families' own `tokenizer.json` with GGUF's names for them: vocabularies trained
//! with each family's pre-tokenizer, every token as a text, and a text full of edge cases.

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{PreTokenizerWrapper, Trainer};
use troika_model::spec::GgufValue;
use troika_model::tokenizer::Tokenizer;

use super::{meta, strings};

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Digits in rows, contractions in both cases, white space of all kinds, scripts without spaces,
/// emoji with joiners, combining marks composed and not, and what special tokens look like.
const HARD: &str = "I'm we'LL they'Ve it'S don't 'd 's'  ' s
0 12 123 1234 12345678901 ٣٤٥ ½²Ⅷ 3.14159 1,000,000.00 v1.2.3-rc4
tab\tdouble\t\tend \t \r\nCR\r\r\n\n\n   indented\n\n  \n trailing   \n
日本語のテキスト、漢字かな交じり文。中文没有空格，标点！한국어 문장입니다 ไทยไม่เว้นวรรค
🦀🦀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 e\u{301}a\u{308}\u{323} é ﬁ ﷺ Å \u{212B} \u{1100}\u{1161}\u{11A8} क्षि
_snake_case camelCase HTTPServer fn main() { println!(\"{:?}\", x[0]); } // ++-- <= => != \u{a0}\u{2003}\u{200b}\u{feff}
<|endoftext|><|im_start|>user\nhi<|im_end|> <|begin_of_text|>x<|eot_id|> <tool_call>{}</tool_call> <|im_ <|endoftext|
ÀÉÎõü ŁŃœß Ελληνικά Русский текст עברית العربية mixedКириллица \u{FFFD} \u{0}\u{7f}";

struct Family {
    /// GGUF's name for the pre-tokenizer.
    pre: &'static str,
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
    post_processor: Value,
    /// Content and whether it is special.
    added: &'static [(&'static str, bool)],
    bos: Option<&'static str>,
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn families() -> [Family; 3] {
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin_of_text|>": {
            "id": "<|begin_of_text|>", "ids": ["BOS"], "tokens": ["<|begin_of_text|>"]}},
    });
    [
        Family {
            pre: "gpt-2",
            normalizer: Value::Null,
            pre_tokenizer: byte_level(),
            ignore_merges: false,
            post_processor: byte_level(),
            added: &[("<|endoftext|>", true)],
            bos: None,
        },
        Family {
            pre: "qwen2",
            normalizer: json!({"type": "NFC"}),
            pre_tokenizer: split(QWEN2),
            ignore_merges: false,
            post_processor: byte_level(),
            added: &[
                ("<|endoftext|>", true),
                ("<|im_start|>", true),
                ("<|im_end|>", true),
                ("<tool_call>", false),
                ("</tool_call>", false),
            ],
            bos: None,
        },
        Family {
            pre: "llama-bpe",
            normalizer: Value::Null,
            pre_tokenizer: split(LLAMA3),
            ignore_merges: true,
            post_processor: json!({"type": "Sequence", "processors": [byte_level(), template]}),
            added: &[("<|begin_of_text|>", true), ("<|eot_id|>", true)],
            bos: Some("<|begin_of_text|>"),
        },
    ]
}

/// Trains a vocabulary of `size` tokens on the project's own texts and the difficult one. Adds
/// tokens that no merge produces, as in published vocabularies.
fn train(family: &Family, size: usize) -> (Vec<String>, Vec<(String, String)>) {
    let mut shell = tokenizers::Tokenizer::new(BPE::default());
    let pre: PreTokenizerWrapper = serde_json::from_value(family.pre_tokenizer.clone()).unwrap();
    shell.with_pre_tokenizer(Some(pre));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(size)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let texts = [
        include_str!("../../../../ARCHITECTURE.md"),
        include_str!("../../../../CONTRIBUTING.md"),
        include_str!("../../src/tokenizer/gguf.rs"),
        HARD,
        HARD,
        HARD,
    ];
    let words = |text: &str| {
        use tokenizers::PreTokenizer;
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        shell.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
        let kind = tokenizers::OffsetType::Byte;
        let splits = pieces.get_splits(tokenizers::OffsetReferential::Original, kind);
        Ok(splits.iter().map(|s| s.0.to_string()).collect())
    };
    trainer.feed(texts.iter(), words).unwrap();
    let mut model = BPE::default();
    trainer.train(&mut model).unwrap();
    let json = serde_json::to_value(&model).unwrap();
    let mut tokens: Vec<(u64, String)> = json["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(t, i)| (i.as_u64().unwrap(), t.clone()))
        .collect();
    tokens.sort();
    let mut tokens: Vec<String> = tokens.into_iter().map(|t| t.1).collect();
    assert!(tokens.len() > size / 2, "only {} tokens were trained", tokens.len());
    for word in ["Ġunreachable", "Troikas", "qzqz", "ĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠĠ"] {
        // The texts may contain one of the words by now; a token has one id.
        if !tokens.iter().any(|t| t == word) {
            tokens.push(word.into());
        }
    }
    let text = |v: &Value| v.as_str().unwrap().to_string();
    let pair = |m: &Value| (text(&m[0]), text(&m[1]));
    (tokens, json["merges"].as_array().unwrap().iter().map(pair).collect())
}

/// The same vocabulary as `tokenizer.json` and as GGUF metadata.
fn both(family: &Family) -> (Tokenizer, Tokenizer, usize) {
    let (mut tokens, merges) = train(family, 2500);
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(i, t)| (t.clone(), json!(i))).collect();
    let first = tokens.len();
    let added: Vec<Value> = family
        .added
        .iter()
        .enumerate()
        .map(|(i, (content, special))| {
            json!({"id": first + i, "content": content, "special": special, "normalized": false,
                   "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    let post = family.post_processor.to_string().replace("\"BOS\"", &first.to_string());
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": family.normalizer,
        "pre_tokenizer": family.pre_tokenizer,
        "post_processor": serde_json::from_str::<Value>(&post).unwrap(),
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges,
                  "ignore_merges": family.ignore_merges},
    });
    let hf = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();

    let mut types = vec![1; first];
    for (content, special) in family.added {
        tokens.push(content.to_string());
        types.push(if *special { 3 } else { 4 });
    }
    let count = tokens.len();
    let mut pairs = vec![
        ("model", GgufValue::Str("gpt2".into())),
        ("pre", GgufValue::Str(family.pre.into())),
        ("token_type", GgufValue::Array(types.into_iter().map(GgufValue::Int).collect())),
        ("tokens", strings(tokens)),
        ("merges", strings(merges.iter().map(|(a, b)| format!("{a} {b}")))),
    ];
    pairs.extend(family.bos.map(|_| ("bos_token_id", GgufValue::Uint(first as u64))));
    let (gguf, warning) = Tokenizer::from_gguf(&meta(pairs)).unwrap().unwrap();
    assert_eq!(warning, None);
    (hf, gguf, count)
}

#[test]
fn every_token_as_a_text_is_the_same_tokens_from_both_formats() {
    for family in families() {
        let (hf, gguf, count) = both(&family);
        let same = |text: &str| {
            for (add_special, parse_special) in [(false, true), (false, false), (true, true)] {
                // A text that starts with BOS keeps it; a template would add another.
                if add_special && family.bos.is_some_and(|bos| text.starts_with(bos)) {
                    continue;
                }
                let expected = hf.encode(text, add_special, parse_special).unwrap();
                let ids = gguf.encode(text, add_special, parse_special).unwrap();
                assert_eq!(ids, expected, "{}: {text:?}", family.pre);
                for skip in [true, false] {
                    let expected = hf.decode(&ids, skip).unwrap();
                    assert_eq!(gguf.decode(&ids, skip).unwrap(), expected, "{}", family.pre);
                }
            }
        };
        for id in 0..count as u32 {
            let spelled = hf.token(id).unwrap();
            assert_eq!(gguf.token(id).as_deref(), Some(spelled.as_str()));
            let text = hf.decode(&[id], false).unwrap();
            assert_eq!(gguf.decode(&[id], false).unwrap(), text);
            same(&text);
            same(&format!("{text}{text}"));
            same(&format!("a {text}\n"));
            same(&spelled);
        }
        same(HARD);
        for (at, _) in HARD.char_indices() {
            same(&HARD[at..]);
        }
    }
}

/// The pieces in each family, so that both formats cannot be wrong in the same way.
#[test]
fn families_split_as_their_models_were_trained() {
    let [gpt2, qwen2, llama3] = families().map(|f| both(&f).0);
    let pieces = |t: &Tokenizer, text: &str| {
        let ids = t.encode(text, false, true).unwrap();
        ids.iter().map(|&i| t.decode(&[i], false).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(pieces(&qwen2, "12345"), ["1", "2", "3", "4", "5"]);
    assert!(pieces(&llama3, "1234").iter().all(|p| p.len() <= 3));
    // GPT-2 only knows contractions in lower case.
    assert_eq!(pieces(&llama3, "x'S")[1..].concat(), "'S");
    assert_eq!(pieces(&gpt2, "qzqz").concat(), "qzqz");
    assert_ne!(pieces(&gpt2, "qzqz"), ["qzqz"], "no merge leads to it");
    assert_eq!(pieces(&llama3, "qzqz"), ["qzqz"], "words that are tokens need no merges");
    // Qwen composes characters before it splits.
    assert_eq!(qwen2.encode("e\u{301}", false, true), qwen2.encode("é", false, true));
    assert_ne!(gpt2.encode("e\u{301}", false, true), gpt2.encode("é", false, true));
    let ids = llama3.encode("x", true, true).unwrap();
    assert_eq!(llama3.token(ids[0]).as_deref(), Some("<|begin_of_text|>"));
}

/// Gemma 4's files have SentencePiece's pieces and a list of merges, which go over whole texts.
#[test]
fn pieces_with_merges_of_their_own() {
    for (model, pre) in [("gemma4", "default"), ("gpt2", "gemma4"), ("gpt2", "sarvam-moe")] {
        merges_of_pieces(model, pre);
    }
}

fn merges_of_pieces(model: &str, pre: &str) {
    let bytes = (0..=255u8).map(|b| format!("<0x{b:02X}>"));
    let pieces = ["<bos>", "▁", "a", "b", "\n", "\n\n", "▁a", "▁ab", "ab"].map(String::from);
    let count = pieces.len() + 256;
    let types = (0..count).map(|i| GgufValue::Int(if i == 0 { 3 } else { 1 }));
    let built = Tokenizer::from_gguf(&meta(vec![
        ("model", GgufValue::Str(model.into())),
        ("pre", GgufValue::Str(pre.into())),
        ("token_type", GgufValue::Array(types.collect())),
        ("tokens", strings(pieces.into_iter().chain(bytes))),
        ("merges", strings(["\n \n", "▁ a", "▁a b"])),
        ("bos_token_id", GgufValue::Uint(0)),
    ]));
    let tokenizer = built.unwrap().unwrap().0;
    // No merge leads to "ab" without a space; "é" is none of the pieces.
    let (e1, e2) = (9 + 0xC3, 9 + 0xA9);
    let ids = tokenizer.encode("ab a ab\n\né", true, true).unwrap();
    assert_eq!(ids, [0, 2, 3, 6, 7, 5, e1, e2]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "ab a ab\n\né");
}
