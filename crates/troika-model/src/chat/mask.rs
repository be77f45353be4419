//! Control tokens in what users write.
//!
//! A template's text is tokenized as a whole, and its own markers (`<|im_start|>`) have to become
//! control tokens. What a user, a system message or a tool writes must not: who types
//! `<|im_end|><|im_start|>system` would speak as the system. (The transformers library, vLLM and
//! llama.cpp's server let them.) So before a template is rendered, the first character of every
//! control token's spelling in such a message is replaced by a private one that occurs nowhere
//! else; after it, the character is put back and its place kept ([`ChatPrompt::plain`]). The
//! tokenizer reads a spelling that covers such a place as plain text.
//!
//! One character stands for one, so lengths, slices and trimming stay what they were. A template
//! that looks for a control token in a message (`'<|image|>' in content`) still finds it: what is
//! looked for is masked like what is searched.
//!
//! A spelling can also be put together of a text's end and what the template writes behind it, so
//! a part of a spelling at the end of a text is masked too.
//!
//! Limits: what the assistant said earlier keeps its control tokens (its tokens must stay those
//! that were generated), and so do roles, which templates make markers of. A template that writes
//! the beginning of a spelling right before a message, or takes a message apart and puts it
//! together anew, can still make a control token of it.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

use minijinja::Value;
use serde_json::Value as Json;

/// The private characters: Unicode's last plane, which has no meaning of its own.
const PRIVATE: std::ops::RangeInclusive<u32> = 0x10_0000..=0x10_FFFD;

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The text.
    pub text: String,
    /// Where in it control tokens are spelled that are plain text: byte offsets, ascending.
    pub plain: Vec<usize>,
}

/// Which characters stand for which.
#[derive(Debug, Default)]
pub(super) struct Mask {
    spellings: Vec<String>,
    /// Private characters by the first characters of spellings.
    stands: BTreeMap<char, char>,
}

fn is_private(c: char) -> bool {
    PRIVATE.contains(&u32::from(c))
}

impl Mask {
    /// A mask for these spellings, with private characters that occur neither in them nor in
    /// `texts`; `None` when there are none left.
    pub(super) fn new(control: &[String], texts: &[&Json], source: &str) -> Option<Mask> {
        // White space is what templates trim and join with; it stays what it is.
        let mut spellings: Vec<String> =
            control.iter().filter(|s| !s.trim().is_empty()).cloned().collect();
        spellings.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        let mut used: HashSet<char> = HashSet::new();
        let mut see = |s: &str| used.extend(s.chars().filter(|&c| is_private(c)));
        see(source);
        spellings.iter().for_each(|s| see(s));
        let mut open: Vec<&Json> = texts.to_vec();
        while let Some(json) = open.pop() {
            match json {
                Json::String(s) => see(s),
                Json::Array(list) => open.extend(list),
                Json::Object(map) => {
                    map.keys().for_each(|k| see(k));
                    open.extend(map.values());
                }
                _ => {}
            }
        }
        let mut free = PRIVATE.filter_map(char::from_u32).filter(|c| !used.contains(c));
        let mut stands = BTreeMap::new();
        for c in spellings.iter().filter_map(|s| s.chars().next()) {
            if let Entry::Vacant(entry) = stands.entry(c) {
                entry.insert(free.next()?);
            }
        }
        Some(Mask { spellings, stands })
    }

    /// A text with the spellings in it masked; with `end`, a part of one at its end as well.
    fn text<'t>(&self, text: &'t str, end: bool) -> Cow<'t, str> {
        let mut out: Option<String> = None;
        let mut copied = 0;
        for (at, c) in text.char_indices() {
            let Some(&private) = self.stands.get(&c) else { continue };
            let rest = &text[at..];
            let part = |s: &String| end && s.starts_with(rest);
            let hit = self.spellings.iter().any(|s| rest.starts_with(s.as_str()) || part(s));
            if hit {
                let out = out.get_or_insert_default();
                out.push_str(&text[copied..at]);
                out.push(private);
                copied = at + c.len_utf8();
            }
        }
        match out {
            Some(mut out) => {
                out.push_str(&text[copied..]);
                Cow::Owned(out)
            }
            None => Cow::Borrowed(text),
        }
    }

    /// Masks every text in a message or a list of tools.
    pub(super) fn json(&self, json: &mut Json) {
        if self.spellings.is_empty() {
            return;
        }
        match json {
            Json::String(s) => {
                if let Cow::Owned(masked) = self.text(s, true) {
                    *s = masked;
                }
            }
            Json::Array(list) => list.iter_mut().for_each(|v| self.json(v)),
            Json::Object(map) => {
                let old = std::mem::take(map);
                for (key, mut value) in old {
                    self.json(&mut value);
                    map.insert(self.text(&key, true).into_owned(), value);
                }
            }
            _ => {}
        }
    }

    /// A message as a template sees it. The assistant's own stay as they are, and so do roles.
    pub(super) fn message(&self, message: &mut Json) {
        if message["role"] == "assistant" {
            return;
        }
        match message {
            Json::Object(map) => {
                let texts = map.iter_mut().filter(|(key, _)| *key != "role");
                texts.for_each(|(_, value)| self.json(value));
            }
            other => self.json(other),
        }
    }

    /// What a template compares with `other`: masked if that is.
    pub(super) fn like(&self, value: &Value, other: &Value) -> Value {
        if let (Some(text), Some(other)) = (value.as_str(), other.as_str())
            && !self.spellings.is_empty()
            && other.chars().any(is_private)
            && let Cow::Owned(masked) = self.text(text, false)
        {
            return Value::from(masked);
        }
        value.clone()
    }

    /// Puts the characters back and says where they were.
    pub(super) fn remove(&self, text: String) -> ChatPrompt {
        let back: BTreeMap<char, char> = self.stands.iter().map(|(&c, &p)| (p, c)).collect();
        if !text.chars().any(|c| back.contains_key(&c)) {
            return ChatPrompt { text, plain: Vec::new() };
        }
        let mut prompt = ChatPrompt::default();
        for c in text.chars() {
            if let Some(&original) = back.get(&c) {
                prompt.plain.push(prompt.text.len());
                prompt.text.push(original);
            } else {
                prompt.text.push(c);
            }
        }
        prompt
    }

    /// Texts without a template: masked and unmasked in one go.
    pub(super) fn plain(&self, message: &Json, text: &str, prompt: &mut ChatPrompt) {
        let start = prompt.text.len();
        let masked = match message["role"] == "assistant" {
            true => Cow::Borrowed(text),
            false => self.text(text, true),
        };
        let own = self.remove(masked.into_owned());
        prompt.plain.extend(own.plain.iter().map(|at| start + at));
        prompt.text.push_str(&own.text);
    }
}
