//! The markers around thoughts.

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

const fn thought(open: &'static str, close: &'static str) -> ThoughtMarkers {
    ThoughtMarkers { open, close }
}

/// The markers of thoughts, with what a template has of them.
pub(super) const THOUGHTS: &[(&str, ThoughtMarkers)] = &[
    ("<|open|>", thought("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
    ("</think{}>", thought("<think:opensource>", "</think:opensource>")),
    ("</think>", thought("<think>", "</think>")),
    ("[/THINK]", thought("[THINK]", "[/THINK]")),
    ("</seed:think>", thought("<seed:think>", "</seed:think>")),
    ("◁/think▷", thought("◁think▷", "◁/think▷")),
    ("<|END_THINKING|>", thought("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<channel|>", thought("<|channel>thought", "<channel|>")),
    ("<|inner_suffix|>", thought("<|inner_prefix|>", "<|inner_suffix|>")),
    ("assistant<|think|>", thought("<|think|>", "<|end|>")),
    ("</mm:think>", thought("<mm:think>", "</mm:think>")),
    ("</thought>", thought("<thought>", "</thought>")),
    ("[BEGIN FINAL RESPONSE]", thought("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")),
];
