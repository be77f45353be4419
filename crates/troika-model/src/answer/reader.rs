//! Splits a model's text as it comes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::call::{Read, Stopped, Text};
use super::format::Format;
use super::forms::Kind;
use super::harmony::Harmony;
use super::output::{Delta, Output};
use super::thoughts::ThoughtMarkers;
use super::tool::ToolSpec;
use super::{bare, literals, llama, mistral, named, objects, tags};

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
///
/// An answer that is nothing but a call without markers, or a list of them, bare or fenced, is held
/// while it can still be one: up to its end, for more text could follow.
pub struct Reader {
    text: Text,
    /// Takes the text, until it has ended.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Format {
    /// A reader for one answer.
    pub fn reader(&self, options: ReaderOptions) -> Reader {
        let text = Text::default();
        text.out(|out| out.whole = options.whole_calls);
        let (tools, reasoning) = (!options.tools.is_empty(), options.reasoning);
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = match self.calls.kind {
            Kind::Harmony if reasoning || tools => {
                let (text, analysis) = (text.clone(), options.opened);
                Box::pin(Harmony { text, tools, reasoning, analysis }.read())
            }
            _ => Box::pin(Tagged::new(text.clone(), *self, options).read()),
        };
        Reader { text, work: Some(work) }
    }
}

impl Reader {
    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.text.push(text);
        self.advance()
    }

    /// Says that the text has ended.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.text.end();
        self.advance()
    }

    fn advance(&mut self) -> Vec<Delta> {
        self.work
            .take_if(|work| work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        self.text.out(Output::take)
    }
}

/// What a marker in the text opens or closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    Thought,
    Content,
    Call,
    /// A call without markers, if the whole answer is one.
    Bare,
    /// The text of the answer, up to this marker.
    Frame(&'static str),
}

/// Text with markers in it.
struct Tagged {
    text: Text,
    format: Format,
    thoughts: Option<ThoughtMarkers>,
    tools: Arc<[ToolSpec]>,
    names: Vec<String>,
    /// Whether there was no content yet, and no call.
    fresh: bool,
    /// What closes the text of the answer.
    frame: &'static str,
    /// Whether this is a thought.
    thinking: bool,
    /// New lines, and what may be the beginning of a marker.
    held: String,
    /// Whether a marker has just ended, so that new lines belong to it.
    after_marker: bool,
    /// Whether there was only white space since the start or the last marker.
    blank: bool,
}

impl Tagged {
    fn new(text: Text, format: Format, options: ReaderOptions) -> Self {
        let thoughts = format.thoughts.filter(|_| options.reasoning);
        let opened = options.opened && thoughts.is_some();
        Self {
            text,
            format,
            thoughts,
            names: options.tools.iter().map(|tool| tool.name.clone()).collect(),
            tools: options.tools,
            fresh: true,
            frame: "",
            thinking: opened,
            held: String::new(),
            after_marker: opened,
            blank: true,
        }
    }

    async fn read(mut self) {
        while let Some(c) = self.text.any().await {
            self.held.push(c);
            let Some((marker, opens)) = self.marker() else { continue };
            let held = std::mem::take(&mut self.held);
            match opens {
                Opens::Thought | Opens::Content => self.enter(opens == Opens::Thought),
                Opens::Frame(close) => {
                    self.frame = close;
                    self.enter(false);
                }
                Opens::Call | Opens::Bare => {
                    self.text.out(|out| out.open(&held));
                    self.call(marker, opens == Opens::Bare).await;
                }
            }
        }
        let lines = self.held.trim_start_matches('\n').is_empty();
        if !(self.after_marker && lines) {
            self.emit(&self.held);
        }
    }

    fn enter(&mut self, thinking: bool) {
        self.thinking = thinking;
        self.after_marker = true;
        self.blank = true;
    }

    /// Reads calls. What was read as a call and is none is content: its first character, and the
    /// rest is read again.
    async fn call(&mut self, marker: &str, bare: bool) {
        self.fresh = false;
        let after_marker = std::mem::take(&mut self.after_marker);
        let of_marker = move |raw: &str| {
            if after_marker { raw.len() - raw.trim_start_matches('\n').len() } else { 0 }
        };
        let text = match self.calls(marker, bare).await {
            Ok(()) => {
                self.text.out(Output::close);
                return self.enter(false);
            }
            Err(Stopped::Ended) => {
                let (raw, called) = self.text.out(|out| (out.abandon(), out.has_calls()));
                let raw = raw.unwrap_or_default();
                let begins = |marker: &&str| marker.starts_with(raw.trim());
                // What closes a call may be cut off.
                let of_call = called && self.format.markers().iter().any(begins);
                let nothing = of_call || raw.trim().is_empty();
                return self.emit(if nothing { "" } else { &raw[of_marker(&raw)..] });
            }
            Err(Stopped::Failed(text)) => text,
        };
        self.blank = false;
        let Some(raw) = self.text.out(Output::abandon) else { return self.text.unread(&text) };
        let raw = &raw[of_marker(&raw)..];
        let start = raw.len() - raw.trim_start_matches('\n').len();
        let first = raw[start..].chars().next().map_or(0, char::len_utf8);
        let (first, rest) = raw.split_at(start + first);
        self.emit(first);
        self.text.unread(rest);
    }

