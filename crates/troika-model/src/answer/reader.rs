//! Splits a model's text as it comes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::call::{Read, Stopped, Text};
use super::format::{CallFormat, Format, ThoughtMarkers};
use super::harmony::Harmony;
use super::output::{Delta, Output};
use super::tool::ToolSpec;
use super::{deepseek, glm, hermes, list, llama, mistral, phi, qwen_coder};

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
    text: Text,
    /// Takes the text, until it has ended.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Format {
    /// A reader for one answer.
    pub fn reader(&self, options: ReaderOptions) -> Reader {
        let text = Text::new(options.whole_calls);
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = if self.calls == CallFormat::Harmony
            && (options.reasoning || !options.tools.is_empty())
        {
            let tools = !options.tools.is_empty();
            let harmony = Harmony::new(text.clone(), tools, options.reasoning);
            Box::pin(harmony.read(options.opened))
        } else {
            Box::pin(Tagged::new(text.clone(), *self, options).read())
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
}

/// Text with markers in it.
struct Tagged {
    text: Text,
    format: Format,
    thoughts: Option<ThoughtMarkers>,
    tools: Arc<[ToolSpec]>,
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
            tools: options.tools,
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
            if opens == Opens::Call {
                self.text.out(|out| out.open(&held));
                self.call(marker).await;
            } else {
                self.enter(opens == Opens::Thought);
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
    async fn call(&mut self, marker: &str) {
        let text = match self.calls(marker).await {
            Ok(()) => {
                self.text.out(Output::close);
                return self.enter(false);
            }
            Err(Stopped::Ended) => {
                let raw = self.text.out(Output::abandon).unwrap_or_default();
                return self.emit(if raw.trim().is_empty() { "" } else { &raw });
            }
            Err(Stopped::Failed(text)) => text,
        };
        self.blank = false;
        self.after_marker = false;
        let Some(raw) = self.text.out(Output::abandon) else { return self.text.unread(&text) };
        let start = raw.len() - raw.trim_start_matches('\n').len();
        let first = raw[start..].chars().next().map_or(0, char::len_utf8);
        let (first, rest) = raw.split_at(start + first);
        self.emit(first);
        self.text.unread(rest);
    }

    async fn calls(&self, marker: &str) -> Read<()> {
        let text = &self.text;
        match self.format.calls {
            CallFormat::Hermes | CallFormat::Harmony => hermes::read(text).await,
            CallFormat::QwenCoder => qwen_coder::read(text, &self.tools, marker).await,
            CallFormat::Llama => {
                if marker == llama::OPEN {
                    // The brace is a part of the object.
                    text.unread(marker);
                }
                let names: Vec<String> = self.tools.iter().map(|t| t.name.clone()).collect();
                llama::read(text, &names).await
            }
            CallFormat::MistralList | CallFormat::Mistral => mistral::read(text).await,
            CallFormat::DeepSeek | CallFormat::DeepSeekBare => deepseek::read(text).await,
            CallFormat::Glm => glm::read(text, &self.tools).await,
            CallFormat::Phi => list::read(text, Some(phi::CLOSE)).await,
        }
    }

    /// The markers that mean something here.
    fn markers(&self) -> Vec<(&'static str, Opens)> {
        let mut markers = Vec::new();
        if let Some(thoughts) = self.thoughts {
            if self.thinking {
                markers.push((thoughts.close, Opens::Content));
            }
            // Where the prompt has opened the thought, some models do so again.
            if self.blank {
                markers.push((thoughts.open, Opens::Thought));
            }
        }
        if self.thinking || self.tools.is_empty() {
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
            let lines = self.held.len() - rest.len();
            let from = if self.after_marker { lines } else { 0 };
            let to = lines + first.len_utf8();
            self.emit(&self.held[from..to]);
            self.held.drain(..to);
            self.after_marker = false;
            self.blank &= first.is_whitespace();
        }
    }

    fn emit(&self, text: &str) {
        self.text.out(|out| if self.thinking { out.reasoning(text) } else { out.content(text) });
    }
}
