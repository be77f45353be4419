//! Prompts of about so many tokens, each another text.

use serde_json::{Value, json};

use super::WAIT;
use super::address::Address;
use super::http::Connection;
use crate::command::Result;
use crate::random::Random;

const WORDS: &[&str] = &[
    "the", "night", "was", "dark", "and", "an", "old", "man", "went", "over", "moor", "with",
    "his", "horse", "to", "castle", "of", "a", "lord", "who", "had", "lost", "all", "that", "he",
    "loved", "in", "war", "she", "looked", "at", "him", "but", "spoke", "no", "word", "for",
    "long", "time", "then", "came", "wind", "from", "sea", "upon", "window", "fire", "burned",
    "low", "king", "rode", "forth", "before", "day", "when", "they", "heard", "voice", "her",
    "letter", "lay", "there", "still", "said", "my", "dear", "friend", "I", "have", "seen", "it",
];

/// Makes prompts for one server's tokenizer.
#[derive(Clone, Copy)]
pub struct Prompts {
    words: usize,
    shared: usize,
}

/// Words with a full stop now and then.
fn text(random: &mut Random, words: usize) -> String {
    let mut text = String::new();
    for i in 0..words {
        text.push_str(if i > 0 { " " } else { "" });
        text.push_str(WORDS[random.below(WORDS.len())]);
        text.push_str(if random.below(12) == 0 { "." } else { "" });
    }
    text
}

impl Prompts {
    /// Asks the server how many tokens a word is, by `/tokenize`, and makes prompts of so many
    /// tokens, `shared` of which are the same in all.
    ///
    /// # Errors
    /// The server does not answer so.
    pub fn new(address: &Address, tokens: usize, shared: usize) -> Result<Self> {
        const SAMPLE: usize = 400;
        let body = json!({ "content": text(&mut Random(1), SAMPLE) }).to_string();
        let asked = Connection::open(address, WAIT)
            .and_then(|mut c| c.ask("POST", "/tokenize", body.as_bytes()));
        let (_, data) = asked.map_err(|e| format!("/tokenize: {e}"))?;
        let answer: Value = serde_json::from_slice(&data).unwrap_or_default();
        let count = answer["tokens"].as_array().map(Vec::len).filter(|n| *n > 0);
        let count = count.ok_or_else(|| {
            format!("/tokenize gives no tokens: {}", String::from_utf8_lossy(&data))
        })?;
        let words = |tokens: usize| (tokens * SAMPLE).div_ceil(count);
        Ok(Self { words: words(tokens.saturating_sub(shared)).max(1), shared: words(shared) })
    }

    /// The prompt of this number.
    pub fn get(&self, number: u64) -> String {
        let start = text(&mut Random(0), self.shared);
        let own = text(&mut Random(number.wrapping_add(1) << 16), self.words);
        if start.is_empty() { own } else { format!("{start} {own}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_after_what_they_share() {
        let prompts = Prompts { words: 20, shared: 10 };
        let (a, b) = (prompts.get(1), prompts.get(2));
        assert_eq!(a, prompts.get(1));
        let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        assert!(same >= text(&mut Random(0), 10).len() && same < a.len() / 2, "{a}\n{b}");
        assert_eq!(a.split(' ').count(), 30);
    }
}
