//! Streaming: turns tokens into text as it becomes final, and finds stop texts.

use std::ops::Deref;

use super::Tokenizer;

/// After this many tokens, an incomplete character is complete or broken: it has at most four
/// bytes, each possibly a token of its own.
const CHAR_TOKENS: usize = 4;

/// The most tokens that may wait for their text. Tokens of text are decided within [`CHAR_TOKENS`];
/// a longer row has no text or cannot be decoded.
const WAITING: usize = 64;

/// Turns tokens into text one by one. The pieces joined give the whole decoded text; a character is
/// never split.
pub struct Detokenizer<T: Deref<Target = Tokenizer>> {
    tokenizer: T,
    ids: Vec<u32>,
    /// Decoding starts here: earlier tokens only affect leading spaces.
    prefix: usize,
    /// Text of tokens before this index was returned.
    read: usize,
    /// Bytes of text from `prefix` to `read`.
    before: usize,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: T) -> Self {
        Detokenizer { tokenizer, ids: Vec::new(), prefix: 0, read: 0, before: 0 }
    }

    /// What it decodes with.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Adds a token. Returns the text that is final now.
    pub fn push(&mut self, id: u32) -> Option<String> {
        // Decoding skips it: it would wait for ever.
        if self.tokenizer.is_silent(id, true) {
            return None;
        }
        self.ids.push(id);
        self.emit(false)
    }

    /// The remaining text.
    pub fn finish(&mut self) -> String {
        self.emit(true).unwrap_or_default()
    }

    fn decode(&self, end: usize) -> String {
        self.tokenizer.decode(&self.ids[self.prefix..end], true).unwrap_or_default()
    }

    fn emit(&mut self, all: bool) -> Option<String> {
        let end = self.ids.len();
        let text = self.decode(end);
        let full = end - self.read > WAITING;
        if all || full || !text.ends_with(char::REPLACEMENT_CHARACTER) {
            let new = self.advance(end, &text);
            if full && new.is_none() {
                self.forget();
            }
            return new;
        }
        // The end may be an incomplete character; older tokens are complete.
        let decided = end.saturating_sub(CHAR_TOKENS);
        if decided <= self.read {
            return None;
        }
        let older = self.decode(decided);
        if text.starts_with(&older) { self.advance(decided, &older) } else { None }
    }

    /// Returns `text` from `before` on, and marks the tokens up to `read` as done.
    fn advance(&mut self, read: usize, text: &str) -> Option<String> {
        let new = text.get(self.before..).filter(|t| !t.is_empty())?.to_string();
        self.prefix = self.read;
        self.read = read;
        self.before = self.decode(read).len();
        // Keeps the list short in long generations.
        if self.prefix > 4096 {
            self.ids.drain(..self.prefix);
            self.read -= self.prefix;
            self.prefix = 0;
        }
        Some(new)
    }

    /// Drops tokens without text, so that long rows of them do not slow down decoding. Keeps those
    /// before them: the next token's leading space depends on their text.
    fn forget(&mut self) {
        self.ids.truncate(self.read);
    }
}

/// Finds stop texts in streamed text, also across pieces. A piece costs its own length for each of
/// the texts, however long these are (Knuth, Morris and Pratt: Fast pattern matching in strings,
/// 1977).
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: String,
    met: Option<String>,
}

/// A stop text, and how much of it the text so far ends with.
#[derive(Clone, Debug)]
struct Stop {
    text: String,
    /// For each prefix: the longest shorter prefix that it ends with.
    shorter: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        let mut stop = Stop { text: text.into(), shorter: vec![0], matched: 0 };
        for byte in text.bytes().skip(1) {
            stop.push(byte);
            stop.shorter.push(stop.matched);
        }
        Stop { matched: 0, ..stop }
    }

    /// Adds a byte of the text. Returns whether the text ends with the stop text now.
    fn push(&mut self, byte: u8) -> bool {
        let stop = self.text.as_bytes();
        while self.matched > 0 && stop[self.matched] != byte {
            self.matched = self.shorter[self.matched - 1];
        }
        self.matched += usize::from(stop[self.matched] == byte);
        self.matched == stop.len()
    }
}

impl StopMatcher {
    /// A matcher for the given texts; ignores empty ones.
    pub fn new(stops: &[String]) -> StopMatcher {
        let stops = stops.iter().filter(|s| !s.is_empty()).map(|s| Stop::new(s)).collect();
        StopMatcher { stops, ..StopMatcher::default() }
    }

    /// Adds a piece of text. Returns the text that is safe to output, and whether a stop text was
    /// found: the one that is complete first, and of several the longest. Holds back what could be
    /// the start of one.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.met.is_some() {
            return (String::new(), true);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|s| s.push(byte).then_some(&s.text));
            if let Some(met) = complete.max_by_key(|s| s.len()) {
                self.held.truncate(before + at + 1 - met.len());
                self.met = Some(met.clone());
                return (std::mem::take(&mut self.held), true);
            }
        }
        let keep = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        (self.held.drain(..self.held.len() - keep).collect(), false)
    }

    /// The stop text that was found.
    pub fn met(&self) -> Option<&str> {
        self.met.as_deref()
    }

    /// The text held back at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::StopMatcher;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut m = StopMatcher::new(&stops);
        let mut out = String::new();
        for p in pieces {
            let (text, stopped) = m.push(p);
            out.push_str(&text);
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&m.finish());
        (out, false)
    }

    #[test]
    fn stop_texts_may_span_pieces() {
        assert_eq!(run(&["END"], &["abE", "N", "D cd"]), ("ab".into(), true));
        assert_eq!(run(&["END"], &["abE", "Nx", "EN"]), ("abENxEN".into(), false));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
        assert_eq!(run(&["\n\n", "Q:"], &["é\n", "Q", ":"]), ("é\n".into(), true));
        assert_eq!(run(&[""], &["x"]), ("x".into(), false));
        // However the text is cut, the one that is complete first counts.
        for pieces in [&["abcd"] as &[&str], &["abc", "d"], &["a", "b", "c", "d"]] {
            assert_eq!(run(&["abcd", "bc"], pieces), ("a".into(), true));
            assert_eq!(run(&["c", "abc"], pieces), ("".into(), true));
        }
    }

    /// Searched for in the whole text, which is slow and plain.
    fn reference(stops: &[&str], text: &str) -> (String, bool) {
        for end in 1..=text.len() {
            let met = stops.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some(met) = met.max_by_key(|s| s.len()) {
                return (text[..end - met.len()].into(), true);
            }
        }
        (text.into(), false)
    }

    proptest::proptest! {
        #[test]
        fn stop_texts_are_found_as_in_the_whole_text(
            stops in proptest::collection::vec("[abé]{1,6}", 0..5),
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(&stops, &pieces), reference(&stops, &pieces.concat()));
        }
    }

    #[test]
    fn a_piece_costs_its_own_length() {
        // Searching a megabyte for each of a million pieces would take days.
        let stop = "a".repeat(1 << 20);
        let mut m = StopMatcher::new(&[stop]);
        let mut out = 0;
        for _ in 0..1 << 19 {
            out += m.push("a").0.len() + m.push("b").0.len();
        }
        assert_eq!((out, m.finish().as_str(), m.met()), (1 << 20, "", None));
        let mut m = StopMatcher::new(&["a".repeat(1 << 20) + "b"]);
        (0..1 << 20).for_each(|_| assert_eq!(m.push("a"), (String::new(), false)));
        assert_eq!((m.push("c").0.len(), m.met()), ((1 << 20) + 1, None));
    }
}
