//! gpt-oss: messages in channels. `analysis` is reasoning, `final` is content, and a message to
//! `functions.name` is a call.

use super::json::{JsonScanner, Scan};
use super::lark::Lark;
use super::output::Output;
use super::tool::ToolSpec;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
const RECIPIENT: &str = " to=";
pub(super) const MARKERS: &[&str] = &[START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN];

/// No head of a message is longer.
const HEAD: usize = 1024;

/// Where a message's text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Analysis,
    Content,
}

#[derive(Debug)]
enum At {
    /// Outside messages. The beginning of a marker, maybe.
    Outside(String),
    /// Between a marker and `<|message|>`: the raw text.
    Head(String),
    Body {
        kind: Kind,
        seen: String,
    },
    BeforeCall(String),
    Call(JsonScanner),
}

/// Splits messages by their channels.
#[derive(Debug)]
pub(super) struct Harmony {
    at: At,
    tools: bool,
    reasoning: bool,
    fresh: bool,
}

/// What text before a marker may be.
enum Seen {
    Marker(&'static str),
    Maybe,
    Text(char),
}

fn look(seen: &str, markers: &[&'static str]) -> Seen {
    if let Some(marker) = markers.iter().find(|m| **m == seen) {
        return Seen::Marker(marker);
    }
    match seen.chars().next() {
        Some(c) if !markers.iter().any(|m| m.starts_with(seen)) => Seen::Text(c),
        _ => Seen::Maybe,
    }
}

/// The word behind `mark` in a message's head.
fn word<'a>(head: &'a str, mark: &str) -> Option<&'a str> {
    let rest = head.split_once(mark)?.1;
    rest.split(|c: char| c.is_whitespace() || c == '<').next()
}

impl Harmony {
    pub(super) fn new(tools: bool, reasoning: bool, opened: bool) -> Self {
        let at = if opened {
            At::Body { kind: Kind::Analysis, seen: String::new() }
        } else {
            At::Outside(String::new())
        };
        Self { at, tools, reasoning, fresh: true }
    }

    /// Takes the next character. Returns what must be read again.
    pub(super) fn next(&mut self, c: char, out: &mut Output) -> String {
        match &mut self.at {
            At::Outside(seen) => {
                seen.push(c);
                self.outside(out);
            }
            At::Head(_) => self.head(c, out),
            At::Body { seen, .. } => {
                seen.push(c);
                self.body(out);
            }
            At::BeforeCall(_) | At::Call(_) => return self.call(c, out),
        }
        String::new()
    }

    fn outside(&mut self, out: &mut Output) {
        const ANY: &[&str] = &[START, CHANNEL, END, CALL, RETURN];
        const FIRST: &[&str] = &[START, CHANNEL, END, CALL, RETURN, RECIPIENT];
        let At::Outside(seen) = &mut self.at else { return };
        while !seen.is_empty() {
            match look(seen, if self.fresh { FIRST } else { ANY }) {
                Seen::Maybe => return,
                Seen::Text(c) => {
                    self.fresh = false;
                    seen.remove(0);
                    out.content(c.encode_utf8(&mut [0; 4]));
                }
                Seen::Marker(END | CALL | RETURN) => seen.clear(),
                Seen::Marker(marker) => {
                    self.at = At::Head(marker.to_owned());
                    return;
                }
            }
        }
    }

    fn head(&mut self, c: char, out: &mut Output) {
        let At::Head(head) = &mut self.at else { return };
        head.push(c);
        if !head.ends_with(MESSAGE) {
            if head.len() > HEAD {
                out.content(head);
                self.fresh = false;
                self.at = At::Outside(String::new());
            }
            return;
        }
        let channel = word(head, CHANNEL).unwrap_or_default();
        let recipient = word(head, RECIPIENT).and_then(|r| r.strip_prefix("functions."));
        self.at = match recipient {
            Some(name) if self.tools && !name.is_empty() => {
                out.open(head);
                At::BeforeCall(name.to_owned())
            }
            Some(_) => {
                out.content(head);
                At::Body { kind: Kind::Content, seen: String::new() }
            }
            None if channel == "analysis" => At::Body { kind: Kind::Analysis, seen: String::new() },
            None => At::Body { kind: Kind::Content, seen: String::new() },
        };
    }

