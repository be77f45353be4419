//! Whatever the grammar of a format lets through, its reader takes for calls.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use troika::model::answer::{CallFormat, Delta, Format, ReaderOptions, ThoughtMarkers, ToolSpec};

use super::super::{Constrain, HeldSchema, Vocabulary};
use super::EOS;

fn hermes() -> &'static CallFormat {
    CallFormat::named("hermes").unwrap()
}

fn format(calls: &'static CallFormat) -> Format {
    let thoughts = ThoughtMarkers { open: "<think>", close: "</think>" };
    Format { calls, thoughts: (calls.name != "harmony").then_some(thoughts) }
}

fn tool(name: &str, parameters: Value) -> ToolSpec {
    let parameters = match parameters {
        Value::Null => parameters,
        schema => HeldSchema::new(&schema).schema,
    };
    ToolSpec { name: name.to_owned(), description: String::new(), parameters }
}

fn tools() -> Arc<[ToolSpec]> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
            "filter": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
        },
        "required": ["city"],
    });
    Arc::from([tool("get_weather", weather), tool("get_time", Value::Null)])
}

/// The text beside calls, and the names and arguments of calls.
fn read(format: Format, options: ReaderOptions, text: &str) -> (String, Vec<(String, String)>) {
    let mut reader = format.reader(options);
    let mut deltas = reader.push(text);
    deltas.extend(reader.finish());
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for delta in deltas {
        match delta {
            Delta::Content(text) => content.push_str(&text),
            Delta::Reasoning(_) => {}
            Delta::CallStart { name, .. } => calls.push((name, String::new())),
            Delta::CallArguments { index, json } => calls[index].1.push_str(&json),
        }
    }
    (content, calls)
}

/// Bytes, the end, and the markers of the format, which may be special tokens.
struct Tokens {
    texts: Vec<Vec<u8>>,
    special: Vec<bool>,
}

impl Tokens {
    fn new(calls: &'static CallFormat, special: bool) -> Self {
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        texts.push(b"<|eos|>".to_vec());
        texts.extend(format(calls).markers().iter().map(|marker| marker.as_bytes().to_vec()));
        let special = (0..texts.len()).map(|id| id == 256 || (special && id > 256)).collect();
        Self { texts, special }
    }

    fn special(&self, text: &str) -> Option<u32> {
        let id = self.texts.iter().position(|token| token == text.as_bytes())?;
        self.special[id].then_some(id as u32)
    }

    fn vocabulary(&self) -> Vocabulary {
        let encode = Arc::new(|text: &[u8]| text.iter().map(|byte| u32::from(*byte)).collect());
        Vocabulary::new(self.texts.clone(), self.special.clone(), vec![EOS], encode).unwrap()
    }

    /// Walks to the end. After some tokens, ends what it can.
    fn walk(&self, vocabulary: &Vocabulary, constrain: &Constrain, seed: u64) -> String {
        let grammar = vocabulary.compile(constrain);
        let grammar = grammar.unwrap_or_else(|e| panic!("{e}\n{constrain:?}"));
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut mask = grammar.start();
        let mut text = Vec::new();
        for count in 0..3000 {
            let allowed = mask.allowed().map(<[u32]>::to_vec);
            assert_eq!(mask.error(), None, "{}", String::from_utf8_lossy(&text));
            let is = |id: u32| {
                allowed.as_ref().is_none_or(|a| a[id as usize / 32] >> (id % 32) & 1 == 1)
            };
            let mut may: Vec<u32> = (0..self.texts.len() as u32).filter(|id| is(*id)).collect();
            let ends = |t: &u32| *t >= EOS || b"\"}]".contains(&(*t as u8));
            if count > 40 && random.next_u32() % 4 > 0 && may.iter().any(ends) {
                may.retain(ends);
            }
            // JSON has numbers that no f64 holds.
            if text.last().is_some_and(u8::is_ascii_digit) && may.len() > 2 {
                may.retain(|token| !matches!(*token, 69 | 101));
            }
            let token = may[random.next_u32() as usize % may.len()];
            if token == EOS {
                return String::from_utf8(text).unwrap();
            }
            text.extend(&self.texts[token as usize]);
            mask.accept(token);
        }
        panic!("no end: {}", String::from_utf8_lossy(&text));
    }
}

fn assert_calls(tools: &[ToolSpec], content: &str, calls: &[(String, String)], text: &str) {
    assert!(!calls.is_empty(), "no call: {text}");
    assert_eq!(content, "", "{text:?} {calls:?}");
    for (name, json) in calls {
        assert!(tools.iter().any(|tool| tool.name == *name), "{name}: {text}");
        let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {text}"));
        let members = value.as_object().unwrap();
        if name == "get_time" {
            assert!(members.is_empty(), "{text}");
            continue;
        }
        assert!(members.contains_key("city"), "{text}");
        for (key, member) in members {
            let holds = match key.as_str() {
                "city" => member.is_string(),
                "unit" => ["celsius", "fahrenheit"].contains(&member.as_str().unwrap()),
                "days" => member.is_i64() || member.as_f64().is_some_and(|n| n.fract() == 0.0),
                "hourly" => member.is_boolean(),
                "filter" => member.is_object(),
                _ => false,
            };
            assert!(holds, "{key} is {member}: {text}");
        }
    }
}

