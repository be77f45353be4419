//! Texts written after what the published templates, documents and other programs' tests say of each
//! format. `recorded/calls.json` names the source of each.

use serde::Deserialize;

use super::super::thoughts::{THOUGHTS, ThoughtMarkers};
use super::{
    Answer, CallFormat, Format, ReaderOptions, answer, deltas, format, named, options, read,
};

fn check(calls: &'static CallFormat, text: &str, expected: &Answer) {
    assert_eq!(&read(format(calls), options(), text), expected, "{text}");
    let whole = ReaderOptions { whole_calls: true, ..options() };
    assert_eq!(&read(format(calls), whole, text), expected, "whole calls: {text}");
}

#[derive(Deserialize)]
struct Recorded {
    format: String,
    text: String,
    opened: bool,
    thoughts: Option<String>,
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

fn recorded() -> Vec<(Format, Recorded)> {
    let texts: Vec<Recorded> = serde_json::from_str(include_str!("recorded/calls.json")).unwrap();
    let format = |text: &Recorded| {
        let opens = |open: &String| {
            let &[_, open, close] = THOUGHTS.iter().find(|[_, opens, _]| opens == open).unwrap();
            ThoughtMarkers { open, close }
        };
        Format { calls: named(&text.format), thoughts: text.thoughts.as_ref().map(opens) }
    };
    texts.into_iter().map(|text| (format(&text), text)).collect()
}

#[test]
fn recorded_texts_are_read() {
    for (format, text) in recorded() {
        for whole_calls in [false, true] {
            let options = ReaderOptions { opened: text.opened, whole_calls, ..options() };
            let found = read(format, options.clone(), &text.text);
            let wanted: Vec<_> = text.calls.iter().map(|(n, a)| (n.as_str(), a.as_str())).collect();
            let wanted = answer(&text.content, &text.reasoning, &wanted);
            assert_eq!(found, wanted, "{}: {}", format.calls.name, text.text);
            // Cut everywhere.
            let reader = || format.reader(options.clone());
            let pieces = text.text.split_inclusive(|_| true);
            assert_eq!(deltas(reader(), pieces), deltas(reader(), [text.text.as_str()]));
        }
    }
    for calls in CallFormat::all() {
        let called =
            |(format, text): &(Format, Recorded)| format.calls == calls && !text.calls.is_empty();
        assert!(recorded().iter().any(called), "{}", calls.name);
    }
}

/// Text is held only while it can still be a call.
#[test]
fn calls_without_markers_hold_back_no_other_text() {
    let held = [
        "{",
        " \n",
        "{\"na",
        "``",
        "```json\n",
        "[{",
        "{\"name\": \"get_time\", \"arguments\": {}} \n",
    ];
    let streamed = [
        "T",
        "{\"title\"",
        "{1",
        "[1",
        "```p",
        "{\"name\": \"Ada\"",
        "{\"name\": \"get_time\", \"id\"",
    ];
    for (texts, is_held) in [(&held[..], true), (&streamed[..], false)] {
        for text in texts {
            let mut reader = format(named("hermes")).reader(options());
            assert_eq!(reader.push(text).is_empty(), is_held, "{text}");
        }
    }
    let none = ReaderOptions { tools: [].into(), ..options() };
    let mut reader = format(named("hermes")).reader(none);
    assert_eq!(reader.push("{\"na").len(), 1);
}

#[test]
fn what_is_no_call_comes_out_as_it_is() {
    let texts = [
        (named("hermes"), "a < b <tool <tool_call>"),
        (named("hermes"), "\n<tool_call>\n{\"name\": oops}\n</tool_call>\n"),
        (named("hermes"), "<tool_call>{\"name\": \"get_time\""),
        (named("hermes"), "<tool_call>{}</tool_call>"),
        (named("hermes"), "<tool_call>{\"arguments\": [1], \"name\": \"x\"}</tool_call>"),
        (named("qwen_coder"), "<tool_call>\nno function</tool_call> <function=a b\n>"),
        (named("mistral"), "[TOOL_CALLS]no arguments {}"),
        (named("mistral_list"), "[TOOL_CALLS][]"),
        (named("deepseek"), "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
        (named("deepseek"), "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>x"),
        (named("glm"), "<tool_call>two words\n</tool_call>"),
        (named("glm"), "<tool_call>{\"name\": \"x\"}</tool_call>"),
        (named("phi"), "<|tool_call|>{}<|/tool_call|>"),
        (named("harmony"), "<|channel|>commentary to=functions.f <|constrain|>json<|message|>x"),
        (named("harmony"), "<|channel|>anal"),
    ];
    for (calls, text) in texts {
        check(calls, text, &answer(text, "", &[]));
    }
    let inside = "<tool_call>junk <tool_call>{\"name\": \"get_time\"}</tool_call>";
    check(named("hermes"), inside, &answer("<tool_call>junk ", "", &[("get_time", "{}")]));
}

#[test]
fn a_broken_call_is_content_only_if_nothing_is_handed_out() {
    let text =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": oops}}\n</tool_call>";
    let expected = answer("oops}}\n</tool_call>", "", &[("get_weather", "{\"city\": ")]);
    assert_eq!(read(format(named("hermes")), options(), text), expected);
    let whole = || ReaderOptions { whole_calls: true, ..options() };
    assert_eq!(read(format(named("hermes")), whole(), text), answer(text, "", &[]));
    let cut = "Hi\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lon";
    let expected = answer("Hi", "", &[("get_weather", "{\"city\": \"Lon")]);
    assert_eq!(read(format(named("hermes")), options(), cut), expected);
    assert_eq!(read(format(named("hermes")), whole(), cut), answer(cut, "", &[]));
    let cut = "<tool_call>\n<function=get_weather>\n<parameter=city>\nLon";
    let expected = answer("", "", &[("get_weather", "{\"city\": \"Lon")]);
    assert_eq!(read(format(named("qwen_coder")), options(), cut), expected);
    assert_eq!(read(format(named("qwen_coder")), whole(), cut), answer(cut, "", &[]));
}

#[test]
fn options_say_what_is_split() {
    let hermes = format(named("hermes"));
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
