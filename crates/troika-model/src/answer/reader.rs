//! Splits a model's text as it comes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::call::{CallParser, Progress};
use super::deepseek::DeepSeek;
use super::format::{CallFormat, Format, ThoughtMarkers};
use super::glm::Glm;
use super::harmony::Harmony;
use super::hermes::Hermes;
use super::list::ListCalls;
use super::llama::Llama;
use super::mistral::Mistral;
use super::output::{Delta, Output};
use super::qwen_coder::QwenCoder;
use super::tool::ToolSpec;
use super::{deepseek, hermes, llama, mistral, phi, qwen_coder};

/// A text without a name after this many bytes does not count as a call.
const UNNAMED: usize = 16 << 10;

/// What a reader looks for.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// The tools that were offered. Without any, calls are plain text.
    pub tools: Arc<[ToolSpec]>,
    /// Whether thoughts are split off. Else they are plain text, markers included.
    pub reasoning: bool,
    /// Whether the prompt has opened a thought already.
    pub opened: bool,
    /// Hands out calls only when they are complete, so that what fails in its middle is content.
    pub whole_calls: bool,
}

/// Reads the text of one answer. The same text gives the same deltas, wherever it is cut, once
/// they are merged.
///
/// New lines next to markers belong to these. What turns out to be no call is content. With
/// `whole_calls` off, that holds until its arguments have begun.
pub struct Reader {
    inner: Inner,
    out: Output,
}

enum Inner {
    Plain,
    Channels(Harmony),
    Tagged(Tagged),
}

impl Format {
    /// A reader for one answer.
    pub fn reader(&self, options: ReaderOptions) -> Reader {
        let out = Output::new(options.whole_calls);
        let inner = if options.tools.is_empty() && !options.reasoning {
            Inner::Plain
        } else if self.calls == CallFormat::Harmony {
            let tools = !options.tools.is_empty();
            Inner::Channels(Harmony::new(tools, options.reasoning, options.opened))
        } else {
            Inner::Tagged(Tagged::new(*self, options))
        };
        Reader { inner, out }
    }
}

impl Reader {
    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        match &mut self.inner {
            Inner::Plain => self.out.content(text),
            Inner::Channels(harmony) => {
                let mut input: VecDeque<char> = text.chars().collect();
                while let Some(c) = input.pop_front() {
                    let again = harmony.next(c, &mut self.out);
                    again.chars().rev().for_each(|c| input.push_front(c));
                }
            }
            Inner::Tagged(tagged) => tagged.push(text, &mut self.out),
        }
        self.out.take()
    }

    /// Says that the text has ended.
    pub fn finish(&mut self) -> Vec<Delta> {
        match &mut self.inner {
            Inner::Plain => {}
            Inner::Channels(harmony) => harmony.finish(&mut self.out),
            Inner::Tagged(tagged) => tagged.finish(&mut self.out),
        }
        self.out.take()
    }
}

enum At {
    Content,
    Thought,
    Call(Box<dyn CallParser>),
}

/// What a marker in the text opens or closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    Thought,
    Content,
    Call,
}

/// Text with markers in it.
struct Tagged {
    format: Format,
    thoughts: Option<ThoughtMarkers>,
    tools: Arc<[ToolSpec]>,
    names: Arc<[String]>,
    at: At,
    /// New lines, and what may be the beginning of a marker.
    held: String,
    /// Whether a marker has just ended, so that new lines belong to it.
    after_marker: bool,
    /// Whether there was only white space since the start or the last marker.
    blank: bool,
}

impl Tagged {
    fn new(format: Format, options: ReaderOptions) -> Self {
        let thoughts = format.thoughts.filter(|_| options.reasoning);
        let opened = options.opened && thoughts.is_some();
        Self {
            format,
            thoughts,
            names: options.tools.iter().map(|t| t.name.clone()).collect(),
            tools: options.tools,
            at: if opened { At::Thought } else { At::Content },
            held: String::new(),
            after_marker: opened,
            blank: true,
        }
    }

    fn push(&mut self, text: &str, out: &mut Output) {
        let mut again: VecDeque<char> = VecDeque::new();
        for c in text.chars() {
            again.push_back(c);
            while let Some(c) = again.pop_front() {
                let spilled = self.next(c, out);
                spilled.chars().rev().for_each(|c| again.push_front(c));
            }
        }
    }

    /// Takes a character. Returns what must be read again.
    fn next(&mut self, c: char, out: &mut Output) -> String {
        let At::Call(call) = &mut self.at else {
            self.held.push(c);
            return self.text(out);
        };
        out.record(c);
        let progress = match call.next(c, out) {
            Progress::More if out.unnamed() > UNNAMED => Progress::Failed(c.to_string()),
            progress => progress,
        };
        match progress {
            Progress::More => String::new(),
            Progress::Done => {
                out.close();
                self.enter(At::Content);
                String::new()
            }
            Progress::Spill(text) => {
                out.close();
                self.enter(At::Content);
                text
            }
            Progress::Failed(text) => self.failed(text, out),
        }
    }

