//! What a call looks like in each format, and what shows the format in a chat template. Each format
//! is a file in `formats`.

use std::sync::LazyLock;

use serde::Deserialize;

/// What a file says of a format. What it does not say is empty.
///
/// In these texts, `NAME`, `KEY`, `VALUE`, `JSON` and `TYPE` stand for what a call has there, and
/// `№` for a number.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CallForm {
    /// What templates of the format have: all texts of one of these lists.
    pub(super) signs: Vec<Vec<String>>,
    pub(super) kind: Kind,
    /// What opens calls.
    pub(super) open: String,
    /// A call, or its head.
    pub(super) call: String,
    /// An argument, or its head.
    pub(super) argument: String,
    /// What ends a call.
    pub(super) end: String,
    /// What closes calls.
    pub(super) close: String,
    /// What is between calls that share their markers.
    pub(super) comma: String,
    /// What is between calls if each has markers of its own.
    pub(super) between: Option<String>,
    /// What is around strings in place of quotation marks.
    pub(super) quote: String,
    /// What the reader takes for the beginning of a call, if not what the form says.
    openers: Vec<String>,
    /// More markers.
    markers: Vec<String>,
    /// What may be around the text of an answer, and is no part of it.
    pub(super) frames: Vec<(String, String)>,
}

/// How a call is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// As a JSON object.
    Objects,
    /// As a name, a marker and JSON.
    Named,
    /// With arguments in tags.
    Tags,
    /// With literals as in Python or Gemma.
    Literals,
    /// As a module of the format says.
    #[default]
    Own,
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $file:literal,)*) => {
        /// How a model writes calls. A template has the first format that it has the signs of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CallFormat {
            $($(#[$doc])* $name,)*
        }

        const FILES: &[&str] = &[$(include_str!(concat!("formats/", $file, ".json"))),*];

        impl CallFormat {
            /// All of them.
            pub const ALL: [CallFormat; FILES.len()] = [$(CallFormat::$name),*];
        }
    };
}