    async fn calls(&self, marker: &str, bare: bool) -> Read<()> {
        let (text, tools) = (&self.text, &self.tools);
        if bare {
            return bare::read(text, &self.names, marker).await;
        }
        let form = self.format.calls;
        match (marker, form.kind) {
            (mistral::OPEN, _) => mistral::read(text).await,
            (llama::OPEN | llama::TAG, _) => {
                if marker == llama::OPEN {
                    // The brace is a part of the object.
                    text.unread(marker);
                }
                llama::read(text, &self.names).await
            }
            (_, Kind::Objects) => objects::read(text, form).await,
            (_, Kind::Named) => named::read(text, form, marker).await,
            (_, Kind::Tags) => tags::read(text, tools, form, marker).await,
            (_, Kind::Literals) => literals::read(text, tools, form).await,
            (_, Kind::Harmony) => Ok(()),
        }
    }

    /// The markers that mean something here.
    fn markers(&self) -> Vec<(&'static str, Opens)> {
        let mut markers = Vec::new();
        let form = self.format.calls;
        if let Some(thoughts) = self.thoughts {
            // Where the prompt has opened the thought, some models do so again. Where it has closed
            // it, they may do that again.
            let anywhere = self.blank || form.thinks_anywhere;
            if self.thinking || anywhere {
                markers.push((thoughts.close, Opens::Content));
            }
            if anywhere {
                markers.push((thoughts.open, Opens::Thought));
            }
        }
        if self.thinking {
            return markers;
        }
        if !self.frame.is_empty() {
            markers.push((self.frame, Opens::Frame("")));
        }
        if self.blank {
            let frames = form.frames.iter();
            markers.extend(frames.map(|(open, close)| (open.as_str(), Opens::Frame(close))));
        }
        if self.tools.is_empty() {
            return markers;
        }
        let openers = form.openers().into_iter();
        let anywhere = |marker: &&str| self.blank || !bare::OPEN.contains(marker);
        markers.extend(openers.filter(anywhere).map(|marker| (marker, Opens::Call)));
        markers
    }

    /// What may open a call without markers here. Some formats have such calls themselves.
    fn bare(&self) -> impl Iterator<Item = &'static str> {
        let may = self.fresh && self.blank && !self.thinking && !self.tools.is_empty();
        let own = self.format.calls.openers();
        bare::OPEN.iter().copied().filter(move |marker| may && !own.contains(marker))
    }

    /// Hands out held text that begins no marker. Returns a marker that is complete.
    fn marker(&mut self) -> Option<(&'static str, Opens)> {
        loop {
            let markers = self.markers();
            let rest = self.held.trim_start_matches('\n');
            let first = rest.chars().next()?;
            if let Some(marker) = markers.iter().find(|(marker, _)| *marker == rest) {
                return Some(*marker);
            }
            if markers.iter().any(|(marker, _)| marker.starts_with(rest)) {
                return None;
            }
            let solid = self.held.trim_start();
            let bare = self.bare().find(|marker| solid.starts_with(*marker));
            if let Some(marker) = bare {
                // Another marker could have begun like it.
                let more = solid[marker.len()..].to_owned();
                self.held.truncate(self.held.len() - more.len());
                self.text.unread(&more);
                return Some((marker, Opens::Bare));
            }
            if self.bare().any(|marker| marker.starts_with(solid)) {
                return None;
            }
            let lines = self.held.len() - rest.len();
            let from = if self.after_marker { lines } else { 0 };
            let to = lines + first.len_utf8();
            self.emit(&self.held[from..to]);
            self.held.drain(..to);
            self.after_marker = false;
            self.blank &= first.is_whitespace();
            self.fresh &= self.thinking || self.blank;
        }
    }

    fn emit(&self, text: &str) {
        self.text.out(|out| out.text(text, self.thinking));
    }
}
