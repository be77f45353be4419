//! Texts written after what the published templates and documents of each format say.

use super::{
    Answer, CallFormat, Format, ReaderOptions, ThoughtMarkers, answer, format, options, read,
};

fn check(calls: CallFormat, text: &str, expected: &Answer) {
    assert_eq!(&read(format(calls), options(), text), expected, "{text}");
    let whole = ReaderOptions { whole_calls: true, ..options() };
    assert_eq!(&read(format(calls), whole, text), expected, "whole calls: {text}");
}

/// chat_template.jinja of Qwen/Qwen3-8B and NousResearch/Hermes-3-Llama-3.1-8B.
#[test]
fn hermes() {
    let text = "<think>\nThe user asks for \"two\" cities.\n</think>\n\nLet me look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"HB\\\" 日本\", \"filter\": {\"tags\": [\"a}\", \"{b\"]}}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let weather =
        "{\"city\": \"Zürich \\\"HB\\\" 日本\", \"filter\": {\"tags\": [\"a}\", \"{b\"]}}";
    let expected = answer(
        "Let me look.",
        "The user asks for \"two\" cities.",
        &[("get_weather", weather), ("get_time", "{}")],
    );
    check(CallFormat::Hermes, text, &expected);
    let swapped = "<tool_call>{\"arguments\": {\"city\": \"Rom\"}, \"id\": 7, \"name\": \"get_weather\"}</tool_call> Done.";
    let expected = answer(" Done.", "", &[("get_weather", "{\"city\": \"Rom\"}")]);
    check(CallFormat::Hermes, swapped, &expected);
    let fenced = "```\n<tool_call>\n{\"name\": \"get_time\"}\n</tool_call>\n```";
    check(CallFormat::Hermes, fenced, &answer("``````", "", &[("get_time", "{}")]));
    let unclosed = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}";
    check(CallFormat::Hermes, unclosed, &answer("", "", &[("get_time", "{}")]));
}

/// chat_template.jinja of Qwen/Qwen3-Coder-30B-A3B-Instruct.
#[test]
fn qwen_coder() {
    let text = "I'll check.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nLine 1\n<b>\"x\"</b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n<parameter=filter>\n{\"tags\": [\"é\"]}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    let weather = "{\"city\": \"Line 1\\n<b>\\\"x\\\"</b>\", \"days\": 3, \"hourly\": true, \"filter\": {\"tags\": [\"é\"]}}";
    let expected = answer("I'll check.", "", &[("get_weather", weather), ("get_time", "{}")]);
    check(CallFormat::QwenCoder, text, &expected);
    // The first marker is forgotten. A number stays text where the tool wants text.
    let text = "<function=get_weather>\n<parameter=city>\n8001\n</parameter>\n<parameter=other>\n[1]\n</parameter>\n</function>\n</tool_call>";
    let expected = answer("", "", &[("get_weather", "{\"city\": \"8001\", \"other\": [1]}")]);
    check(CallFormat::QwenCoder, text, &expected);
}

/// "JSON based tool calling" of the model card of Llama 3.1, and the template of Llama-3.2-3B.
#[test]
fn llama() {
    let call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"San Francisco\"}}";
    let parameters = "{\"city\": \"San Francisco\"}";
    check(CallFormat::Llama, call, &answer("", "", &[("get_weather", parameters)]));
    let several = format!("<|python_tag|>{call}; {{\"name\": \"get_time\", \"parameters\": {{}}}}");
    let expected = answer("", "", &[("get_weather", parameters), ("get_time", "{}")]);
    check(CallFormat::Llama, &several, &expected);
    // JSON that is not a call, or not at the beginning.
    for text in ["{\"name\": \"Ada\", \"age\": 36}", "{\"name\": \"get_time\"}", "So: {}", "{ x"] {
        check(CallFormat::Llama, text, &answer(text, "", &[]));
    }
    let later = format!("Like this: {call}");
    check(CallFormat::Llama, &later, &answer(&later, "", &[]));
}

/// Mistral-7B-Instruct-v0.3, and the tokenizer v13 of Magistral and Devstral in mistral-common.
#[test]
fn mistral() {
    let list = "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"VvvODy9mT\"}, {\"name\": \"get_time\", \"arguments\": {}}]";
    let expected = answer("", "", &[("get_weather", "{\"city\": \"Paris\"}"), ("get_time", "{}")]);
    check(CallFormat::MistralList, list, &expected);
    let named =
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]get_time[CALL_ID]q1[ARGS]{}";
    check(CallFormat::Mistral, named, &expected);
    let bare = "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}[TOOL_CALLS]get_time{}";
    check(CallFormat::Mistral, bare, &expected);
    let magistral = Format {
        calls: CallFormat::Mistral,
        thoughts: Some(ThoughtMarkers { open: "[THINK]", close: "[/THINK]" }),
    };
    let text = "[THINK]Hm [1].[/THINK]Yes [TOOL].";
    assert_eq!(read(magistral, options(), text), answer("Yes [TOOL].", "Hm [1].", &[]));
}

/// "OpenAI harmony response format", in the repository openai/harmony.
#[test]
fn harmony() {
    let text = "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"San \\\"Fran\\\"\"}<|call|>";
    let expected = answer(
        "Let me see.",
        "Need to use function get_weather.",
        &[("get_weather", "{\"city\":\"San \\\"Fran\\\"\"}")],
    );
    check(CallFormat::Harmony, text, &expected);
    let text = "<|channel|>analysis<|message|>2 < 3<|end|><|start|>assistant<|channel|>final<|message|>It is <|so|>.<|return|>";
    check(CallFormat::Harmony, text, &answer("It is <|so|>.", "2 < 3", &[]));
    // The recipient stands before the channel.
    let text =
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>";
    check(CallFormat::Harmony, text, &answer("", "", &[("get_time", "{}")]));
    let opened = ReaderOptions { opened: true, ..options() };
    let text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    assert_eq!(read(format(CallFormat::Harmony), opened, text), answer("Yes.", "Hm.", &[]));
    check(CallFormat::Harmony, "No channels.", &answer("No channels.", "", &[]));
}

