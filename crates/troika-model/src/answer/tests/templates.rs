//! Formats found in what templates of each family say.

use serde::Deserialize;

use super::super::Format;
use super::{THINK, named};

/// What tells a published template from those of other families. Most are in the package of
/// llama.cpp.
#[derive(Deserialize)]
struct Template {
    template: String,
    calls: String,
    thoughts: Option<String>,
    excerpt: String,
}

#[test]
fn templates_show_their_format() {
    let templates: Vec<Template> =
        serde_json::from_str(include_str!("recorded/templates.json")).unwrap();
    for Template { template, calls, thoughts, excerpt } in templates {
        let format = Format::detect(Some(&excerpt));
        assert_eq!(format.calls.name, calls, "{template}");
        assert_eq!(format.thoughts.map(|t| t.open.to_owned()), thoughts, "{template}");
    }
    assert_eq!(Format::detect(None), Format { calls: named("hermes"), thoughts: None });
}

#[test]
fn templates_show_their_thoughts() {
    let thinks =
        Format::detect(Some("{%- set content = content.split('</think>')[-1] %}<tool_call>"));
    assert_eq!(thinks.thoughts, Some(THINK));
    assert!(thinks.opened_by("<|im_start|>assistant\n<think>\n"));
    assert!(!thinks.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert_eq!(thinks.markers(), ["<tool_call>", "</tool_call>", "<think>", "</think>"]);
    let mistral = Format::detect(Some("[TOOL_CALLS] [/THINK]"));
    assert_eq!(mistral.thoughts.unwrap().open, "[THINK]");
    let harmony = Format::detect(Some("<|channel|>analysis<|message|></think>"));
    assert_eq!((harmony.calls, harmony.thoughts), (named("harmony"), None));
    assert_eq!(Format::detect(Some("plain")).thoughts, None);
}
