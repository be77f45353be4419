//! Where the text is cut changes nothing, and no text is lost.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::{CallFormat, Delta, ReaderOptions};
use super::{deltas, format, options};

/// What answers are made of: markers, their beginnings, calls, broken ones, and text.
const PIECES: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "<function=get_weather>",
    "<function=",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "get_time",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[",
    "]",
    "<|python_tag|>",
    ";",
    "<|channel|>",
    "analysis",
    "commentary",
    "final",
    "<|message|>",
    " to=functions.get_time ",
    "<|constrain|>json",
    "<|end|>",
    "<|start|>",
    "assistant",
    "<|call|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "function",
    "```json",
    "```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "{",
    "}",
    "{\"name\": \"get_time\", \"arguments\": {\"a\": [1, \"}é\\\"\"]}}",
    "{\"a\": 1}",
    "\"name\"",
    "{\"name\": \"get_time\", \"parameters\": {}}",
    ",",
    ":",
    "\"",
    "\n",
    "\n\n",
    " ",
    "<",
    "<|",
    "日本",
    "text",
    "1",
];

fn pieces() -> impl Strategy<Value = String> {
    vec(select(PIECES), 0..14).prop_map(|pieces| pieces.concat())
}

/// Pieces of the text, cut at these places.
fn cut<'a>(text: &'a str, cuts: &[Index]) -> Vec<&'a str> {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let mut at: Vec<usize> = match places.is_empty() {
        true => Vec::new(),
        false => cuts.iter().map(|cut| *cut.get(&places)).collect(),
    };
    at.push(0);
    at.push(text.len());
    at.sort_unstable();
    at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Whether `part` can be had from `whole` by leaving characters out.
fn within(part: &str, whole: &str) -> bool {
    let mut rest = whole.chars();
    part.chars().all(|c| rest.any(|other| other == c))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cuts_change_nothing(
        text in pieces(),
        cuts in vec(any::<Index>(), 0..12),
        calls in select(CallFormat::ALL.to_vec()),
        opened in any::<bool>(),
        whole_calls in any::<bool>(),
        reasoning in any::<bool>(),
    ) {
        let options = ReaderOptions { opened, whole_calls, reasoning, ..options() };
        let reader = || format(calls).reader(options.clone());
        let at_once = deltas(reader(), [text.as_str()]);
        prop_assert_eq!(&at_once, &deltas(reader(), cut(&text, &cuts)));
    }

    #[test]
    fn no_text_is_lost(words in vec(select(&["a", "<", "[", "{", "\n", "b>", "日", "|"][..]), 0..30), calls in select(CallFormat::ALL.to_vec())) {
        let text = words.concat();
        let all = deltas(format(calls).reader(options()), [text.as_str()]);
        let expected = if text.is_empty() { vec![] } else { vec![Delta::Content(text)] };
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn nothing_is_invented(text in pieces(), calls in select(CallFormat::ALL.to_vec()), whole_calls in any::<bool>()) {
        let options = ReaderOptions { whole_calls, ..options() };
        for delta in deltas(format(calls).reader(options), [text.as_str()]) {
            match delta {
                Delta::Content(part) | Delta::Reasoning(part) => prop_assert!(within(&part, &text), "{}", part),
                Delta::CallStart { name, .. } => prop_assert!(text.contains(&name)),
                Delta::CallArguments { .. } => {}
            }
        }
    }

    #[test]
    fn whole_calls_are_json_objects(text in pieces(), calls in select(CallFormat::ALL.to_vec())) {
        let options = ReaderOptions { whole_calls: true, ..options() };
        let all = super::gather(deltas(format(calls).reader(options), [text.as_str()]));
        for (_, json) in all.calls {
            let value = serde_json::from_str::<serde_json::Value>(&json);
            prop_assert!(value.is_ok_and(|v| v.is_object()), "{}", json);
        }
    }
}
