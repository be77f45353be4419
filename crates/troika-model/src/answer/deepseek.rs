//! DeepSeek: calls in one pair of markers, each in a pair of its own, with the arguments fenced
//! (V3, R1) or bare (V3.1).

use super::call::{CallParser, Progress, Tail};
use super::json::{JsonScanner, Scan};
use super::lark::Lark;
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CLOSE: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json";

/// No head of a call is longer.
const HEAD: usize = 512;

#[derive(Debug)]
enum At {
    /// Between calls: what may be the marker of a next one or of the end.
    Between(String),
    /// The type or the name, until the separator.
    Head(String),
    /// Behind the separator: arguments, or the name and a fence.
    Named {
        head: String,
        text: String,
    },
    Arguments {
        scanner: JsonScanner,
        fenced: bool,
    },
    /// Until the end of the call.
    Fence,
    Tail(Tail),
}

#[derive(Debug)]
pub(super) struct DeepSeek {
    at: At,
}

impl DeepSeek {
    pub(super) fn new() -> Self {
        Self { at: At::Between(String::new()) }
    }

    fn between(&mut self, c: char) -> Progress {
        let At::Between(seen) = &mut self.at else { return Progress::Failed(c.to_string()) };
        seen.push(c);
        let rest = seen.trim_start();
        if rest == CALL {
            self.at = At::Head(String::new());
        } else if rest == CLOSE {
            return Progress::Done;
        } else if !CALL.starts_with(rest) && !CLOSE.starts_with(rest) {
            return Progress::Failed(std::mem::take(seen));
        }
        Progress::More
    }

    fn head(&mut self, c: char) -> Progress {
        let At::Head(head) = &mut self.at else { return Progress::Failed(c.to_string()) };
        head.push(c);
        if let Some(name) = head.strip_suffix(SEPARATOR) {
            self.at = At::Named { head: name.trim().to_owned(), text: String::new() };
        } else if head.len() > HEAD {
            return Progress::Failed(c.to_string());
        }
        Progress::More
    }

    fn named(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Named { head, text } = &mut self.at else { return Progress::Failed(c.to_string()) };
        let fenced = text.trim_end().strip_suffix(FENCE).map(str::trim);
        let bare = text.trim().is_empty();
        if c != '{' || (fenced.is_none() && !bare) {
            text.push(c);
            let more = text.len() <= HEAD;
            return if more { Progress::More } else { Progress::Failed(c.to_string()) };
        }
        let name = fenced.unwrap_or(head);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Progress::Failed(c.to_string());
        }
        out.start_call(name);
        self.at = At::Arguments { scanner: JsonScanner::new(), fenced: fenced.is_some() };
        self.next(c, out)
    }

    fn arguments(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Arguments { scanner, fenced } = &mut self.at else {
            return Progress::Failed(c.to_string());
        };
        let scan = scanner.next(c);
        if matches!(scan, Scan::Bad | Scan::DoneBefore) {
            return Progress::Failed(c.to_string());
        }
        out.arguments(c.encode_utf8(&mut [0; 4]));
        if scan == Scan::Done {
            out.end_call();
            self.at = if *fenced { At::Fence } else { At::Tail(Tail::new(CALL_END)) };
        }
        Progress::More
    }
}

impl CallParser for DeepSeek {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        match &mut self.at {
            At::Between(_) => self.between(c),
            At::Head(_) => self.head(c),
            At::Named { .. } => self.named(c, out),
            At::Arguments { .. } => self.arguments(c, out),
            At::Fence if c == '`' || c.is_whitespace() => Progress::More,
            At::Fence => {
                self.at = At::Tail(Tail::new(CALL_END));
                self.next(c, out)
            }
            At::Tail(tail) => match tail.next(c) {
                Progress::Done => {
                    self.at = At::Between(String::new());
                    out.open("");
                    Progress::More
                }
                progress => progress,
            },
        }
    }

    fn finish(&mut self, _: &mut Output) -> Option<String> {
        match &mut self.at {
            At::Tail(tail) => Some(tail.finish()),
            At::Fence => Some(String::new()),
            At::Between(seen) if seen.trim().is_empty() => Some(String::new()),
            At::Between(_) | At::Head(_) | At::Named { .. } | At::Arguments { .. } => None,
        }
    }
}

/// The grammar of V3.1, or of those before it.
pub(super) fn grammar(
    lark: &mut Lark<'_>,
    tools: &[ToolSpec],
    parallel: bool,
    bare: bool,
) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let (begin, end) = (lark.marker(CALL), lark.marker(CALL_END));
    let separator = lark.marker(SEPARATOR);
    let call = lark.each(tools, "call", |lark, tool| {
        let json = lark.arguments(tool);
        if bare {
            let name = lark.text(&tool.name);
            return format!("{begin} {name} {separator} {json} {end}");
        }
        let name = lark.text(&format!("{}\n```json\n", tool.name));
        format!(r#"{begin} "function" {separator} {name} {json} "\n```" {end}"#)
    });
    let between = if bare { "" } else { r#""\n""# };
    let calls = lark.repeated(&call, between, parallel);
    format!("{open} {calls} {close}")
}
