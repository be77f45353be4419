//! Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

use std::sync::Arc;

use super::call::{CallParser, Progress};
use super::lark::Lark;
use super::members::{Members, PlainValue};
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// No name is longer.
const NAME: usize = 256;

#[derive(Debug)]
enum At {
    /// Outside functions: the beginning of a marker, maybe.
    Outside(String),
    FunctionName(String),
    /// Inside a function, outside parameters.
    Inside(String),
    ParameterName(String),
    Value {
        key: String,
        value: PlainValue,
    },
}

#[derive(Debug)]
pub(super) struct QwenCoder {
    at: At,
    members: Members,
    calls: usize,
}

impl QwenCoder {
    /// Behind `<tool_call>`.
    pub(super) fn new(tools: Arc<[ToolSpec]>) -> Self {
        Self { at: At::Outside(String::new()), members: Members::new(tools), calls: 0 }
    }

    /// Behind `<function=`: models forget the marker before it now and then.
    pub(super) fn in_function(tools: Arc<[ToolSpec]>) -> Self {
        Self { at: At::FunctionName(String::new()), ..Self::new(tools) }
    }

    fn outside(&mut self, c: char) -> Progress {
        let At::Outside(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        let rest = seen.trim_start();
        if rest == FUNCTION {
            self.at = At::FunctionName(String::new());
        } else if rest == CLOSE && self.calls > 0 {
            return Progress::Done;
        } else if !(FUNCTION.starts_with(rest) || (self.calls > 0 && CLOSE.starts_with(rest))) {
            let seen = std::mem::take(seen);
            return if self.calls > 0 { Progress::Spill(seen) } else { Progress::Failed(seen) };
        }
        Progress::More
    }

    fn inside(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Inside(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        let rest = seen.trim_start();
        if rest == PARAMETER {
            self.at = At::ParameterName(String::new());
        } else if rest == FUNCTION_END {
            self.members.end(out);
            self.calls += 1;
            self.at = At::Outside(String::new());
        } else if !PARAMETER.starts_with(rest) && !FUNCTION_END.starts_with(rest) {
            return Progress::Failed(std::mem::take(seen));
        }
        Progress::More
    }

    fn name(&mut self, c: char, out: &mut Output) -> Progress {
        let (At::FunctionName(name) | At::ParameterName(name)) = &mut self.at else {
            return Progress::Failed(c.to_string());
        };
        let ends = c == '>' && !name.trim().is_empty();
        if !ends && (matches!(c, '<' | '>' | '\n') || name.len() > NAME) {
            return Progress::Failed(format!("{name}{c}"));
        }
        if !ends {
            name.push(c);
            return Progress::More;
        }
        let name = name.trim().to_owned();
        self.at = if matches!(self.at, At::FunctionName(_)) {
            self.members.start(&name, out);
            At::Inside(String::new())
        } else {
            let value = self.members.value(&name);
            At::Value { key: name, value }
        };
        Progress::More
    }

    fn value(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Value { key, value } = &mut self.at else { return Progress::Failed(c.to_string()) };
        if let Some(value) = value.next(c, PARAMETER_END) {
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            self.members.member(key, value, out);
            self.at = At::Inside(String::new());
        }
        Progress::More
    }
}

impl CallParser for QwenCoder {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        match &self.at {
            At::Outside(_) => self.outside(c),
            At::Inside(_) => self.inside(c, out),
            At::FunctionName(_) | At::ParameterName(_) => self.name(c, out),
            At::Value { .. } => self.value(c, out),
        }
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        match &self.at {
            At::Outside(seen) if self.calls > 0 => {
                Some(if seen.trim().is_empty() { String::new() } else { seen.clone() })
            }
            At::Value { key, value } => {
                let text = value.text.strip_prefix('\n').unwrap_or(&value.text);
                self.members.partial(key, text, out);
                None
            }
            _ => None,
        }
    }
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.each(tools, "call", |lark, tool| {
        let head = lark.text(&format!("\n{FUNCTION}{}>\n", tool.name));
        let parameters = lark.members(tool, |lark, key, argument| {
            let head = lark.text(&format!("{PARAMETER}{key}>\n"));
            let value = lark.plain(argument, &format!("\n{PARAMETER_END}\n"), PARAMETER_END);
            format!("{head} {value}")
        });
        let tail = lark.text(&format!("{FUNCTION_END}\n"));
        format!("{open} {head} {parameters} {tail} {close}")
    });
    lark.repeated(&call, r#""\n""#, parallel)
}
