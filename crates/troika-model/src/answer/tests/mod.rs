//! Texts in the form of each format, whole and cut at random.

mod cuts;
mod recorded;
mod templates;

use std::sync::Arc;

use serde_json::{Map, Value};

use super::output::append;
use super::{CallFormat, Delta, Format, Reader, ReaderOptions, ThoughtMarkers, ToolSpec};

/// Joins deltas that belong together, so that the result does not depend on how the text was cut.
fn merge(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
    let mut merged = Vec::new();
    deltas.into_iter().for_each(|delta| append(&mut merged, delta));
    merged
}

const THINK: ThoughtMarkers = ThoughtMarkers { open: "<think>", close: "</think>" };

fn named(calls: &str) -> &'static CallFormat {
    CallFormat::named(calls).unwrap()
}

fn format(calls: &'static CallFormat) -> Format {
    Format { calls, thoughts: (calls.name != "harmony").then_some(THINK) }
}

/// The tools of the texts.
fn tools() -> Arc<[ToolSpec]> {
    let tools: Map<String, Value> =
        serde_json::from_str(include_str!("recorded/tools.json")).unwrap();
    let tool = |(name, parameters)| ToolSpec { name, description: String::new(), parameters };
    tools.into_iter().map(tool).collect()
}

fn options() -> ReaderOptions {
    ReaderOptions { tools: tools(), reasoning: true, opened: false, whole_calls: false }
}

/// An answer put together.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

fn gather(deltas: Vec<Delta>) -> Answer {
    let mut answer = Answer::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => answer.content.push_str(&text),
            Delta::Reasoning(text) => answer.reasoning.push_str(&text),
            Delta::CallStart { index, name } => {
                assert_eq!(index, answer.calls.len());
                answer.calls.push((name, String::new()));
            }
            Delta::CallArguments { index, json } => {
                assert_eq!(index + 1, answer.calls.len());
                answer.calls[index].1.push_str(&json);
            }
        }
    }
    answer
}

/// All deltas of a text that comes in these pieces.
fn deltas<'a>(mut reader: Reader, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Delta> {
    let mut all = Vec::new();
    for piece in pieces {
        all.extend(reader.push(piece));
    }
    all.extend(reader.finish());
    merge(all)
}

fn read(format: Format, options: ReaderOptions, text: &str) -> Answer {
    gather(deltas(format.reader(options), [text]))
}

fn answer(content: &str, reasoning: &str, calls: &[(&str, &str)]) -> Answer {
    Answer {
        content: content.to_owned(),
        reasoning: reasoning.to_owned(),
        calls: calls.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect(),
    }
}
