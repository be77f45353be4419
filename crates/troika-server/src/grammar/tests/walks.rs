//! What comes of a walk is what was asked for.

use serde_json::{Value, json};

use super::super::Constrain;
use super::schema::valid;
use super::{set, vocabulary, walk};

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b", 3, null]}, "minItems": 1, "maxItems": 4}, "ok": {"type": "boolean"}}, "required": ["tags"], "additionalProperties": false}),
        json!({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}}, "$ref": "#/$defs/node"}),
        json!({"type": "array", "prefixItems": [{"const": "x"}, {"type": "string", "pattern": "^[a-z]{2,4}$"}], "items": false, "minItems": 2}),
        json!({"type": "string", "format": "date"}),
        json!({"type": ["string", "null"], "minLength": 2, "maxLength": 5}),
        json!({"type": "object", "properties": {"ü\"": {"type": "string"}}, "required": ["ü\""], "additionalProperties": {"type": "integer"}}),
    ]
}

#[test]
fn json_holds_to_its_schema() {
    let vocabulary = vocabulary();
    for schema in schemas() {
        for seed in 0..20 {
            let text = walk(&vocabulary, &Constrain::JsonSchema(schema.clone()), seed);
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(valid(&value, &schema, &schema), "{text} against {schema}");
        }
    }
}

#[test]
fn any_object_is_an_object_without_padding() {
    let vocabulary = vocabulary();
    for seed in 0..40 {
        let text = walk(&vocabulary, &Constrain::JsonObject, seed);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value.is_object(), "{text}");
        assert!(text.starts_with('{') && text.ends_with('}'), "{text:?}");
    }
    // The rule holds even if the schema says otherwise.
    let schema = json!({"type": "object", "x-guidance": {"whitespace_flexible": true}});
    let mut mask = vocabulary.compile(&Constrain::JsonSchema(schema)).unwrap().start();
    assert!(!set(mask.allowed().unwrap(), u32::from(b' ')));
    mask.accept(u32::from(b'{'));
    assert!(!set(mask.allowed().unwrap(), u32::from(b'\n')));
}

#[test]
fn choices_and_expressions_hold() {
    let vocabulary = vocabulary();
    let texts = ["yes", "no", "", "not \"quoted\"\n", "ü|.*", "\u{7f}"].map(str::to_owned);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        seen.insert(walk(&vocabulary, &Constrain::Choice(texts.to_vec()), seed));
    }
    assert_eq!(seen, texts.into_iter().collect());
    for seed in 0..20 {
        let text = walk(&vocabulary, &Constrain::Regex(r"^[ab]{3}/\d\\(x|y)$".to_owned()), seed);
        let bytes = text.as_bytes();
        assert!(bytes[..3].iter().all(|b| b"ab".contains(b)) && bytes[3] == b'/', "{text}");
        assert!(text.ends_with("\\x") || text.ends_with("\\y"), "{text}");
        let lark = "start: word (\", \" word)*\nword: /[a-z]{1,3}/\n".to_owned();
        let text = walk(&vocabulary, &Constrain::Lark(lark), seed);
        assert!(text.split(", ").all(|w| (1..4).contains(&w.len())), "{text}");
    }
}

fn refusal(constrain: &Constrain) -> String {
    match vocabulary().compile(constrain) {
        Err(refused) => refused,
        Ok(_) => panic!("taken: {constrain:?}"),
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_in_a_sentence() {
    let cases = [
        (Constrain::JsonSchema(json!({"not": {"type": "string"}})), "not"),
        (Constrain::JsonSchema(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
        (Constrain::JsonSchema(json!({"type": "strin"})), "strin"),
        (Constrain::JsonSchema(json!({"type": "integer", "minimum": 3, "maximum": 1})), "minimum"),
        (Constrain::JsonSchema(json!({"$ref": "#/nowhere"})), "nowhere"),
        (Constrain::JsonSchema(json!("text")), "no object"),
        (Constrain::Regex("a(".to_owned()), "regular expression"),
        (Constrain::Regex("a\\".to_owned()), "backslash"),
        (Constrain::Lark("start: nothing".to_owned()), "nothing"),
        (Constrain::Lark("begin: \"a\"".to_owned()), "start"),
        (Constrain::Choice(vec![]), "lists no text"),
    ];
    for (constrain, part) in cases {
        let sentence = refusal(&constrain);
        println!("{sentence}");
        assert!(sentence.contains(part), "{sentence}");
        assert!(!sentence.contains('\n') && sentence.len() < 300, "{sentence}");
    }
}
