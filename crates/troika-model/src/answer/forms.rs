//! What a call looks like in each format, and what shows the format in a chat template. Each format
//! is a file in `formats`.

use std::sync::LazyLock;

use serde::Deserialize;

/// How a model writes calls: what a file says of it. What it does not say is empty. The models of
/// each are in `docs/server.md`.
///
/// In these texts, `NAME`, `KEY`, `VALUE`, `JSON` and `TYPE` stand for what a call has there, and
/// `№` for a number.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallFormat {
    /// The name of the file.
    #[serde(skip)]
    pub name: &'static str,
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
    /// Whether thoughts may begin after other text.
    pub(super) thinks_anywhere: bool,
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
    /// As messages in channels.
    #[default]
    Harmony,
}

macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("formats/", $name, ".json")))),*] };
}

// Tests read every file.
static FORMATS: LazyLock<Vec<CallFormat>> = LazyLock::new(|| {
    let files = files! {
        "harmony" "deepseek" "deepseek_bare" "deepseek_v3_2" "deepseek_v4" "kimi_k3" "kimi_k2"
        "solar_open" "seed_oss" "minimax_m2" "minicpm5" "qwen_coder" "functionary" "hunyuan_3"
        "glm" "glm_4_7" "gemma_4" "function_gemma" "lfm2" "olmo_3" "apertus" "cohere"
        "command_r" "nemotron_2" "minimax_m1" "tool_calls" "gigachat_3_1" "gigachat_3"
        "internlm2" "firefunction" "ernie_4_5" "mistral" "mistral_list" "hermes" "python"
        "llama" "phi" "granite_3"
    };
    let format =
        |(name, file)| CallFormat { name, ..serde_json::from_str(file).unwrap_or_default() };
    files.into_iter().map(format).collect()
});

impl CallFormat {
    /// All of them. A template has the first that it has the signs of.
    pub fn all() -> &'static [CallFormat] {
        &FORMATS
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<&'static CallFormat> {
        Self::all().iter().find(|format| format.name == name)
    }

    /// The format that a template shows: that of Hermes and Qwen if it shows none.
    pub(super) fn shown_by(template: &str) -> &'static Self {
        let has = |signs: &Vec<String>| signs.iter().all(|sign| template.contains(sign));
        let shown = Self::all().iter().find(|format| format.signs.iter().any(has));
        shown.or_else(|| Self::named("hermes")).unwrap_or(&FORMATS[0])
    }

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
        if !self.openers.is_empty() || self.kind == Kind::Harmony {
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
