//! Which markers a model uses, found in the text of its chat template.

use super::forms::{CallFormat, Kind, tags_in};
use super::lark::{Lark, SpecialToken};
use super::thoughts::{THOUGHTS, ThoughtEnds, ThoughtMarkers};
use super::tool::ToolSpec;
use super::{harmony, literals, tags};

/// How a model writes what is not plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its calls.
    pub calls: &'static CallFormat,
    /// Its thoughts, if it has any. The channels of `Harmony` are not named here.
    pub thoughts: Option<ThoughtMarkers>,
}

impl Format {
    /// Finds the format in a chat template.
    pub fn detect(template: Option<&str>) -> Self {
        let template = template.unwrap_or_default();
        let has = |text: &str| template.contains(text);
        let calls = CallFormat::shown_by(template);
        let thoughts = THOUGHTS.iter().find(|[sign, ..]| has(sign));
        let thoughts = thoughts.map(|&[_, open, close]| ThoughtMarkers { open, close });
        let thoughts = thoughts.filter(|_| calls.kind != Kind::Harmony);
        Self { calls, thoughts }
    }

    /// Whether a rendered prompt has opened the thought already.
    pub fn opened_by(&self, prompt: &str) -> bool {
        match self.thoughts {
            Some(thoughts) => prompt.trim_end().ends_with(thoughts.open),
            None => self.calls.kind == Kind::Harmony && prompt.ends_with(harmony::THOUGHT),
        }
    }

    /// The markers that the reader looks for in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = self.calls.markers();
        for text in self.thoughts.iter().flat_map(|thoughts| [thoughts.open, thoughts.close]) {
            markers.push(text);
            markers.extend(tags_in(text).filter(|tag| *tag != text));
        }
        markers
    }

    /// A Lark grammar that forces a call, or one or more of them if `parallel`. The model may think
    /// before it, if its format has thoughts.
    ///
    /// `special` gives the id of a special token by its text: such a marker is that token alone.
    /// There must be a tool.
    pub fn call_grammar(
        &self,
        tools: &[ToolSpec],
        parallel: bool,
        opened: bool,
        special: &SpecialToken<'_>,
    ) -> String {
        let mut lark = Lark::new(special);
        let calls = self.calls(&mut lark, tools, parallel, opened);
        let thought = self.thought(&mut lark, opened);
        lark.finish(&format!("{thought} {calls}"))
    }

    /// A Lark grammar of an answer that is the grammar `form`, which is not part of it, or calls of
    /// tools if there are any, one or more of them if `parallel`. The model may think before, if
    /// its format has thoughts. `None`: there is nothing but the form.
    ///
    /// `special` is that of [`Format::call_grammar`].
    pub fn form_grammar(
        &self,
        tools: &[ToolSpec],
        parallel: bool,
        opened: bool,
        special: &SpecialToken<'_>,
    ) -> Option<String> {
        let mut lark = Lark::new(special);
        if self.calls.kind == Kind::Harmony {
            let answer = harmony::form_grammar(&mut lark, tools, opened);
            return Some(lark.finish(&answer));
        }
        if tools.is_empty() && self.thoughts.is_none() {
            return None;
        }
        let calls = match tools {
            [] => String::new(),
            tools => format!("| {}", self.calls(&mut lark, tools, parallel, opened)),
        };
        let thought = self.thought(&mut lark, opened);
        let framed = |(open, close): &(String, String)| {
            format!("| {} @form {}", lark.marker(open), lark.marker(close))
        };
        let framed: String = self.calls.frames.iter().map(framed).collect();
        Some(lark.finish(&format!("{thought} (@form {framed} {calls})")))
    }

    /// Whether a rendered prompt has closed the thought already.
    pub fn closed_by(&self, prompt: &str) -> bool {
        self.thoughts.is_some_and(|thoughts| prompt.trim_end().ends_with(thoughts.close))
    }

    /// The markers of thoughts, and what closes one in its midst; with `tools` the model may go on
    /// with a call. `None`: the model does not think.
    pub fn thought_ends(&self, tools: bool) -> Option<ThoughtEnds> {
        match self.thoughts {
            Some(ThoughtMarkers { open, close }) => {
                Some(ThoughtEnds { open, close, closing: format!("\n{close}\n"), anywhere: false })
            }
            None => (self.calls.kind == Kind::Harmony).then(|| harmony::thought_ends(tools)),
        }
    }

    fn thought(&self, lark: &mut Lark<'_>, opened: bool) -> String {
        self.thoughts.map_or_else(String::new, |t| lark.thought(t.open, t.close, opened))
    }

    /// The rule of calls. That of `Harmony` has the thought before them.
    fn calls(
        &self,
        lark: &mut Lark<'_>,
        tools: &[ToolSpec],
        parallel: bool,
        opened: bool,
    ) -> String {
        let form = self.calls;
        if form.kind == Kind::Harmony {
            return harmony::grammar(lark, tools, opened);
        }
        let call = lark.each(tools, "call", |lark, tool| {
            let (head, end) = form.call.split_once("JSON").unwrap_or((&form.call, &form.end));
            let name = match form.kind {
                Kind::Objects => lark.text(&tool.name),
                _ => tool.name.clone(),
            };
            let arguments = match form.kind {
                Kind::Tags => tags::members(lark, form, tool),
                Kind::Literals => literals::members(lark, form, tool),
                _ => lark.arguments(tool),
            };
            let head = lark.marked(&head.replace("NAME", &name));
            format!("{head} {arguments} {}", lark.marked(end))
        });
        let (open, close) = (lark.marked(&form.open), lark.marked(&form.close));
        if let Some(between) = &form.between {
            let call = lark.rule("marked", &format!("{open} {call} {close}"));
            return lark.repeated(&call, &lark.marked(between), parallel);
        }
        let calls = lark.repeated(&call, &lark.marked(&form.comma), parallel);
        format!("{open} {calls} {close}")
    }
}