formats! {
    /// gpt-oss: messages to `functions.name` in a channel.
    Harmony = "harmony",
    /// DeepSeek V3 and R1, with fenced arguments.
    DeepSeek = "deepseek",
    /// DeepSeek V3.1, with bare arguments.
    DeepSeekBare = "deepseek_bare",
    /// DeepSeek V3.2: `<｜DSML｜function_calls>` with the arguments in tags.
    DeepSeek32 = "deepseek_v3_2",
    /// DeepSeek V4: `<｜DSML｜tool_calls>`.
    DeepSeek4 = "deepseek_v4",
    /// Kimi K3: arguments in tags of `<|open|>`, `<|close|>` and `<|sep|>`.
    KimiK3 = "kimi_k3",
    /// Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}`.
    Kimi = "kimi_k2",
    /// Solar Open: `<|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{..}`.
    Solar = "solar_open",
    /// Seed-OSS: `<seed:tool_call><function=name><parameter=key>value</parameter>`.
    Seed = "seed_oss",
    /// MiniMax M2: `<minimax:tool_call><invoke name="name"><parameter
    /// name="key">value</parameter>`.
    MiniMax = "minimax_m2",
    /// MiniCPM 5: `<function name="name"><param name="key">value</param></function>`.
    MiniCpm = "minicpm5",
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
    QwenCoder = "qwen_coder",
    /// Functionary 3.1: `<function=name>{..}</function>`.
    Functionary = "functionary",
    /// Hunyuan 3: as GLM, with other tags.
    Hunyuan3 = "hunyuan_3",
    /// GLM: `<tool_call>name <arg_key>key</arg_key> <arg_value>value</arg_value></tool_call>`.
    Glm = "glm",
    /// The same without new lines: GLM-4.7, Laguna.
    GlmTight = "glm_4_7",
    /// Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`.
    Gemma = "gemma_4",
    /// FunctionGemma: the same with other markers.
    FunctionGemma = "function_gemma",
    /// LFM2: `<|tool_call_start|>[name(key="value")]<|tool_call_end|>`.
    Lfm2 = "lfm2",
    /// OLMo 3: `<function_calls>name(key="value")</function_calls>`.
    Olmo3 = "olmo_3",
    /// Apertus: `<|tools_prefix|>[{"name": {..}}]<|tools_suffix|>`.
    Apertus = "apertus",
    /// Command R7B and later: `<|START_ACTION|>[{"tool_name": .., "parameters": {..}}]`.
    Cohere = "cohere",
    /// Command R+: the same in a fence behind `Action:`.
    CommandR = "command_r",
    /// Nemotron Nano 2: `<TOOLCALL>[{"name": .., "arguments": {..}}]</TOOLCALL>`.
    Nemotron = "nemotron_2",
    /// MiniMax M1: `<tool_calls>` with an object on each line.
    MiniMaxM1 = "minimax_m1",
    /// Hunyuan, Apriel: `<tool_calls>[{"name": .., "arguments": {..}}]</tool_calls>`.
    ToolCalls = "tool_calls",
    /// GigaChat 3.1: `<|function_call|>{"name": .., "arguments": {..}}`.
    GigaChat31 = "gigachat_3_1",
    /// GigaChat 3: an object in a message of the role `function call`.
    GigaChat = "gigachat_3",
    /// InternLM2: `<|action_start|><|plugin|>{"name": .., "parameters": {..}}`.
    InternLm = "internlm2",
    /// FireFunction: ` functools[{"name": .., "arguments": {..}}]`.
    FireFunction = "firefunction",
    /// ERNIE 4.5: as Hermes, with `<response>` around text.
    Ernie = "ernie_4_5",
    /// Mistral since 2025: `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral = "mistral",
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`.
    MistralList = "mistral_list",
    /// Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. Also where a
    /// template names none.
    Hermes = "hermes",
    /// `[name(key="value")]` at the beginning: Llama 4, Gemma 3.
    Python = "python",
    /// Llama 3: `{"name": .., "parameters": {..}}`.
    Llama = "llama",
    /// `<|tool_call|>[{"name": .., "arguments": {..}}]<|/tool_call|>`.
    Phi = "phi",
    /// Granite 3: `<|tool_call|>[{"name": .., "arguments": {..}}]`.
    Granite = "granite_3",
}

// Tests read every file.
static FORMS: LazyLock<Vec<CallForm>> = LazyLock::new(|| {
    FILES.iter().map(|file| serde_json::from_str(file).unwrap_or_default()).collect()
});

impl CallFormat {
    /// What its calls look like.
    pub(super) fn form(self) -> &'static CallForm {
        &FORMS[self as usize]
    }

    /// The format that a template shows.
    pub(super) fn shown_by(template: &str) -> Self {
        let has = |signs: &Vec<String>| signs.iter().all(|sign| template.contains(sign));
        let shown = Self::ALL.into_iter().find(|calls| calls.form().signs.iter().any(has));
        shown.unwrap_or(Self::Hermes)
    }
}

impl CallForm {
    /// The beginning of a call, as the reader looks for it.
    pub(super) fn head(&'static self) -> &'static str {
        let (head, _) = self.call.split_once("NAME").unwrap_or_default();
        match self.kind {
            Kind::Named => head.find('>').map_or(head, |at| &head[..=at]),
            _ => head,
        }
    }

    /// What the reader takes for the beginning of calls.
    pub(super) fn openers(&'static self) -> Vec<&'static str> {
        if !self.openers.is_empty() || self.kind == Kind::Own {
            return self.openers.iter().map(String::as_str).collect();
        }
        let open = self.open.trim_end_matches(|c: char| c == '[' || c.is_whitespace());
        vec![match (open, self.open.as_str()) {
            ("", "") => self.head(),
            ("", list) => list,
            (open, _) => open,
        }]
    }

    /// The marker behind calls.
    pub(super) fn closer(&'static self) -> &'static str {
        self.close.trim_start_matches(|c: char| c == ']' || c.is_whitespace())
    }

    /// The markers in answers.
    pub(super) fn markers(&'static self) -> Vec<&'static str> {
        let frames = self.frames.iter().flat_map(|(open, close)| [open, close]);
        let texts = [&self.open, &self.call, &self.argument, &self.end, &self.close, &self.quote];
        let tags = texts.into_iter().chain(frames).flat_map(|text| tags_in(text));
        self.markers.iter().map(String::as_str).chain(tags).collect()
    }
}

/// The tags in a text that stand by themselves.
pub(super) fn tags_in(text: &'static str) -> impl Iterator<Item = &'static str> {
    let tag = |(at, _): (usize, &str)| Some(&text[at..=at + text[at..].find('>')?]);
    text.match_indices('<').filter_map(tag).filter(|tag| !tag.contains('='))
}
