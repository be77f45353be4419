//! GLM-4.5: `<tool_call>name <arg_key>key</arg_key> <arg_value>value</arg_value> </tool_call>`, with
//! new lines between.

use std::sync::Arc;

use super::call::{CallParser, Progress};
use super::lark::Lark;
use super::members::{Members, PlainValue};
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const KEY: &str = "<arg_key>";
pub(super) const KEY_END: &str = "</arg_key>";
pub(super) const VALUE: &str = "<arg_value>";
pub(super) const VALUE_END: &str = "</arg_value>";

/// No name is longer.
const NAME: usize = 256;

#[derive(Debug)]
enum At {
    Name(String),
    Key(String),
    BeforeValue {
        key: String,
        seen: String,
    },
    Value {
        key: String,
        value: PlainValue,
    },
    /// Behind a value.
    Between(String),
}

#[derive(Debug)]
pub(super) struct Glm {
    at: At,
    members: Members,
}

impl Glm {
    pub(super) fn new(tools: Arc<[ToolSpec]>) -> Self {
        Self { at: At::Name(String::new()), members: Members::new(tools) }
    }

    fn name(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Name(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        let last = seen.ends_with(CLOSE);
        let head = seen.strip_suffix(KEY).or_else(|| seen.strip_suffix(CLOSE));
        let Some(head) = head.map(|h| h.trim().to_owned()) else {
            let more = seen.len() <= NAME && !seen.trim_start().starts_with(['{', '[']);
            return if more { Progress::More } else { Progress::Failed(c.to_string()) };
        };
        if head.is_empty() || head.contains(|c: char| c.is_whitespace() || c == '<') {
            return Progress::Failed(c.to_string());
        }
        self.members.start(&head, out);
        if last {
            self.members.end(out);
            return Progress::Done;
        }
        self.at = At::Key(String::new());
        Progress::More
    }

    fn key(&mut self, c: char) -> Progress {
        let At::Key(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        if let Some(key) = seen.strip_suffix(KEY_END) {
            self.at = At::BeforeValue { key: key.trim().to_owned(), seen: String::new() };
        } else if seen.len() > NAME {
            return Progress::Failed(std::mem::take(seen));
        }
        Progress::More
    }

    fn before_value(&mut self, c: char) -> Progress {
        let At::BeforeValue { key, seen } = &mut self.at else {
            return Progress::Failed(c.to_string());
        };
        seen.push(c);
        let rest = seen.trim_start();
        if rest == VALUE {
            let key = std::mem::take(key);
            let value = self.members.value(&key);
            self.at = At::Value { key, value };
        } else if !VALUE.starts_with(rest) {
            return Progress::Failed(std::mem::take(seen));
        }
        Progress::More
    }

    fn value(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Value { key, value } = &mut self.at else { return Progress::Failed(c.to_string()) };
        if let Some(value) = value.next(c, VALUE_END) {
            self.members.member(key, value, out);
            self.at = At::Between(String::new());
        }
        Progress::More
    }

    fn between(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Between(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        let rest = seen.trim_start();
        if rest == CLOSE {
            self.members.end(out);
            return Progress::Done;
        }
        if rest == KEY {
            self.at = At::Key(String::new());
        } else if !KEY.starts_with(rest) && !CLOSE.starts_with(rest) {
            return Progress::Failed(std::mem::take(seen));
        }
        Progress::More
    }
}

impl CallParser for Glm {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        match &self.at {
            At::Name(_) => self.name(c, out),
            At::Key(_) => self.key(c),
            At::BeforeValue { .. } => self.before_value(c),
            At::Value { .. } => self.value(c, out),
            At::Between(_) => self.between(c, out),
        }
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        if let At::Value { key, value } = &self.at {
            self.members.partial(key, &value.text, out);
        }
        None
    }
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.each(tools, "call", |lark, tool| {
        let name = lark.text(&format!("{}\n", tool.name));
        let members = lark.members(tool, |lark, key, argument| {
            let head = lark.text(&format!("{KEY}{key}{KEY_END}\n{VALUE}"));
            let value = lark.plain(argument, VALUE_END, VALUE_END);
            format!(r#"{head} {value} "\n""#)
        });
        format!("{open} {name} {members} {close}")
    });
    lark.repeated(&call, r#""\n""#, parallel)
}
