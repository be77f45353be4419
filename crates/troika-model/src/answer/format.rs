//! Which markers a model uses, found in the text of its chat template.

use super::lark::{Lark, SpecialToken};
use super::tool::ToolSpec;
use super::{deepseek, glm, harmony, hermes, llama, mistral, phi, qwen_coder};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. Also where a template names none.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
    QwenCoder,
    /// `{"name": .., "parameters": {..}}`.
    Llama,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`.
    MistralList,
    /// `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
    /// Messages to `functions.name` in a channel.
    Harmony,
    /// DeepSeek V3 and R1, with fenced arguments.
    DeepSeek,
    /// DeepSeek V3.1, with bare arguments.
    DeepSeekBare,
    /// `<tool_call>name <arg_key>key</arg_key> <arg_value>value</arg_value></tool_call>`.
    Glm,
    /// `<|tool_call|>[{"name": .., "arguments": {..}}]<|/tool_call|>`.
    Phi,
}

impl CallFormat {
    /// All of them.
    pub const ALL: [CallFormat; 10] = [
        CallFormat::Hermes,
        CallFormat::QwenCoder,
        CallFormat::Llama,
        CallFormat::MistralList,
        CallFormat::Mistral,
        CallFormat::Harmony,
        CallFormat::DeepSeek,
        CallFormat::DeepSeekBare,
        CallFormat::Glm,
        CallFormat::Phi,
    ];
}

/// The markers around a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarkers {
    /// What opens it.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
}

/// How a thought ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThoughtEnds {
    /// What opens a thought.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
    /// What is written to close it in its midst.
    pub closing: String,
    /// Whether a thought may begin after other text.
    pub anywhere: bool,
}

const THOUGHTS: &[ThoughtMarkers] = &[
    ThoughtMarkers { open: "<think>", close: "</think>" },
    ThoughtMarkers { open: "[THINK]", close: "[/THINK]" },
    ThoughtMarkers { open: "<seed:think>", close: "</seed:think>" },
    ThoughtMarkers { open: "◁think▷", close: "◁/think▷" },
    ThoughtMarkers { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
];

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
        let calls = if has("<|channel|>") && has("<|message|>") {
            CallFormat::Harmony
        } else if has(deepseek::CALL) && !has("```json") {
            CallFormat::DeepSeekBare
        } else if has(deepseek::CALL) {
            CallFormat::DeepSeek
        } else if has(qwen_coder::FUNCTION) && has(qwen_coder::PARAMETER) {
            CallFormat::QwenCoder
        } else if has(glm::KEY) {
            CallFormat::Glm
        } else if has(hermes::OPEN) {
            CallFormat::Hermes
        } else if has(mistral::OPEN) && has(mistral::ARGUMENTS) {
            CallFormat::Mistral
        } else if has(mistral::OPEN) {
            CallFormat::MistralList
        } else if has(llama::PYTHON) || (has("<|start_header_id|>") && has("parameters")) {
            CallFormat::Llama
        } else if has(phi::OPEN) || has("<|tool|>") {
            CallFormat::Phi
        } else {
            CallFormat::Hermes
        };
        let thoughts = THOUGHTS.iter().find(|t| has(t.close)).copied();
        let thoughts = thoughts.filter(|_| calls != CallFormat::Harmony);
        Self { calls, thoughts }
    }

    /// Whether a rendered prompt has opened the thought already.
    pub fn opened_by(&self, prompt: &str) -> bool {
        match self.thoughts {
            Some(thoughts) => prompt.trim_end().ends_with(thoughts.open),
            None => self.calls == CallFormat::Harmony && prompt.ends_with(harmony::THOUGHT),
        }
    }

    /// The markers that the reader looks for in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let calls: &[&str] = match self.calls {
            CallFormat::Hermes => &[hermes::OPEN, hermes::CLOSE],
            CallFormat::QwenCoder => &[
                qwen_coder::OPEN,
                qwen_coder::CLOSE,
                qwen_coder::FUNCTION,
                qwen_coder::FUNCTION_END,
                qwen_coder::PARAMETER,
                qwen_coder::PARAMETER_END,
            ],
            CallFormat::Llama => &[llama::PYTHON],
            CallFormat::MistralList | CallFormat::Mistral => {
                &[mistral::OPEN, mistral::ARGUMENTS, mistral::ID]
            }
            CallFormat::Harmony => harmony::MARKERS,
            CallFormat::DeepSeek | CallFormat::DeepSeekBare => &[
                deepseek::OPEN,
                deepseek::CLOSE,
                deepseek::CALL,
                deepseek::CALL_END,
                deepseek::SEPARATOR,
            ],
            CallFormat::Glm => {
                &[glm::OPEN, glm::CLOSE, glm::KEY, glm::KEY_END, glm::VALUE, glm::VALUE_END]
            }
            CallFormat::Phi => &[phi::OPEN, phi::CLOSE],
        };
        let thoughts = self.thoughts.map(|t| [t.open, t.close]);
        calls.iter().copied().chain(thoughts.into_iter().flatten()).collect()
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
        if self.calls == CallFormat::Harmony {
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
        Some(lark.finish(&format!("{thought} (@form {calls})")))
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
            None => (self.calls == CallFormat::Harmony).then(|| harmony::thought_ends(tools)),
        }
    }

    fn thought(&self, lark: &mut Lark<'_>, opened: bool) -> String {
        self.thoughts.map_or_else(String::new, |t| lark.thought(t.open, t.close, opened))
    }

    /// The rule of calls. That of `Harmony` has the thought before them.
    fn calls(
        &self,
        lark_ref: &mut Lark<'_>,
        tools: &[ToolSpec],
        parallel: bool,
        opened: bool,
    ) -> String {
        match self.calls {
            CallFormat::Hermes => hermes::grammar(lark_ref, tools, parallel),
            CallFormat::QwenCoder => qwen_coder::grammar(lark_ref, tools, parallel),
            CallFormat::Llama => llama::grammar(lark_ref, tools, parallel),
            CallFormat::MistralList => mistral::list_grammar(lark_ref, tools, parallel),
            CallFormat::Mistral => mistral::grammar(lark_ref, tools, parallel),
            CallFormat::Harmony => harmony::grammar(lark_ref, tools, opened),
            CallFormat::DeepSeek => deepseek::grammar(lark_ref, tools, parallel, false),
            CallFormat::DeepSeekBare => deepseek::grammar(lark_ref, tools, parallel, true),
            CallFormat::Glm => glm::grammar(lark_ref, tools, parallel),
            CallFormat::Phi => phi::grammar(lark_ref, tools, parallel),
        }
    }
}
