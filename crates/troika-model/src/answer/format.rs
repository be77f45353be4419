//! Which markers a model uses, found in the text of its chat template.

use super::forms::{CallFormat, THOUGHTS, tags_in};
use super::harmony;
use super::lark::{Lark, SpecialToken};
use super::tool::ToolSpec;

/// The markers around a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarkers {
    /// What opens it.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
}

/// How a model writes what is not plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its calls.
    pub calls: CallFormat,
    /// Its thoughts, if it has any. The channels of `Harmony` are not named here.
    pub thoughts: Option<ThoughtMarkers>,
}

impl Format {
    /// Finds the format in a chat template.
    pub fn detect(template: Option<&str>) -> Self {
        let template = template.unwrap_or_default();
        let has = |text: &str| template.contains(text);
        let calls = CallFormat::shown_by(template);
        let thoughts = THOUGHTS.iter().find(|(sign, _)| has(sign)).map(|(_, markers)| *markers);
        let thoughts = thoughts.filter(|_| calls != CallFormat::Harmony);
        Self { calls, thoughts }
    }

    /// Whether a rendered prompt has opened the thought already.
    pub fn opened_by(&self, prompt: &str) -> bool {
        match self.thoughts {
            Some(thoughts) => prompt.trim_end().ends_with(thoughts.open),
            None => {
                self.calls == CallFormat::Harmony
                    && prompt.ends_with("<|channel|>analysis<|message|>")
            }
        }
    }

    /// The markers that the reader looks for in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = self.calls.form().markers();
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
        let lark_ref = &mut lark;
        let calls = match self.calls {
            CallFormat::Harmony => harmony::grammar(lark_ref, tools, opened),
            calls => calls.form().grammar(lark_ref, tools, parallel),
        };
        let thought =
            self.thoughts.map_or_else(String::new, |t| lark.thought(t.open, t.close, opened));
        lark.finish(&format!("{thought} {calls}"))
    }
}
