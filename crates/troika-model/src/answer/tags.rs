//! Calls whose arguments come one by one in tags, as plain text, handed out as a JSON object.

use serde_json::Value;

use super::call::{Read, Stopped, Text, tool_name};
use super::convert::{argument, json, unfinished};
use super::forms::CallFormat;
use super::json::{JsonScanner, Scan};
use super::lark::Lark;
use super::tool::ToolSpec;

/// Around text that may have any characters in it.
const CDATA: (&str, &str) = ("<![CDATA[", "]]>");

/// What the reader looks for. Some are empty.
struct Tags {
    /// Before a name, behind it, and at the end of its tag if more may stand there.
    call: &'static str,
    named: &'static str,
    rest: &'static str,
    /// The same of an argument's key, and what opens the value in a tag of its own.
    key: &'static str,
    keyed: &'static str,
    key_rest: &'static str,
    value: &'static str,
    value_end: &'static str,
    call_end: &'static str,
    close: &'static str,
    /// Whether new lines next to a value belong to its tags.
    lines: bool,
}

/// What ends a word in a tag, and the rest of the tag if the word is in quotation marks.
fn ends(text: &'static str) -> (&'static str, &'static str) {
    let tag_end = text.find('<').map_or(">", |at| &text[at..]);
    match text.strip_prefix('"') {
        Some(_) => ("\"", tag_end),
        None => (text, ""),
    }
}

impl Tags {
    fn new(form: &'static CallFormat) -> Self {
        let (call, named) = form.call.split_once("NAME").unwrap_or_default();
        let (key, rest) = form.argument.split_once("KEY").unwrap_or_default();
        let (before, after) = rest.split_once("VALUE").unwrap_or_default();
        let (keyed, key_rest) = ends(before.trim());
        let tag = keyed.find('>').map_or(keyed.len(), |at| at + 1);
        let (keyed, value) = keyed.split_at(tag);
        let (named, rest) = ends(named.trim());
        Self {
            call,
            named,
            rest,
            key,
            keyed,
            key_rest,
            value: value.trim(),
            value_end: after.trim(),
            call_end: form.end.trim(),
            close: &form.close,
            lines: before.ends_with(">\n"),
        }
    }

    /// A value without what belongs to its tags.
    fn trim<'v>(&self, value: &'v str) -> &'v str {
        if self.lines {
            let value = value.strip_prefix('\n').unwrap_or(value);
            return value.strip_suffix('\n').unwrap_or(value);
        }
        value.strip_prefix(CDATA.0).and_then(|v| v.strip_suffix(CDATA.1)).unwrap_or(value)
    }
}

/// Reads calls behind `opened`. Models forget the marker before the function now and then.
pub(super) async fn read(
    text: &Text,
    tools: &[ToolSpec],
    form: &'static CallFormat,
    opened: &str,
) -> Read<()> {
    let tags = Tags::new(form);
    if opened != tags.call {
        text.marker(&[tags.call]).await?;
    }
    loop {
        let ends = [if tags.named.is_empty() { "\n" } else { tags.named }, tags.key, tags.call_end];
        let (name, end) = text.until(&ends).await?;
        if end == tags.key || end == tags.call_end {
            text.unread(end);
        } else if !tags.rest.is_empty() {
            text.until(&[tags.rest]).await?;
        }
        let mut call = Call { text, tools, tags: &tags, tool: tool_name(&name)?, count: 0 };
        text.out(|out| out.start_call(call.tool));
        while text.marker(&[tags.key, tags.call_end]).await? == tags.key {
            call.argument().await?;
        }
        text.out(|out| {
            out.arguments(if call.count == 0 { "{}" } else { "}" });
            out.end_call();
        });
        let more = [tags.call, tags.close];
        if tags.close.is_empty() || text.marker_after_call(&more).await? != Some(tags.call) {
            return Ok(());
        }
    }
}

/// The call being read.
struct Call<'a> {
    text: &'a Text,
    tools: &'a [ToolSpec],
    tags: &'a Tags,
    tool: &'a str,
    count: usize,
}

impl Call<'_> {
    /// Reads an argument behind the tag that opens it.
    async fn argument(&mut self) -> Read<()> {
        let (text, tags) = (self.text, self.tags);
        let (key, end) = text.until(&[tags.keyed]).await?;
        if key.is_empty() || key.contains(['<', '\n']) {
            return Err(Stopped::Failed(key + end));
        }
        let mut is_text = false;
        if !tags.key_rest.is_empty() {
            let (attributes, _) = text.until(&[tags.key_rest]).await?;
            is_text = attributes.ends_with("=\"true\"") || attributes.ends_with("=\"string\"");
        }
        if !tags.value.is_empty() {
            text.marker(&[tags.value]).await?;
        }
        self.value(&key, is_text).await
    }

    /// Reads the value of an argument up to its closing tag. Inside JSON, the tag is a part of a
    /// string.
    async fn value(&mut self, key: &str, is_text: bool) -> Read<()> {
        let schema = argument(self.tools, self.tool, key);
        let mut scanner = schema.filter(|schema| !schema.is_text()).map(|_| JsonScanner::new());
        let mut value = String::new();
        loop {
            let c = match self.text.next().await {
                Ok(c) => c,
                Err(stop) => {
                    self.member(key, &unfinished(self.tags.trim(&value), schema));
                    return Err(stop);
                }
            };
            value.push(c);
            if scanner.as_mut().is_some_and(|scanner| scanner.next(c) == Scan::More) {
                continue;
            }
            // JSON that has ended, or is none.
            scanner = None;
            let Some(value) = value.strip_suffix(self.tags.value_end) else { continue };
            let opened = !self.tags.lines && value.starts_with(CDATA.0);
            if opened && !value.ends_with(CDATA.1) {
                continue;
            }
            let value = self.tags.trim(value);
            let quoted = || Value::from(value).to_string();
            let untyped = is_text && schema.is_none();
            self.member(key, &if untyped { quoted() } else { json(value, schema) });
            return Ok(());
        }
    }

    fn member(&mut self, key: &str, json: &str) {
        let before = if self.count == 0 { "{" } else { ", " };
        self.count += 1;
        self.text.out(|out| out.arguments(&format!("{before}{}: {json}", Value::from(key))));
    }
}

/// The grammar of a call's arguments.
pub(super) fn members(lark: &mut Lark<'_>, form: &'static CallFormat, tool: &ToolSpec) -> String {
    let value_end = Tags::new(form).value_end;
    let (before, after) = form.argument.split_once("VALUE").unwrap_or_default();
    lark.members(tool, |lark, key, argument| {
        let kind = match argument.kind() {
            "string" if before.contains("string=") => "true",
            _ if before.contains("string=") => "false",
            kind => kind,
        };
        let before = lark.marked(&before.replace("TYPE", kind).replace("KEY", key));
        format!("{before} {}", lark.plain(argument, after, value_end))
    })
}