#[test]
fn readers_read_what_grammars_force() {
    let tools = tools();
    for calls in CallFormat::all() {
        let mut most = 0;
        for special in [false, true] {
            let tokens = Tokens::new(calls, special);
            let vocabulary = tokens.vocabulary();
            for seed in 0..24 {
                let (parallel, opened) = (seed % 2 == 1, seed % 3 == 1);
                let find = |text: &str| tokens.special(text);
                let lark = format(calls).call_grammar(&tools, parallel, opened, &find);
                let text = tokens.walk(&vocabulary, &Constrain::Lark(lark), seed);
                let options = ReaderOptions {
                    tools: tools.clone(),
                    reasoning: true,
                    opened,
                    whole_calls: false,
                };
                let whole = ReaderOptions { whole_calls: true, ..options.clone() };
                let answer = read(format(calls), options, &text);
                assert_calls(&tools, &answer.0, &answer.1, &text);
                assert!(parallel || answer.1.len() == 1, "{} calls: {text}", answer.1.len());
                most = most.max(answer.1.len());
                assert_eq!(answer, read(format(calls), whole, &text), "{text}");
            }
        }
        assert_eq!(most > 1, calls.name != "harmony", "{} had {most} calls at most", calls.name);
    }
}

#[test]
fn schemas_of_arguments_hold_or_are_refused() {
    let tokens = Tokens::new(hermes(), false);
    let vocabulary = tokens.vocabulary();
    let grammar = |parameters: Value| {
        let tool = tool("f", parameters);
        let lark = format(hermes()).call_grammar(&[tool], false, false, &|_| None);
        vocabulary.compile(&Constrain::Lark(lark)).map(|_| ()).map_err(|e| e.to_string())
    };
    let refused = grammar(json!({"properties": {"a": {"type": "strin"}}})).unwrap_err();
    assert_eq!(refused, "the grammar cannot be honoured: Invalid type: strin");
    let either = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
    assert_eq!(grammar(json!({"properties": {"a": either}})), Ok(()));
    assert_eq!(
        grammar(serde_json::json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}})),
        Ok(())
    );
    assert_eq!(grammar(serde_json::json!({})), Ok(()));
}

#[test]
fn forms_follow_thoughts_and_give_way_to_calls() {
    let schema = json!({"properties": {"a": {"enum": [1, "x"]}}, "required": ["a"]});
    let fits = |form: &Constrain, text: &str| match form {
        Constrain::JsonSchema(_) => {
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            value == json!({"a": 1}) || value == json!({"a": "x"})
        }
        Constrain::Choice(choices) => choices.iter().any(|choice| choice == text),
        Constrain::Regex(_) => text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()),
        _ => text.strip_suffix('!').is_some_and(|b| !b.is_empty() && b.bytes().all(|b| b == b'b')),
    };
    let forms = [
        Constrain::JsonSchema(schema),
        Constrain::Choice(vec!["yes".into(), "no".into()]),
        Constrain::Regex("[0-9]{3}".into()),
        Constrain::Lark("start: A \"!\"\nA: /b+/\n".into()),
    ];
    for calls in CallFormat::all() {
        let (mut called, mut thought) = (0, 0);
        for seed in 0..32 {
            let (special, opened) = (seed % 2 == 1, seed % 3 == 1);
            let tools = if seed % 8 < 4 { tools() } else { Arc::from([]) };
            let tokens = Tokens::new(calls, special);
            let find = |text: &str| tokens.special(text);
            let lark = format(calls).form_grammar(&tools, false, opened, &find).unwrap();
            let form = &forms[seed as usize / 2 % forms.len()];
            let within = Constrain::Within { form: Box::new(form.clone()), lark };
            let text = tokens.walk(&tokens.vocabulary(), &within, seed);
            let options =
                ReaderOptions { tools: tools.clone(), reasoning: true, opened, whole_calls: false };
            let (content, read) = read(format(calls), options, &text);
            thought += usize::from(!text.ends_with(&content) || content.len() < text.len());
            if read.is_empty() {
                assert!(fits(form, &content), "{text:?}");
            } else {
                called += 1;
                assert_calls(&tools, &content, &read, &text);
            }
        }
        assert!(called > 0 && thought > 0, "{}: {called} calls, {thought} thoughts", calls.name);
    }
    let plain = Format { calls: hermes(), thoughts: None };
    assert_eq!(plain.form_grammar(&[], false, false, &|_| None), None);
}
