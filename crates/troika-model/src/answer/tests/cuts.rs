//! Where the text is cut changes nothing, and no text is lost.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::{CallFormat, Delta, ReaderOptions};
use super::{deltas, format, options};

/// What answers are made of: markers, their beginnings, calls, broken ones, and text.
const PIECES: &[&str] = &[
    "<tool_",
    "<function=get_weather>",
    "<function=",
    "<parameter=city>",
    "<invoke name=\"get_weather\">",
    "<parameter name=\"city\">",
    "get_time",
    "(",
    ")",
    "city",
    "=",
    "'a'",
    "[CALL_ID]",
    "[",
    "]",
    ";",
    "analysis",
    "commentary",
    " to=functions.get_time ",
    "assistant",
    "call:get_time{",
    "function",
    "```json",
    "```",
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

fn formats() -> impl Strategy<Value = &'static CallFormat> {
    select(CallFormat::all().iter().collect::<Vec<_>>())
}

/// A format with a text of these pieces, its markers among them.
fn pieces() -> impl Strategy<Value = (&'static CallFormat, String)> {
    let all =
        |calls: &'static CallFormat| [PIECES, &format(calls).markers(), &calls.openers()].concat();
    let text = move |calls| (Just(calls), vec(select(all(calls)), 0..14));
    let calls = formats().prop_flat_map(text);
    calls.prop_map(|(calls, pieces)| (calls, pieces.concat()))
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
        (calls, text) in pieces(),
        cuts in vec(any::<Index>(), 0..12),
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
    fn no_text_is_lost(words in vec(select(&["a", "<", "[", "{", "\n", "b>", "日", "|"][..]), 0..30), calls in formats()) {
        let text = words.concat();
        let all = deltas(format(calls).reader(options()), [text.as_str()]);
        let expected = if text.is_empty() { vec![] } else { vec![Delta::Content(text)] };
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn nothing_is_invented((calls, text) in pieces(), whole_calls in any::<bool>()) {
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
    fn whole_calls_are_json_objects((calls, text) in pieces()) {
        let options = ReaderOptions { whole_calls: true, ..options() };
        let all = super::gather(deltas(format(calls).reader(options), [text.as_str()]));
        for (_, json) in all.calls {
            let value = serde_json::from_str::<serde_json::Value>(&json);
            prop_assert!(value.is_ok_and(|v| v.is_object()), "{}", json);
        }
    }
}
