//! Arguments that come one by one as plain text, handed out as a JSON object.

use std::sync::Arc;

use serde_json::Value;

use super::convert::{argument, json, unfinished};
use super::json::{JsonScanner, Scan};
use super::output::Output;
use super::tool::ToolSpec;

/// The call being read.
#[derive(Debug)]
pub(super) struct Members {
    tools: Arc<[ToolSpec]>,
    tool: String,
    count: usize,
}

impl Members {
    pub(super) fn new(tools: Arc<[ToolSpec]>) -> Self {
        Self { tools, tool: String::new(), count: 0 }
    }

    pub(super) fn start(&mut self, name: &str, out: &mut Output) {
        self.tool = name.to_owned();
        self.count = 0;
        out.start_call(name);
    }

    /// The value of an argument, from its beginning.
    pub(super) fn value(&self, key: &str) -> PlainValue {
        let json = argument(&self.tools, &self.tool, key).is_some_and(|a| !a.is_text());
        PlainValue { text: String::new(), json: json.then(JsonScanner::new) }
    }

    fn key(&mut self, key: &str) -> String {
        let before = if self.count == 0 { "{" } else { ", " };
        self.count += 1;
        format!("{before}{}: ", Value::from(key))
    }

    pub(super) fn member(&mut self, key: &str, text: &str, out: &mut Output) {
        let mut member = self.key(key);
        member.push_str(&json(text, argument(&self.tools, &self.tool, key)));
        out.arguments(&member);
    }

    /// A value whose end is missing: as much of its JSON as there is.
    pub(super) fn partial(&mut self, key: &str, text: &str, out: &mut Output) {
        let mut member = self.key(key);
        member.push_str(&unfinished(text, argument(&self.tools, &self.tool, key)));
        out.arguments(&member);
    }

    pub(super) fn end(&mut self, out: &mut Output) {
        out.arguments(if self.count == 0 { "{}" } else { "}" });
        out.end_call();
    }
}

/// A value up to its closing marker. Inside JSON, the marker is a part of a string.
#[derive(Debug)]
pub(super) struct PlainValue {
    pub(super) text: String,
    json: Option<JsonScanner>,
}

impl PlainValue {
    /// Takes the next character. Returns the value if it ends here.
    pub(super) fn next(&mut self, c: char, marker: &str) -> Option<&str> {
        self.text.push(c);
        if self.json.as_mut().is_some_and(|json| json.next(c) == Scan::More) {
            return None;
        }
        // JSON that has ended, or is none.
        self.json = None;
        self.text.strip_suffix(marker)
    }
}
