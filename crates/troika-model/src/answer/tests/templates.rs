//! Formats found in what templates of each family say.

use super::super::{CallFormat, Format};
use super::THINK;

#[test]
fn templates_show_their_format() {
    // A line of each family's published template, with what tells it from the others.
    let cases = [
        ("{%- for message in messages %}{{ message.content }}{% endfor %}", CallFormat::Hermes),
        ("{{- '\\n<tool_call>\\n{\"name\": \"' }}{{- '</tool_call>' }}", CallFormat::Hermes),
        (
            "<tool_call>\n<function=example_function_name>\n<parameter=example>",
            CallFormat::QwenCoder,
        ),
        ("{{- '<|start_header_id|>assistant' }}{{- '\"parameters\": ' }}", CallFormat::Llama),
        ("{{- \"<|python_tag|>\" + tool_call.name + \".call(\" }}", CallFormat::Llama),
        ("{{- \"[TOOL_CALLS] [\" }}{{- out }}", CallFormat::MistralList),
        ("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", CallFormat::Mistral),
        ("<|start|>assistant<|channel|>final<|message|>", CallFormat::Harmony),
        ("'<｜tool▁call▁begin｜>' + tool['type'] + '\\n' + '```json'", CallFormat::DeepSeek),
        (
            "'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'",
            CallFormat::DeepSeekBare,
        ),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", CallFormat::Glm),
        ("'<|tool|>' + message['tools'] + '<|/tool|>'", CallFormat::Phi),
    ];
    for (template, calls) in cases {
        assert_eq!(Format::detect(Some(template)).calls, calls, "{template}");
    }
    assert_eq!(Format::detect(None), Format { calls: CallFormat::Hermes, thoughts: None });
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
    assert_eq!((harmony.calls, harmony.thoughts), (CallFormat::Harmony, None));
    assert_eq!(Format::detect(Some("plain")).thoughts, None);
}