    fn body(&mut self, out: &mut Output) {
        const ANY: &[&str] = &[START, CHANNEL, END, CALL, RETURN];
        let At::Body { kind, seen } = &mut self.at else { return };
        while !seen.is_empty() {
            match look(seen, ANY) {
                Seen::Maybe => return,
                Seen::Text(c) => {
                    seen.remove(0);
                    let utf8 = &mut [0; 4];
                    let text = c.encode_utf8(utf8);
                    if *kind == Kind::Analysis && self.reasoning {
                        out.reasoning(text);
                    } else {
                        out.content(text);
                    }
                }
                Seen::Marker(END | CALL | RETURN) => {
                    self.fresh = false;
                    self.at = At::Outside(String::new());
                    return;
                }
                Seen::Marker(marker) => {
                    self.at = At::Head(marker.to_owned());
                    return;
                }
            }
        }
    }

    fn call(&mut self, c: char, out: &mut Output) -> String {
        out.record(c);
        if let At::BeforeCall(name) = &self.at {
            if c.is_whitespace() {
                return String::new();
            }
            if c == '{' {
                out.start_call(name);
                self.at = At::Call(JsonScanner::new());
            }
        }
        let At::Call(scanner) = &mut self.at else { return self.failed(c, out) };
        match scanner.next(c) {
            Scan::More => out.arguments(c.encode_utf8(&mut [0; 4])),
            Scan::Done => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
                out.end_call();
                out.close();
                self.fresh = false;
                self.at = At::Outside(String::new());
            }
            Scan::DoneBefore | Scan::Bad => return self.failed(c, out),
        }
        String::new()
    }

    /// The message is not a call. Its head is content, and its body is read as any text.
    fn failed(&mut self, c: char, out: &mut Output) -> String {
        self.at = At::Body { kind: Kind::Content, seen: String::new() };
        let Some(raw) = out.abandon() else { return c.to_string() };
        let at = raw.find(MESSAGE).map_or(0, |at| at + MESSAGE.len());
        let (head, body) = raw.split_at(at);
        out.content(head);
        body.to_owned()
    }

    pub(super) fn finish(&mut self, out: &mut Output) {
        match &self.at {
            At::Outside(seen) | At::Head(seen) => out.content(seen),
            At::Body { kind: Kind::Analysis, seen } if self.reasoning => out.reasoning(seen),
            At::Body { seen, .. } => out.content(seen),
            At::BeforeCall(_) | At::Call(_) => {
                if let Some(raw) = out.abandon() {
                    out.content(&raw);
                }
            }
        }
        self.at = At::Outside(String::new());
    }
}

/// A message ends the turn, so that there is one call, whatever is asked for.
pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], opened: bool) -> String {
    let (start, channel) = (lark.marker(START), lark.marker(CHANNEL));
    let (message, constrain) = (lark.marker(MESSAGE), lark.marker(CONSTRAIN));
    let analysis = lark.unmarked_until("analysis", END);
    let analysis = format!(r#"{analysis} {start} "assistant""#);
    let before = if opened {
        analysis
    } else {
        let body = format!(r#"{channel} "analysis" {message} {analysis}"#);
        let rule = lark.rule("thought", &body);
        format!("{rule}?")
    };
    let call = lark.each(tools, "call", |lark, tool| {
        let to = lark.text(&format!("commentary to=functions.{} ", tool.name));
        let json = lark.arguments(tool);
        format!(r#"{channel} {to} {constrain} "json" {message} {json}"#)
    });
    format!("{before} {call}")
}
