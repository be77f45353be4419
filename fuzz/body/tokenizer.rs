//! Shared by a fuzz target and a test: reads bytes as a `tokenizer.json`, encodes texts, decodes
//! and streams ids. Nothing may panic or take unreasonably long.

use troika_model::tokenizer::{Detokenizer, Tokenizer};

const TEXTS: [&str; 5] = [
    "",
    "a",
    "Hello, hello wörld!  x\n\n\t12345 'll <s></s> <|endoftext|> ",
    "\u{1}\u{ad}e\u{301}\u{FDFA}\u{FFFD}日本語🦀👩‍👧▁▁ ##ing </w>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Reads `data` and uses what it makes.
pub fn run(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(data) else { return };
    for text in TEXTS {
        for parse_special in [true, false] {
            if let Ok(ids) = tokenizer.encode(text, true, parse_special) {
                decode(&tokenizer, &ids);
            }
        }
    }
    let ids: Vec<u32> = (0..200).flat_map(|i| [i, i % 3, u32::MAX - i]).collect();
    decode(&tokenizer, &ids);
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) {
    let _ = tokenizer.decode(ids, false);
    let _ = tokenizer.decode(&ids[..ids.len().min(1)], true);
    let mut stream = Detokenizer::new(tokenizer);
    ids.iter().for_each(|&id| drop(stream.push(id)));
    stream.finish();
}
