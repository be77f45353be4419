//! Calls whose values are literals of Python (`True`, `'text'`) or of Gemma (text between markers).

use std::pin::Pin;

use serde_json::{Number, Value};

use super::call::{Read, Stopped, Text, failed, tool_name};
use super::convert::argument;
use super::forms::CallFormat;
use super::lark::Lark;
use super::output::Output;
use super::tool::ToolSpec;

/// Lists and objects inside each other.
const DEPTH: usize = 100;
/// No number is longer, and no text without quotation marks.
const WORD: usize = 512;

/// Reads calls and the marker that closes them. Without such a marker, only the given tools count.
pub(super) async fn read(text: &Text, tools: &[ToolSpec], form: &'static CallFormat) -> Read<()> {
    let (_, bracket) = form.call.split_once("NAME").unwrap_or_default();
    let list = form.open.ends_with('[');
    if list && form.open != "[" {
        text.expect('[').await?;
    }
    let close = form.closer();
    loop {
        let (name, _) = text.until(&[bracket]).await?;
        let name = tool_name(name.strip_prefix("call:").unwrap_or(&name))?.to_owned();
        if close.is_empty() && !tools.iter().any(|tool| tool.name == name) {
            return failed('(');
        }
        Literals { text, tools, form, tool: &name }.call().await?;
        if list {
            match text.solid().await? {
                ',' => continue,
                ']' => text.out(|out| out.open("")),
                c => return failed(c),
            }
        }
        if close.is_empty()
            || text.marker_after_call(&[close]).await?.is_some()
            || form.comma.is_empty()
        {
            return Ok(());
        }
    }
}

/// The call being read.
struct Literals<'a> {
    text: &'a Text,
    tools: &'a [ToolSpec],
    form: &'static CallFormat,
    tool: &'a str,
}

impl Literals<'_> {
    fn emit(&self, json: &str) {
        self.text.out(|out| out.arguments(json));
    }

    /// Reads a call behind its opening bracket.
    async fn call(&self) -> Read<()> {
        self.text.out(|out| out.start_call(self.tool));
        self.emit("{");
        let colon = self.form.argument.trim_start_matches("KEY");
        self.members(self.form.end.chars().next().unwrap_or_default(), Some(colon), 0).await?;
        self.text.out(Output::end_call);
        Ok(())
    }

    /// Reads members up to a bracket: with keys, or without.
    async fn members(&self, end: char, colon: Option<&'static str>, depth: usize) -> Read<()> {
        let mut first = true;
        loop {
            let mut c = self.text.solid().await?;
            if c == ',' && !first {
                c = self.text.solid().await?;
            } else if c != end && !first {
                return failed(c);
            }
            if c == end {
                self.emit(if colon.is_some() { "}" } else { "]" });
                return Ok(());
            }
            self.emit(if first { "" } else { ", " });
            first = false;
            let mut is_text = false;
            if let Some(colon) = colon {
                is_text = self.key(c, colon, depth).await?;
                c = self.text.solid().await?;
            }
            self.value(c, is_text, depth).await?;
        }
    }

    /// Reads a key from its first character, and the colon. Returns whether its value is text.
    async fn key(&self, first: char, colon: &'static str, depth: usize) -> Read<bool> {
        if matches!(first, '"' | '\'' | '<') {
            self.value(first, true, depth).await?;
            self.text.marker(&[colon]).await?;
            self.emit(": ");
            return Ok(false);
        }
        self.text.unread(&first.to_string());
        let (key, _) = self.text.until(&[colon]).await?;
        let key = tool_name(&key)?;
        self.emit(&format!("{}: ", Value::from(key)));
        let schema = argument(self.tools, self.tool, key).filter(|_| depth == 0);
        Ok(schema.is_some_and(|schema| schema.is_text()))
    }

    fn quote(&self) -> &'static str {
        if self.form.quote.is_empty() { "\"" } else { &self.form.quote }
    }

    /// Reads a value from its first character.
    fn value<'a>(
        &'a self,
        first: char,
        is_text: bool,
        depth: usize,
    ) -> Pin<Box<dyn Future<Output = Read<()>> + Send + 'a>> {
        Box::pin(async move {
            match first {
                '[' | '{' if depth >= DEPTH => failed(first),
                '[' => {
                    self.emit("[");
                    self.members(']', None, depth + 1).await
                }
                '{' => {
                    self.emit("{");
                    self.members('}', Some(":"), depth + 1).await
                }
                '"' => self.string("\"", true).await,
                '\'' => self.string("'", true).await,
                '<' if self.quote() != "\"" => {
                    self.text.unread("<");
                    let quote = self.text.marker(&[self.quote()]).await?;
                    self.string(quote, false).await
                }
                _ => self.word(first, is_text).await,
            }
        })
    }

    /// Reads a string behind the quotation mark that opens it.
    async fn string(&self, quote: &str, escapes: bool) -> Read<()> {
        self.emit("\"");
        let mut seen = String::new();
        loop {
            let c = self.text.next().await?;
            if escapes && c == '\\' {
                let c = self.text.next().await?;
                match c {
                    'n' | 't' | 'r' | 'b' | 'f' | 'u' | '"' | '\\' => self.emit(&format!("\\{c}")),
                    '\'' | '/' => self.emit(&c.to_string()),
                    '\n' => {}
                    c => self.emit(&escaped(&format!("\\{c}"))),
                }
                continue;
            }
            seen.push(c);
            if seen == quote {
                self.emit("\"");
                return Ok(());
            }
            while let Some(first) = seen.chars().next().filter(|_| !quote.starts_with(&seen)) {
                self.emit(&escaped(first.encode_utf8(&mut [0; 4])));
                seen.remove(0);
            }
        }
    }

    /// Reads a number, a name, or text without quotation marks where the tool wants text.
    async fn word(&self, first: char, is_text: bool) -> Read<()> {
        let mut word = String::from(first);
        while word.len() <= WORD {
            let c = self.text.next().await?;
            if matches!(c, ',' | ')' | ']' | '}') {
                self.text.unread(&c.to_string());
                break;
            }
            word.push(c);
        }
        let json = match word.trim() {
            text if is_text => Value::from(text).to_string(),
            "True" | "true" => "true".to_owned(),
            "False" | "false" => "false".to_owned(),
            "None" | "null" => "null".to_owned(),
            number if serde_json::from_str::<Number>(number).is_ok() => number.to_owned(),
            _ => return Err(Stopped::Failed(word)),
        };
        self.emit(&json);
        Ok(())
    }
}

/// Text as a part of a JSON string.
fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The grammar of a call's arguments.
pub(super) fn members(lark: &mut Lark<'_>, form: &CallFormat, tool: &ToolSpec) -> String {
    let quote = form.quote.as_str();
    let comma = if quote.is_empty() { ", " } else { "," };
    lark.separated(tool, comma, |lark, name, argument| {
        let key = lark.marked(&form.argument.replace("KEY", name));
        let value = match argument.kind() {
            "boolean" if quote.is_empty() => r#"("True" | "False")"#.to_owned(),
            "string" if !quote.is_empty() => {
                format!("{} {}", lark.marked(quote), lark.plain(argument, quote, quote))
            }
            _ => lark.argument(argument),
        };
        format!("{key} {value}")
    })
}
