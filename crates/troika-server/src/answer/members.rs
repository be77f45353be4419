//! Arguments that come one by one as plain text, handed out as a JSON object.

use std::sync::Arc;

use serde_json::Value;

use super::convert::{argument, json, unfinished};
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
