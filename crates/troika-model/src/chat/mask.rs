//! Keeps control tokens out of what users write.
//!
//! A template's whole output is tokenized, and its own markers (`<|im_start|>`) must become control
//! tokens. Text from users, system messages or tools must not: otherwise a user could write
//! `<|im_end|><|im_start|>system` and speak as the system. (The transformers library, vLLM and
//! llama.cpp's server allow that.) So before rendering, the first character of each control token's
//! spelling in such messages is replaced by a private character that is not used elsewhere.
//! Afterwards it is restored, and its place is kept ([`ChatPrompt::plain`]). The tokenizer treats a
//! spelling that covers such a place as plain text.
//!
//! Each character is replaced by exactly one, so lengths, slices and trimming do not change. A
//! template that looks for a control token in a message (`'<|image|>' in content`) still finds it,
//! since the search text is masked too. Only `==` and the like see the difference.
//!
//! A spelling could also arise from the end of a text and what the template writes after it. So a
//! part of a spelling at the end of a text is masked too.
//!
//! Limits: the assistant's earlier messages keep their control tokens (the tokens must stay as
//! generated), and so do roles, from which templates make markers. A control token can still arise
//! if a template writes the beginning of a spelling right before a message, or takes a message
//! apart and joins it differently.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;

use minijinja::Value;
use minijinja::value::{Rest, ValueOrKwargs};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use troika_device::lock;

/// The private characters: Unicode's last plane, which has no assigned meaning.
const PRIVATE: std::ops::RangeInclusive<u32> = 0x10_0000..=0x10_FFFD;

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatPrompt {
    /// The text.
    pub text: String,
    /// Byte offsets of control tokens' spellings that are plain text, ascending.
    pub plain: Vec<usize>,
}

/// The replacements of characters.
#[derive(Debug, Default)]
pub(super) struct Mask {
    spellings: Vec<String>,
    /// Private characters by the first characters of spellings.
    stands: BTreeMap<char, char>,
    /// The spellings in masked texts.
    used: Mutex<BTreeSet<String>>,
}

fn is_private(c: char) -> bool {
    PRIVATE.contains(&u32::from(c))
}

impl Mask {
    /// A mask for these spellings, with private characters that are used neither in them nor in
    /// `texts`; `None` if there are none left.
    pub(super) fn new(control: &[String], texts: &[&Json], source: &str) -> Option<Mask> {
        // Spellings of white space are not masked, since templates trim and join with it.
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
        Some(Mask { spellings, stands, used: Mutex::default() })
    }

    /// Masks the spellings in a text; with `end`, also a part of one at its end.
    fn text<'t>(&self, text: &'t str, end: bool) -> Cow<'t, str> {
        let mut out: Option<String> = None;
        let mut copied = 0;
        let mut used = lock(&self.used);
        for (at, c) in text.char_indices() {
            let Some(&private) = self.stands.get(&c) else { continue };
            let rest = &text[at..];
            let part = |s: &String| end && s.starts_with(rest);
            let hits = self.spellings.iter().filter(|s| rest.starts_with(s.as_str()) || part(s));
            let mut hits = hits.peekable();
            if hits.peek().is_some() {
                used.extend(hits.cloned());
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

    /// A message as the template gets it. The assistant's messages and roles are not masked.
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

    /// A value to compare with `other`: masked if `other` is.
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

    /// The arguments of a call, each like the first.
    pub(super) fn alike(&self, args: Rest<ValueOrKwargs>) -> Vec<Value> {
        let mut args: Vec<Value> = args.0.into_iter().map(ValueOrKwargs::into_value).collect();
        if let Some((first, others)) = args.split_first_mut() {
            others.iter_mut().for_each(|v| *v = self.like(v, first));
        }
        args
    }

    /// A template's source that looks for spellings by a test, which can mask them, instead of by
    /// an operator: `'<|image|>' in content` becomes `'<|image|>' is in content`. Only spellings in
    /// masked texts can be found.
    pub(super) fn tests<'s>(&self, source: &'s str) -> Cow<'s, str> {
        let after_text = |end: usize| {
            let quote = end + source[end..].find(['\'', '"'])? + 1;
            let operator = source[quote..].trim_start();
            let words = ["in ", "in(", "not in ", "not in("];
            let found = words.iter().any(|word| operator.starts_with(word));
            found.then_some(source.len() - operator.len())
        };
        let used = lock(&self.used);
        let spelled = used.iter().flat_map(|s| source.match_indices(s.as_str()));
        let places: BTreeSet<usize> =
            spelled.filter_map(|(at, s)| after_text(at + s.len())).collect();
        if places.is_empty() {
            return Cow::Borrowed(source);
        }
        let mut new = source.to_string();
        places.iter().rev().for_each(|&at| new.insert_str(at, "is "));
        Cow::Owned(new)
    }

    /// Restores the characters and returns their places.
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

    /// Masks and unmasks text in one step, for models without a template.
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
