//! Work that must stay proportional: at these sizes, quadratic work would take minutes to hours.

use serde_json::{Value, json};
use troika_model::tokenizer::{Detokenizer, Tokenizer};

use super::sentencepiece;

const MANY: usize = 2_000_000;
/// Tokens that must be decoded together with their neighbours.
const FEW: usize = 30_000;

/// Byte-level, with a special token (0), one with empty text (1), a byte that starts a character
/// (2), a byte that occurs in none (3), and letters.
fn tokenizer(decoder: Value) -> Tokenizer {
    let json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": decoder,
        "model": {"type": "BPE", "merges": [],
                  "vocab": {"<s>": 0, "": 1, "<0xC3>": 2, "<0xFF>": 3, "▁a": 4, "<0xA9>": 5}},
    });
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

fn llama() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]})
}

/// All ids, then an "a"; the text.
fn stream(t: &Tokenizer, ids: impl Iterator<Item = u32>) -> String {
    let mut stream = Detokenizer::new(t);
    let mut text: String = ids.filter_map(|id| stream.push(id)).collect();
    text.extend(stream.push(4));
    text.push_str(&stream.finish());
    text
}

#[test]
fn tokens_without_text_take_no_longer_as_they_grow_in_number() {
    let t = tokenizer(llama());
    assert_eq!(stream(&t, std::iter::repeat_n(0, MANY)), "a");
    assert_eq!(stream(&t, [4].into_iter().chain(std::iter::repeat_n(0, MANY))), "a a");
    assert_eq!(stream(&t, [4].into_iter().chain(std::iter::repeat_n(1, FEW))), "a a");
    assert_eq!(stream(&t, std::iter::repeat_n(u32::MAX, MANY)), "a");
}

#[test]
fn bytes_of_no_character_take_no_longer_as_they_grow_in_number() {
    let t = tokenizer(llama());
    for byte in [2, 3] {
        let text = stream(&t, std::iter::repeat_n(byte, FEW));
        assert!(text.ends_with(" a"), "{:?}", &text[text.len() - 12..]);
        assert!(text.trim_end_matches(" a").chars().all(|c| c == char::REPLACEMENT_CHARACTER));
        assert_eq!(text.chars().count(), FEW + 2);
    }
    // Two bytes of a character separated by a special token still form the character.
    assert_eq!(stream(&t, [2, 0, 5].into_iter()), "é a");
}

#[test]
fn a_decoder_that_shortens_text_ends_too() {
    // Each "a" in a row but the first is dropped.
    let ctc =
        json!({"type": "CTC", "pad_token": "<s>", "word_delimiter_token": "|", "cleanup": false});
    let t = tokenizer(ctc);
    stream(&t, std::iter::repeat_n(4, FEW));
}

#[test]
fn a_piece_of_megabytes_is_refused_or_passed_over() {
    let long = || "a".repeat(8 << 20);
    let meta = sentencepiece(vec!["a".into(), long()], vec![1, 1], &[]);
    let refused = Tokenizer::from_gguf(&meta).err().unwrap();
    assert!(refused.to_string().contains("8388608 bytes"), "{refused}");
    // A special token is not combined from pieces.
    let meta = sentencepiece(vec!["a".into(), "▁".into(), long()], vec![1, 1, 3], &[]);
    let (t, _) = Tokenizer::from_gguf(&meta).unwrap().unwrap();
    assert_eq!(t.encode("a", false, true).unwrap(), [1, 0]);
    assert_eq!(t.encode(&long(), false, true).unwrap(), [2]);
    let json = json!({"added_tokens": [], "model": {
        "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [long(), -1.0]]}});
    let refused = Tokenizer::from_json(json.to_string().as_bytes()).err().unwrap();
    assert!(refused.contains("8388608 bytes"), "{refused}");
}
