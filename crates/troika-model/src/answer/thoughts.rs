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

/// What a template has of the markers of thoughts, and these.
pub(super) const THOUGHTS: &[[&str; 3]] = &[
    ["<|open|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>"],
    ["</think{}>", "<think:opensource>", "</think:opensource>"],
    ["</think>", "<think>", "</think>"],
    ["[/THINK]", "[THINK]", "[/THINK]"],
    ["</seed:think>", "<seed:think>", "</seed:think>"],
    ["◁/think▷", "◁think▷", "◁/think▷"],
    ["<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"],
    ["<channel|>", "<|channel>thought", "<channel|>"],
    ["<|inner_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"],
    ["assistant<|think|>", "<|think|>", "<|end|>"],
    ["</mm:think>", "<mm:think>", "</mm:think>"],
    ["</thought>", "<thought>", "</thought>"],
    ["[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"],
];
