//! `tokenizer.json` files from untrusted sources: used where that is safe, else refused in a
//! sentence.

use std::path::Path;

use serde_json::{Value, json};
use troika_model::tokenizer::{Tokenizer, TokenizerError};

#[path = "../../../../fuzz/body/tokenizer.rs"]
mod body;

fn seed(name: &str) -> Value {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer");
    let bytes = std::fs::read(dir.join(name).with_extension("json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

const SEEDS: [&str; 6] =
    ["byte-level", "sentencepiece", "unigram", "wordpiece", "wordlevel", "subword"];

fn read(json: &Value) -> Result<Tokenizer, String> {
    Tokenizer::from_json(json.to_string().as_bytes())
}

/// A seed with the value at a JSON pointer changed; a missing last key is added.
fn changed(name: &str, at: &str, to: Value) -> Value {
    let mut json = seed(name);
    let (parent, key) = at.rsplit_once('/').unwrap();
    match json.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = to,
        parent => parent[key] = to,
    }
    json
}

fn ids(t: &Tokenizer, text: &str) -> Vec<u32> {
    t.encode(text, false, true).unwrap()
}

#[test]
fn seeds_are_read() {
    for name in SEEDS {
        let t = read(&seed(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(t.warnings(), [""; 0]);
        assert!(!ids(&t, "a hello").is_empty(), "{name}");
    }
}

#[test]
fn merges_are_pairs_or_lines() {
    let mut lines = seed("byte-level");
    let pair = |m: &Value| match m {
        Value::String(line) => line.split_once(' ').map(|(a, b)| json!([a, b])).unwrap(),
        pair => pair.clone(),
    };
    let list = lines["model"]["merges"].as_array().unwrap();
    let pairs: Vec<Value> = list.iter().map(pair).collect();
    let line = |p: &Value| json!(format!("{} {}", p[0].as_str().unwrap(), p[1].as_str().unwrap()));
    let first = [json!("#version: 0.2")];
    lines["model"]["merges"] = first.into_iter().chain(pairs.iter().map(line)).collect();
    for option in ["fuse_unk", "byte_fallback", "ignore_merges", "unk_token", "dropout"] {
        lines["model"][option] = Value::Null;
    }
    let pairs = read(&changed("byte-level", "/model/merges", Value::Array(pairs))).unwrap();
    let lines = read(&lines).unwrap();
    for text in ["hello", "helloahello", "a hello"] {
        assert_eq!(ids(&lines, text), ids(&pairs, text));
    }
    assert!(ids(&lines, "hello").len() < "hello".len(), "nothing was merged");
    let three = read(&changed("byte-level", "/model/merges/0", json!("a b c"))).err().unwrap();
    assert!(three.contains("no pair"), "{three}");
}

#[test]
fn truncation_and_padding_are_off() {
    // The seed truncates to four tokens with an impossible stride, and pads to 64.
    let t = read(&seed("byte-level")).unwrap();
    let plain = changed("byte-level", "/truncation", Value::Null);
    let text = "helloahelloahello";
    let expected = ids(&read(&plain).unwrap(), text);
    assert_eq!(ids(&t, text), expected);
    assert_eq!(expected, [9, 5, 1, 9, 5, 1, 9, 5]);
    let huge = changed("byte-level", "/padding/strategy/Fixed", json!(1u64 << 60));
    assert_eq!(ids(&read(&huge).unwrap(), text), expected);
    let odd = changed("byte-level", "/padding", json!("none"));
    assert_eq!(ids(&read(&odd).unwrap(), text), expected);
}

#[test]
fn a_folder_with_truncation_gives_the_whole_prompt() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), seed("byte-level").to_string()).unwrap();
    let t = Tokenizer::from_hf_dir(dir.path()).unwrap().unwrap();
    assert_eq!(ids(&t, "aaaaaaaaaaaaaaaaaaaaaaaahello").len(), 8);
    // Damage in a second file is reported.
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    let t = Tokenizer::from_hf_dir(dir.path()).unwrap().unwrap();
    assert!(t.warnings()[0].contains("tokenizer_config.json"), "{:?}", t.warnings());
    std::fs::write(dir.path().join("tokenizer.json"), "").unwrap();
    let error = Tokenizer::from_hf_dir(dir.path()).err().unwrap();
    assert!(matches!(error, TokenizerError::File(_)) && error.to_string().contains("is no JSON"));
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    std::fs::create_dir(dir.path().join("tokenizer.json")).unwrap();
    assert!(Tokenizer::from_hf_dir(dir.path()).is_err());
}

#[test]
fn dropout_is_off() {
    let t = read(&changed("byte-level", "/model/dropout", json!(0.5))).unwrap();
    for _ in 0..20 {
        assert_eq!(ids(&t, "aaaaaaaa"), [11, 11]);
    }
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    for text in [
        "",
        " ",
        "null",
        "[]",
        "{}",
        "1",
        "\"a\"",
        "{\"model\":{}}",
        "{\"model\":null}",
        "\u{feff}{}",
    ] {
        assert!(Tokenizer::from_json(text.as_bytes()).is_err(), "{text:?}");
    }
    let deep = "[".repeat(1 << 20);
    assert!(Tokenizer::from_json(deep.as_bytes()).is_err());
    let deep = format!("{{\"decoder\":{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(Tokenizer::from_json(deep.as_bytes()).is_err());
    assert!(Tokenizer::from_json(&[0xff, 0xfe, 0]).is_err());
}

/// Each of these made the crate panic, hang, or use all memory; the words must be in the error.
#[test]
fn parts_that_are_dangerous_are_refused() {
    let replace = |n: usize| {
        let one = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        json!({"type": "Sequence", "decoders": vec![one; n]})
    };
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let b = json!({"Sequence": {"id": "B", "type_id": 0}});
    let template = seed("sentencepiece")["post_processor"].clone();
    let twice = json!({"type": "Sequence", "processors": [template.clone(), template]});
    let a = json!({"Sequence": {"id": "A", "type_id": 0}});
    let bytes = |n: usize| "x".repeat(n);
    for (name, at, to, words) in [
        ("sentencepiece", "/post_processor/special_tokens", json!({}), "does not define"),
        ("sentencepiece", "/post_processor/single/1", b, "second text"),
        ("sentencepiece", "/post_processor/single", json!(vec![a; 1000]), "1000 copies"),
        ("sentencepiece", "/post_processor", twice, "follow each other"),
        ("subword", "/model/continuing_subword_prefix", json!("@@@@@@@@@@"), "makes no token"),
        ("subword", "/model/continuing_subword_prefix", json!(bytes(300)), "300 bytes"),
        ("subword", "/model/merges/0", json!(["aa</w>", "@@a</w>"]), "makes no token"),
        ("subword", "/model/merges/0", json!(["a"]), "no pair"),
        ("wordpiece", "/pre_tokenizer/pretokenizers/3/length", json!(0), "length 0"),
        ("wordpiece", "/model/max_input_chars_per_word", json!(1u64 << 40), "at most 2000"),
        ("wordpiece", "/model/vocab/he", json!(1u64 << 32), "32 bits"),
        ("wordpiece", "/model/vocab/he", json!(-1), "32 bits"),
        ("wordpiece", "/model/vocab/he", json!(0), "two tokens"),
        ("wordpiece", "/model/vocab", json!(["a"]), "vocabulary"),
        ("wordpiece", "/model/type", json!("Transformer"), "Transformer"),
        ("wordpiece", "/added_tokens/0/id", json!(1u64 << 32), "added_tokens"),
        ("wordpiece", "/added_tokens/0", json!(7), "added_tokens"),
        ("wordpiece", "/version", json!("9"), "version"),
        ("unigram", "/normalizer/normalizers/0/precompiled_charsmap", json!("/////w=="), "trie of"),
        ("unigram", "/normalizer/normalizers/0/precompiled_charsmap", json!("\u{1}"), "base64"),
        ("unigram", "/normalizer/normalizers/0/precompiled_charsmap", json!(3), "no text"),
        ("unigram", "/normalizer/normalizers/0", json!({"type": "Precompiled"}), "needs a"),
        ("unigram", "/model/unk_id", json!(100), "UnkId"),
        ("unigram", "/decoder", json!({"type": "Unheard"}), "decoder"),
        ("unigram", "/decoder", replace(60), "times longer"),
        ("sentencepiece", "/decoder/decoders/3/stop", json!(u64::MAX), "from the end"),
        ("byte-level", "/pre_tokenizer", split("(?:(?:(?=a)){9999}){9999}"), "repeats more"),
        ("byte-level", "/pre_tokenizer", split("(?:(?=a)){99999999999999999999}"), "repeats more"),
        ("byte-level", "/pre_tokenizer", split(&r"\p{L}{100}".repeat(100)), "repetitions"),
        ("byte-level", "/pre_tokenizer", split(&"(".repeat(10_000)), "pre_tokenizer"),
        ("byte-level", "/pre_tokenizer", split("("), "pre_tokenizer"),
    ] {
        let error = read(&changed(name, at, to)).err();
        let error = error.unwrap_or_else(|| panic!("{name}{at} was read ({words})"));
        assert!(error.contains(words), "{name}{at}: {error:?} lacks {words:?}");
    }
}

#[test]
fn text_that_would_grow_without_bounds_is_an_error() {
    let many = |one: Value, key: &str| json!({"type": "Sequence", key: vec![one; 60]});
    let twice = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let anywhere = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a"});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    for (part, value) in [
        ("/normalizer", many(twice, "normalizers")),
        ("/normalizer", many(anywhere, "normalizers")),
        ("/normalizer", many(json!({"type": "ByteLevel"}), "normalizers")),
        ("/pre_tokenizer", many(level, "pretokenizers")),
    ] {
        let t = read(&changed("byte-level", part, value)).unwrap();
        let error = t.encode("aé", false, true).unwrap_err();
        assert!(matches!(error, TokenizerError::TooLong(3)), "{error}");
    }
    let many =
        changed("sentencepiece", "/normalizer/normalizers/0/prepend", json!("x".repeat(1 << 28)));
    assert!(read(&many).err().unwrap().contains("added tokens"));
    // Published tokenizers' steps leave room for whole books.
    for name in SEEDS {
        let t = read(&seed(name)).unwrap();
        assert!(t.encode(&"hello ".repeat(50_000), false, true).is_ok(), "{name}");
    }
}

#[test]
fn a_decoder_that_takes_from_the_end_of_tokens_does() {
    let strip = json!({"type": "Strip", "content": "]", "start": 1, "stop": 2});
    let mut json = changed("wordlevel", "/decoder", strip);
    json["model"]["vocab"] = json!({"": 0, "]": 1, "]]": 2, "a]]]": 3, "]a": 4, "x": 5});
    json["added_tokens"] = json!([]);
    let t = read(&json).unwrap();
    for (id, text) in [(0, ""), (1, ""), (2, ""), (3, "a]"), (4, "a"), (5, "x")] {
        assert_eq!(t.decode(&[id], false).unwrap(), text, "id {id}");
    }
    assert_eq!(t.decode(&[3, 1, 4, 77], false).unwrap(), "a]a");
    assert_eq!(t.decode(&[], false).unwrap(), "");
}

#[test]
fn added_tokens_keep_the_ids_of_their_file() {
    // The vocabulary has a gap: 4 tokens, but the highest id is 7. Numbered on, "word" would be 4.
    let t = read(&seed("wordlevel")).unwrap();
    assert_eq!((t.id("word"), t.token(9).as_deref()), (Some(9), Some("word")));
    assert_eq!(ids(&t, "a word"), [1, 9]);
    let error = read(&changed("wordlevel", "/added_tokens/1/id", json!(7))).err().unwrap();
    assert!(error.contains("id 7 to two tokens"), "{error}");
    // Ids may be as high as there are.
    let t = read(&changed("wordlevel", "/added_tokens/1/id", json!(u32::MAX))).unwrap();
    assert_eq!(ids(&t, "a word"), [1, u32::MAX]);
    // A token needs content.
    let t = read(&changed("wordlevel", "/added_tokens/1/content", json!(""))).unwrap();
    assert_eq!(t.vocab_size(), 4);
    let t = read(&changed("unigram", "/added_tokens/1/id", json!(900))).unwrap();
    assert!(t.warnings()[0].contains("\"<mask>\" id 900"), "{:?}", t.warnings());
}

/// A small generator: the same cases everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides.max(1)
    }
}