/// tokenizer_config.json of deepseek-ai/DeepSeek-R1 and DeepSeek-V3.1.
#[test]
fn deepseek() {
    let text = "<think>\nA tool.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Tokyo 東京\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let calls = [("get_weather", "{\"city\": \"Tokyo 東京\"}"), ("get_time", "{}")];
    check(CallFormat::DeepSeek, text, &answer("", "A tool.", &calls));
    let text = "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Tokyo 東京\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(CallFormat::DeepSeekBare, text, &answer("Sure.", "", &calls));
}

/// chat_template.jinja of zai-org/GLM-4.5.
#[test]
fn glm() {
    let text = "<think>Two.</think>\nOk\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln \"a\"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>";
    let calls =
        [("get_weather", "{\"city\": \"Köln \\\"a\\\"\", \"days\": 2}"), ("get_time", "{}")];
    check(CallFormat::Glm, text, &answer("Ok", "Two.", &calls));
}

/// The model card of microsoft/Phi-4-mini-instruct.
#[test]
fn phi() {
    let text = "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}, {\"name\": \"get_time\", \"arguments\": {}}]<|/tool_call|>";
    let calls = [("get_weather", "{\"city\": \"Bern\"}"), ("get_time", "{}")];
    check(CallFormat::Phi, text, &answer("", "", &calls));
}

#[test]
fn what_is_no_call_comes_out_as_it_is() {
    let texts = [
        (CallFormat::Hermes, "a < b <tool <tool_call>"),
        (CallFormat::Hermes, "\n<tool_call>\n{\"name\": oops}\n</tool_call>\n"),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"get_time\""),
        (CallFormat::Hermes, "<tool_call>{}</tool_call>"),
        (CallFormat::Hermes, "<tool_call>{\"arguments\": [1], \"name\": \"x\"}</tool_call>"),
        (CallFormat::QwenCoder, "<tool_call>\nno function</tool_call> <function=a b\n>"),
        (CallFormat::Mistral, "[TOOL_CALLS]no arguments {}"),
        (CallFormat::MistralList, "[TOOL_CALLS][]"),
        (CallFormat::DeepSeek, "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
        (
            CallFormat::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>x",
        ),
        (CallFormat::Glm, "<tool_call>two words\n</tool_call>"),
        (CallFormat::Glm, "<tool_call>{\"name\": \"x\"}</tool_call>"),
        (CallFormat::Phi, "<|tool_call|>{}<|/tool_call|>"),
        (CallFormat::Harmony, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>x"),
        (CallFormat::Harmony, "<|channel|>anal"),
    ];
    for (calls, text) in texts {
        check(calls, text, &answer(text, "", &[]));
    }
    let inside = "<tool_call>junk <tool_call>{\"name\": \"get_time\"}</tool_call>";
    check(CallFormat::Hermes, inside, &answer("<tool_call>junk ", "", &[("get_time", "{}")]));
}

#[test]
fn a_broken_call_is_content_only_if_nothing_is_handed_out() {
    let text =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": oops}}\n</tool_call>";
    let expected = answer("oops}}\n</tool_call>", "", &[("get_weather", "{\"city\": ")]);
    assert_eq!(read(format(CallFormat::Hermes), options(), text), expected);
    let whole = || ReaderOptions { whole_calls: true, ..options() };
    assert_eq!(read(format(CallFormat::Hermes), whole(), text), answer(text, "", &[]));
    let cut = "Hi\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lon";
    let expected = answer("Hi", "", &[("get_weather", "{\"city\": \"Lon")]);
    assert_eq!(read(format(CallFormat::Hermes), options(), cut), expected);
    assert_eq!(read(format(CallFormat::Hermes), whole(), cut), answer(cut, "", &[]));
    let cut = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLon";
    let expected = answer("", "", &[("get_weather", "{\"city\": \"Lon")]);
    assert_eq!(read(format(CallFormat::QwenCoder), options(), cut), expected);
    assert_eq!(read(format(CallFormat::QwenCoder), whole(), cut), answer(cut, "", &[]));
}

#[test]
fn options_say_what_is_split() {
    let hermes = format(CallFormat::Hermes);
    let text = "<think>\nA\n</think>\n\n<tool_call>{\"name\": \"get_time\"}</tool_call>\n";
    let plain = ReaderOptions { tools: [].into(), reasoning: false, ..options() };
    assert_eq!(read(hermes, plain, text), answer(text, "", &[]));
    let thoughts = ReaderOptions { tools: [].into(), ..options() };
    let rest = "<tool_call>{\"name\": \"get_time\"}</tool_call>\n";
    assert_eq!(read(hermes, thoughts, text), answer(rest, "A", &[]));
    let calls = ReaderOptions { reasoning: false, ..options() };
    let thought = "<think>\nA\n</think>";
    assert_eq!(read(hermes, calls, text), answer(thought, "", &[("get_time", "{}")]));
    let late = read(hermes, options(), " <think>A</think>B");
    assert_eq!(late, answer(" B", "A", &[]));
    let opened = ReaderOptions { opened: true, ..options() };
    let text = "<think>\nIn a <think> <tool_call>\n\nB\n</think>\n\nC <think>\n";
    let expected = answer("C <think>\n", "In a <think> <tool_call>\n\nB", &[]);
    assert_eq!(read(hermes, opened, text), expected);
}