    fn enter(&mut self, at: At) {
        self.at = at;
        self.after_marker = true;
        self.blank = true;
    }

    /// What was read as a call is none. Its first character is content, and the rest is read again.
    fn failed(&mut self, text: String, out: &mut Output) -> String {
        self.at = At::Content;
        self.blank = false;
        self.after_marker = false;
        let Some(raw) = out.abandon() else { return text };
        let start = raw.len() - raw.trim_start_matches('\n').len();
        let first = raw[start..].chars().next().map_or(0, char::len_utf8);
        let (first, rest) = raw.split_at(start + first);
        out.content(first);
        rest.to_owned()
    }

    /// The markers that mean something here.
    fn markers(&self) -> Vec<(&'static str, Opens)> {
        let mut markers = Vec::new();
        if let Some(thoughts) = self.thoughts {
            if matches!(self.at, At::Thought) {
                markers.push((thoughts.close, Opens::Content));
            }
            // Where the prompt has opened the thought, some models do so again.
            if self.blank {
                markers.push((thoughts.open, Opens::Thought));
            }
        }
        if matches!(self.at, At::Thought) || self.tools.is_empty() {
            return markers;
        }
        let calls: &[&'static str] = match self.format.calls {
            CallFormat::Hermes | CallFormat::Glm => &[hermes::OPEN],
            CallFormat::QwenCoder => &[qwen_coder::OPEN, qwen_coder::FUNCTION],
            CallFormat::Llama if self.blank => &[llama::PYTHON, llama::OPEN],
            CallFormat::Llama => &[llama::PYTHON],
            CallFormat::MistralList | CallFormat::Mistral => &[mistral::OPEN],
            CallFormat::DeepSeek | CallFormat::DeepSeekBare => &[deepseek::OPEN],
            CallFormat::Phi => &[phi::OPEN],
            CallFormat::Harmony => &[],
        };
        markers.extend(calls.iter().map(|marker| (*marker, Opens::Call)));
        markers
    }

    /// Hands out held text that begins no marker.
    fn text(&mut self, out: &mut Output) -> String {
        loop {
            let markers = self.markers();
            let rest = self.held.trim_start_matches('\n');
            let Some(first) = rest.chars().next() else { return String::new() };
            if let Some((marker, opens)) = markers.iter().find(|(marker, _)| *marker == rest) {
                return self.open(marker, *opens, out);
            }
            if markers.iter().any(|(marker, _)| marker.starts_with(rest)) {
                return String::new();
            }
            let lines = self.held.len() - rest.len();
            let from = if self.after_marker { lines } else { 0 };
            let to = lines + first.len_utf8();
            self.emit(from, to, out);
            self.held.drain(..to);
            self.after_marker = false;
            self.blank &= first.is_whitespace();
        }
    }

    fn emit(&self, from: usize, to: usize, out: &mut Output) {
        match self.at {
            At::Thought => out.reasoning(&self.held[from..to]),
            _ => out.content(&self.held[from..to]),
        }
    }

    /// A marker is complete.
    fn open(&mut self, marker: &str, opens: Opens, out: &mut Output) -> String {
        let held = std::mem::take(&mut self.held);
        match opens {
            Opens::Thought => self.enter(At::Thought),
            Opens::Content => self.enter(At::Content),
            Opens::Call => {
                out.open(&held);
                let call = self.parser(marker);
                self.at = At::Call(call);
                if marker == llama::OPEN {
                    // The brace is a part of the object.
                    out.open(held.trim_end_matches(llama::OPEN));
                    return marker.to_owned();
                }
            }
        }
        String::new()
    }

    fn parser(&self, marker: &str) -> Box<dyn CallParser> {
        let tools = || Arc::clone(&self.tools);
        match self.format.calls {
            CallFormat::Hermes | CallFormat::Harmony => Box::new(Hermes::new()),
            CallFormat::QwenCoder if marker == qwen_coder::FUNCTION => {
                Box::new(QwenCoder::in_function(tools()))
            }
            CallFormat::QwenCoder => Box::new(QwenCoder::new(tools())),
            CallFormat::Llama => Box::new(Llama::new(Arc::clone(&self.names))),
            CallFormat::MistralList | CallFormat::Mistral => Box::new(Mistral::new()),
            CallFormat::DeepSeek | CallFormat::DeepSeekBare => Box::new(DeepSeek::new()),
            CallFormat::Glm => Box::new(Glm::new(tools())),
            CallFormat::Phi => Box::new(ListCalls::new(phi::CLOSE)),
        }
    }

    fn finish(&mut self, out: &mut Output) {
        let At::Call(call) = &mut self.at else {
            let lines = self.held.trim_start_matches('\n').is_empty();
            if !(self.after_marker && lines) {
                self.emit(0, self.held.len(), out);
            }
            self.held.clear();
            return;
        };
        match call.finish(out) {
            Some(text) => {
                out.close();
                out.content(&text);
            }
            None => {
                if let Some(raw) = out.abandon() {
                    out.content(&raw);
                }
            }
        }
        self.at = At::Content;
    }
}
