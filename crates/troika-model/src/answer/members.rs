//! Arguments that come one by one as plain text, handed out as a JSON object.

use serde_json::Value;

use super::call::{Read, Text};
use super::convert::{argument, json, unfinished};
use super::json::{JsonScanner, Scan};
use super::tool::ToolSpec;

/// The call being read.
pub(super) struct Members<'a> {
    text: &'a Text,
    tools: &'a [ToolSpec],
    tool: String,
    count: usize,
}

impl<'a> Members<'a> {
    pub(super) fn start(text: &'a Text, tools: &'a [ToolSpec], name: &str) -> Self {
        text.out(|out| out.start_call(name));
        Self { text, tools, tool: name.to_owned(), count: 0 }
    }

    /// Reads the value of an argument up to its closing marker. Inside JSON, the marker is a part
    /// of a string. `trim` leaves out what belongs to the markers.
    pub(super) async fn value(
        &mut self,
        key: &str,
        close: &str,
        trim: impl Fn(&str) -> &str,
    ) -> Read<()> {
        let schema = argument(self.tools, &self.tool, key);
        let mut scanner = schema.filter(|schema| !schema.is_text()).map(|_| JsonScanner::new());
        let mut value = String::new();
        loop {
            let c = match self.text.next().await {
                Ok(c) => c,
                Err(stop) => {
                    self.member(key, &unfinished(trim(&value), schema));
                    return Err(stop);
                }
            };
            value.push(c);
            if scanner.as_mut().is_some_and(|scanner| scanner.next(c) == Scan::More) {
                continue;
            }
            // JSON that has ended, or is none.
            scanner = None;
            if let Some(value) = value.strip_suffix(close) {
                self.member(key, &json(trim(value), schema));
                return Ok(());
            }
        }
    }

    fn member(&mut self, key: &str, json: &str) {
        let before = if self.count == 0 { "{" } else { ", " };
        self.count += 1;
        self.text.out(|out| out.arguments(&format!("{before}{}: {json}", Value::from(key))));
    }

    pub(super) fn end(self) {
        self.text.out(|out| {
            out.arguments(if self.count == 0 { "{}" } else { "}" });
            out.end_call();
        });
    }
}
