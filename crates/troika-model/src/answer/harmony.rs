//! gpt-oss: messages in channels. `analysis` is reasoning, `final` is content, and a message to
//! `functions.name` is a call.

use super::call::{Stopped, Text};
use super::lark::{Lark, UNMARKED};
use super::output::Output;
use super::thoughts::ThoughtEnds;
use super::tool::ToolSpec;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
/// What opens a thought.
pub(super) const THOUGHT: &str = "<|channel|>analysis<|message|>";
const RECIPIENT: &str = " to=";

/// The markers that may follow text.
const AFTER_TEXT: &[&str] = &[START, CHANNEL, END, CALL, RETURN];
/// Those that may begin an answer: the recipient may be the rest of a head that the prompt opened.
const FIRST: &[&str] = &[START, CHANNEL, END, CALL, RETURN, RECIPIENT];

/// No head of a message is longer.
const HEAD: usize = 1024;

/// The word behind `mark` in a message's head.
fn word<'a>(head: &'a str, mark: &str) -> Option<&'a str> {
    let rest = head.split_once(mark)?.1;
    rest.split(|c: char| c.is_whitespace() || c == '<').next()
}

/// Splits messages by their channels.
pub(super) struct Harmony {
    pub(super) text: Text,
    pub(super) tools: bool,
    pub(super) reasoning: bool,
    /// Whether the message being read is a thought. The prompt may have opened one.
    pub(super) analysis: bool,
}

impl Harmony {
    /// Reads the whole answer.
    pub(super) async fn read(mut self) {
        let mut markers = if self.analysis { AFTER_TEXT } else { FIRST };
        while let Some(marker) = self.body(markers).await {
            markers = AFTER_TEXT;
            self.analysis = false;
            if !matches!(marker, END | CALL | RETURN) {
                self.head(marker).await;
            }
        }
    }

    fn emit(&self, text: &str) {
        self.text.out(|out| out.text(text, self.analysis && self.reasoning));
    }

    /// Reads text up to one of these markers. Nothing at the end of the answer.
    async fn body(&self, mut markers: &[&'static str]) -> Option<&'static str> {
        let mut seen = String::new();
        while let Some(c) = self.text.any().await {
            seen.push(c);
            while let Some(first) = seen.chars().next() {
                if let Some(marker) = markers.iter().find(|marker| **marker == seen) {
                    return Some(marker);
                }
                if markers.iter().any(|marker| marker.starts_with(&seen)) {
                    break;
                }
                self.emit(first.encode_utf8(&mut [0; 4]));
                seen.remove(0);
                markers = AFTER_TEXT;
            }
        }
        self.emit(&seen);
        None
    }

    /// Reads what is between a marker and `<|message|>`, and a call behind it.
    async fn head(&mut self, marker: &str) {
        let mut head = marker.to_owned();
        while !head.ends_with(MESSAGE) {
            match self.text.any().await {
                Some(c) if head.len() <= HEAD => head.push(c),
                next => {
                    next.iter().for_each(|c| self.text.unread(c.encode_utf8(&mut [0; 4])));
                    return self.emit(&head);
                }
            }
        }
        let recipient = word(&head, RECIPIENT).and_then(|r| r.strip_prefix("functions."));
        match recipient {
            Some(name) if self.tools && !name.is_empty() => self.call(&head, name).await,
            Some(_) => self.emit(&head),
            None => self.analysis = word(&head, CHANNEL) == Some("analysis"),
        }
    }

    /// Reads the message of a call. If it is none, its head is content, and its body is read as any
    /// text.
    async fn call(&self, head: &str, name: &str) {
        self.text.out(|out| out.open(head));
        let again = match self.text.arguments(name).await {
            Ok(()) => return self.text.out(Output::close),
            Err(Stopped::Failed(text)) => text,
            Err(Stopped::Ended) => String::new(),
        };
        match self.text.out(Output::abandon) {
            Some(raw) => {
                let (head, body) = raw.split_at(head.len());
                self.emit(head);
                self.text.unread(body);
            }
            None => self.text.unread(&again),
        }
    }
}

/// How a thought ends. Without tools there is nothing but the answer after it.
pub(super) fn thought_ends(tools: bool) -> ThoughtEnds {
    let answer = if tools { String::new() } else { format!("{CHANNEL}final{MESSAGE}") };
    let closing = format!("{END}{START}assistant{answer}");
    ThoughtEnds { open: THOUGHT, close: END, closing, anywhere: true }
}

/// A thought, or none, up to the channel of the answer.
fn before(lark: &mut Lark<'_>, opened: bool) -> String {
    let (start, channel, message) =
        (lark.marker(START), lark.marker(CHANNEL), lark.marker(MESSAGE));
    let analysis = lark.until("analysis", UNMARKED, END);
    let analysis = format!(r#"{analysis} {start} "assistant""#);
    if opened {
        return analysis;
    }
    let body = format!(r#"{channel} "analysis" {message} {analysis}"#);
    let rule = lark.rule("thought", &body);
    format!("{rule}?")
}

/// One call: a message ends the turn.
fn call(lark: &mut Lark<'_>, tools: &[ToolSpec]) -> String {
    let (channel, message) = (lark.marker(CHANNEL), lark.marker(MESSAGE));
    let constrain = lark.marker(CONSTRAIN);
    lark.each(tools, "call", |lark, tool| {
        let to = lark.text(&format!("commentary to=functions.{} ", tool.name));
        let json = lark.arguments(tool);
        format!(r#"{channel} {to} {constrain} "json" {message} {json}"#)
    })
}

/// A message ends the turn, so that there is one call, whatever is asked for.
pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], opened: bool) -> String {
    format!("{} {}", before(lark, opened), call(lark, tools))
}

/// The form in the channel of the answer, or a call.
pub(super) fn form_grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], opened: bool) -> String {
    let (channel, message) = (lark.marker(CHANNEL), lark.marker(MESSAGE));
    let constrain = lark.marker(CONSTRAIN);
    let before = before(lark, opened);
    let form = format!(r#"{channel} "final" (" "? {constrain} "json")? {message} @form"#);
    match tools {
        [] => format!("{before} {form}"),
        tools => format!("{before} ({form} | {})", call(lark, tools)),
    }
}