/// All places in a value, as pointers.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Array(l) => {
            l.iter().enumerate().for_each(|(i, v)| places(v, format!("{at}/{i}"), found))
        }
        Value::Object(m) => m.iter().for_each(|(k, v)| {
            places(v, format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), found)
        }),
        _ => {}
    }
    found.push(at);
}

fn interesting(dice: &mut Dice) -> Value {
    match dice.roll(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(1),
        4 => json!(-1),
        5 => json!(u64::MAX),
        6 => json!(u32::MAX),
        7 => json!(""),
        8 => json!("a"),
        9 => json!("▁"),
        10 => json!([]),
        _ => json!({}),
    }
}

#[test]
fn mutated_seeds_neither_panic_nor_hang() {
    // Two places of a seed get values from elsewhere in the seeds, or harmful values.
    let seeds = SEEDS.map(seed);
    let mut dice = Dice(1);
    for case in 0..6_000 {
        let mut json = seeds[case % seeds.len()].clone();
        for _ in 0..1 + dice.roll(2) {
            let mut found = Vec::new();
            places(&json, String::new(), &mut found);
            let to = if dice.roll(2) == 0 {
                interesting(&mut dice)
            } else {
                let other = &seeds[dice.roll(seeds.len())];
                let mut theirs = Vec::new();
                places(other, String::new(), &mut theirs);
                other.pointer(&theirs[dice.roll(theirs.len())]).unwrap().clone()
            };
            *json.pointer_mut(&found[dice.roll(found.len())]).unwrap() = to;
        }
        body::run(json.to_string().as_bytes());
    }
}
