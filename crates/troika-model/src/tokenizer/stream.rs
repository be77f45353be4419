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

impl Tokenizer {
    /// A streaming decoder.
    pub fn detokenizer(&self) -> Detokenizer<&Tokenizer> {
        Detokenizer::new(self)
    }
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

/// Finds stop texts in streamed text, also across pieces.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    met: Option<String>,
}

impl StopMatcher {
    /// A matcher for the given texts; ignores empty ones.
    pub fn new(stops: &[String]) -> StopMatcher {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopMatcher { stops, ..StopMatcher::default() }
    }

    /// Adds a piece of text. Returns the text that is safe to output, and whether a stop text was
    /// found. Holds back what could be the start of one.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.met.is_some() {
            return (String::new(), true);
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        if let Some((at, met)) = found.min_by_key(|(at, _)| *at) {
            self.met = Some(met.clone());
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let starts_stop = |i: usize| self.stops.iter().any(|s| s.starts_with(&self.held[i..]));
        let keep = self.held.char_indices().map(|(i, _)| i).find(|&i| starts_stop(i));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
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
    }
}
