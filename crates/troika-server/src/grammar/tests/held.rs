//! What schemas say to grammars, and what they do not.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::{Constrain, HeldSchema};
use super::{EOS, choices, tokens, vocabulary, walk};

fn held(schema: Value) -> Value {
    let held = HeldSchema::new(&schema);
    assert_eq!(held.left_out, BTreeSet::new(), "{schema}");
    held.schema
}

#[track_caller]
fn compiles(schema: &Value) {
    let compiled = vocabulary().compile(&Constrain::JsonSchema(schema.clone()));
    if let Err(error) = compiled {
        panic!("{error}: {schema}");
    }
}

#[test]
fn annotations_go_and_properties_of_their_names_stay() {
    for format in ["password", "path", "binary", "byte", "base64", "uri-reference", "ipvanyaddress"]
    {
        let schema = json!({"type": "string", "format": format, "title": "T", "description": "d",
            "default": {"not": 1}, "examples": [{"uniqueItems": true}], "example": {"if": 1},
            "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "#/properties/a",
            "$comment": "c", "deprecated": true, "readOnly": true, "writeOnly": true,
            "contentEncoding": "base64", "contentSchema": {"contains": 1}, "x-foo": {"not": {}},
            "propertyOrdering": ["a"], "nullable": true});
        assert_eq!(held(schema), json!({"type": "string"}));
    }
    let names = json!({"format": {"type": "string"}, "title": {"type": "integer"}, "default": {},
        "not": {"enum": ["if"]}, "x-foo": true, "$id": {"type": "null"}});
    let schema = json!({"type": "object", "properties": names, "additionalProperties": false});
    assert_eq!(held(schema.clone()), schema);
    let date = json!({"type": "string", "format": "date"});
    assert_eq!(held(date.clone()), date);
    // A recursive reference has no siblings left, which could not be compiled.
    compiles(&json!({"properties": {"a": {"$ref": "#", "description": "again", "default": null}}}));
}

/// References may lead through any keyword.
#[test]
fn targets_of_references_stay() {
    let pet = json!({"type": "string", "format": "byte", "x-foo": 1});
    let schema = json!({"properties": {"a": {"$ref": "#/components/schemas/Pet"}},
        "components": {"schemas": {"Pet": pet}, "other": {}}});
    let kept = json!({"schemas": {"Pet": {"type": "string"}}});
    assert_eq!(held(schema.clone())["components"], kept);
    compiles(&schema);
}

#[test]
fn assertions_that_say_nothing_are_dropped_and_others_named() {
    for (key, nothing) in [
        ("uniqueItems", json!(false)),
        ("not", json!(false)),
        ("propertyNames", json!({"type": "string", "description": "names"})),
        ("propertyNames", json!({})),
        ("unevaluatedProperties", json!(true)),
    ] {
        assert_eq!(held(json!({"type": "object", key: nothing})), json!({"type": "object"}));
    }
    for (key, value) in [
        ("uniqueItems", json!(true)),
        ("propertyNames", json!({"pattern": "^a"})),
        ("contains", json!({"type": "null"})),
        ("dependentRequired", json!({"a": ["b"]})),
        ("dependentSchemas", json!({"a": {}})),
        ("if", json!({"required": ["a"]})),
        ("not", json!({"required": ["a"]})),
        ("unevaluatedProperties", json!(false)),
        ("unevaluatedItems", json!(false)),
        ("pattern", json!("^(?=.*[0-9]).+$")),
        ("pattern", json!("(?<!a)b")),
        ("patternProperties", json!({"^(?!_)": {}})),
        ("maxProperties", json!(2)),
        ("minProperties", json!(2)),
    ] {
        let inner = json!({"properties": {"a": {}, "b": {}, "c": {}}, key: value, "then": {},
            "minContains": 1});
        let schema = json!({"type": "object", "properties": {"a": inner}});
        let held = HeldSchema::new(&schema);
        assert_eq!(held.left_out, BTreeSet::from([key.to_owned()]));
        assert_eq!(held.schema["properties"]["a"].get(key), None);
        compiles(&held.schema);
        let refused = vocabulary().compile(&Constrain::JsonSchema(schema)).err().unwrap();
        let sentence = format!("the JSON schema cannot be honoured: no grammar holds to {key}");
        assert_eq!(refused.to_string(), sentence);
    }
    for (key, value, says) in [
        ("multipleOf", json!(10_001), "multipleOf above 10000"),
        ("properties", (0..501).map(|n| (format!("k{n}"), json!({}))).collect(), "500 properties"),
    ] {
        let held = HeldSchema::new(&json!({key: value}));
        assert_eq!(held.schema, json!({}));
        assert!(held.left_out.first().unwrap().contains(says), "{:?}", held.left_out);
    }
    let counted = json!({"properties": {"a": {}, "b": {}}, "minProperties": 1});
    assert_eq!(held(counted.clone())["minProperties"], 1);
    compiles(&counted);
}

#[test]
fn objects_are_closed_unless_they_are_merged() {
    let closes = |schema: Value| held(schema).get("additionalProperties").cloned();
    let object = json!({"properties": {"a": {}}, "type": "object", "additionalProperties": false});
    assert_eq!(held(json!({"properties": {"a": {}}})), object);
    assert_eq!(closes(json!({"properties": {}})), Some(json!(false)));
    assert_eq!(closes(json!({"type": "object"})), None);
    let open = json!({"properties": {"a": {}}, "additionalProperties": true});
    assert_eq!(closes(open), Some(json!(true)));
    assert_eq!(closes(json!({"properties": {}, "patternProperties": {"^x": {}}})), None);
    let missing = held(json!({"properties": {"a": {}}, "required": ["a", "b"]}));
    assert_eq!(missing["properties"]["b"], json!(true));
    let either = json!({"properties": {"a": {}, "b": {}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(closes(either), Some(json!(false)));
}

#[test]
fn merged_objects_can_be_satisfied() {
    let text = json!({"type": "string", "maxLength": 3});
    let one =
        |name: &str| json!({"type": "object", "properties": {name: text}, "required": [name]});
    let (a, b) = (one("a"), one("b"));
    let with = |mut whole: Value, key: &str, value: Value| {
        whole[key] = value;
        whole
    };
    let base = json!({"base": a});
    for (schema, closed) in [
        (json!({"allOf": [a, b]}), false),
        (with(a.clone(), "allOf", json!([b])), false),
        (with(a.clone(), "anyOf", json!([b])), false),
        (json!({"$defs": base, "allOf": [{"$ref": "#/$defs/base"}, b]}), false),
        (with(b.clone(), "$ref", json!("#/$defs/base")), false),
        (json!({"allOf": [{"allOf": [{"$ref": "#/$defs/base"}]}, b], "$defs": base}), false),
        // Pydantic 1 wraps a reference in this way to describe it.
        (json!({"allOf": [{"$ref": "#/$defs/base"}], "description": "b"}), true),
    ] {
        let schema = with(schema, "$defs", base.clone());
        let kept = held(schema.clone());
        let merges_base = !closed && schema.to_string().contains("#/$defs/base");
        assert_eq!(kept["$defs"]["base"].get("additionalProperties").is_none(), merges_base);
        compiles(&schema);
        for seed in 0..5 {
            let text = walk(&vocabulary(), &Constrain::JsonSchema(schema.clone()), seed);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(value["a"].is_string() && (closed || value["b"].is_string()), "{text}");
        }
    }
}

/// However long the chain of references is, and whatever order definitions have.
#[test]
fn a_definition_that_is_merged_over_others_is_not_closed() {
    let refers = |n: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{n}")}]});
    let last = json!({"properties": {"a": {}}});
    let mut definitions = serde_json::Map::from_iter([("d0".to_owned(), last)]);
    definitions.extend((1..10).map(|n| (format!("d{n}"), refers(n - 1))));
    let whole =
        |with: Value| json!({"$defs": definitions, "$ref": "#/$defs/d9", "properties": with});
    let closes = |schema: Value| held(schema)["$defs"]["d0"].get("additionalProperties").cloned();
    assert_eq!(closes(whole(json!({"b": {}}))), None);
    assert_eq!(closes(json!({"$defs": definitions, "$ref": "#/$defs/d9"})), Some(json!(false)));
}

/// What Pydantic 2 and zod 4 write.
#[test]
fn schemas_of_other_packages_compile() {
    let pydantic = json!({"$defs": {
        "Cat": {"properties": {"kind": {"const": "cat", "title": "Kind", "type": "string"}, "lives": {"title": "Lives", "type": "integer"}}, "required": ["kind", "lives"], "title": "Cat", "type": "object"},
        "Dog": {"properties": {"kind": {"const": "dog", "title": "Kind", "type": "string"}, "barks": {"default": true, "title": "Barks", "type": "boolean"}}, "required": ["kind"], "title": "Dog", "type": "object"},
        "Colour": {"enum": ["r", "g"], "title": "Colour", "type": "string"},
        "All": {"properties": {
            "secret": {"format": "password", "title": "Secret", "type": "string", "writeOnly": true},
            "path": {"format": "path", "title": "Path", "type": "string"},
            "raw": {"format": "binary", "title": "Raw", "type": "string"},
            "numbers": {"additionalProperties": {"type": "integer"}, "title": "Numbers", "type": "object"},
            "pair": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "title": "Pair", "type": "array"},
            "colour": {"$ref": "#/$defs/Colour", "default": "r", "description": "a colour"},
            "pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "title": "Pet"},
            "any": {"default": null, "title": "Any"},
            "json": {"contentMediaType": "application/json", "contentSchema": {}, "title": "Json", "type": "string"},
            "http": {"format": "uri", "maxLength": 2083, "minLength": 1, "title": "Http", "type": "string"},
            "next": {"anyOf": [{"$ref": "#/$defs/All"}, {"type": "null"}], "default": null},
        }, "required": ["secret", "path"], "title": "All", "type": "object"},
    }, "$ref": "#/$defs/All"});
    let zod = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
        "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        "int": {"type": "integer", "minimum": -9007199254740991_i64, "maximum": 9007199254740991_i64},
        "base64": {"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"},
        "cuid": {"type": "string", "format": "cuid", "pattern": "^[cC][0-9a-z]{6,}$"},
        "text": {"type": ["string", "null"], "default": "x"},
        "union": {"oneOf": [{"type": "object", "properties": {"t": {"type": "string", "const": "a"}}, "required": ["t"], "additionalProperties": false}, {"type": "object", "properties": {"t": {"type": "string", "const": "b"}}, "required": ["t"], "additionalProperties": false}]},
        "loose": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": {}},
        "tree": {"$ref": "#/$defs/__schema0"},
    }, "required": ["record", "int"], "additionalProperties": false, "$defs": {"__schema0": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/__schema0"}}}, "required": ["kids"], "additionalProperties": false}}});
    compiles(&pydantic);
    compiles(&zod);
    let set =
        json!({"items": {"type": "string"}, "title": "S", "type": "array", "uniqueItems": true});
    let held = HeldSchema::new(&set);
    assert_eq!(held.schema, json!({"items": {"type": "string"}, "type": "array"}));
    assert_eq!(held.left_out, BTreeSet::from(["uniqueItems".to_owned()]));
}

/// Schemas that take long if they are looked at without care.
#[test]
fn hostile_schemas_are_read_soon() {
    let many = |n: usize, of: &dyn Fn(usize) -> Value| -> Value {
        (0..n).map(|n| (format!("k{n}"), of(n))).collect::<serde_json::Map<_, _>>().into()
    };
    let deep = format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000));
    let last = 1500;
    for schema in [
        json!({"properties": many(6000, &|n| json!({"pattern": format!("{n}a")}))}),
        json!({"properties": {"a": {"pattern": deep}}}),
        json!({"pattern": "((a{1000}){1000}){1000}"}),
        many(20_000, &|n| json!(n)),
        json!({"$defs": many(last, &|n| json!({"allOf": [{"$ref": format!("#/$defs/k{}", n.wrapping_sub(1).min(last))}, {"properties": {}}]}))}),
        (0..100).fold(json!({}), |inner, _| json!({"allOf": [inner, {"properties": {}}]})),
    ] {
        let begun = std::time::Instant::now();
        let bytes = schema.to_string().len();
        HeldSchema::new(&schema);
        println!("{bytes} bytes: {:?}", begun.elapsed());
        assert!(begun.elapsed().as_secs() < 5, "{bytes} bytes take {:?}", begun.elapsed());
    }
}

/// Takes digits for as long as there are any.
fn digits(constrain: &Constrain, start: &str) -> String {
    let tokens = tokens();
    let mut mask = vocabulary().compile(constrain).unwrap().start();
    let mut text = start.as_bytes().to_vec();
    start.bytes().for_each(|byte| mask.accept(u32::from(byte)));
    while text.len() < 100 {
        let may = choices(&mut mask, tokens.len() as u32);
        let digit = |id: &&u32| tokens[**id as usize].first().is_some_and(u8::is_ascii_digit);
        let Some(id) = may.iter().rev().find(digit) else { break };
        text.extend(&tokens[*id as usize]);
        mask.accept(*id);
    }
    assert_eq!(mask.error(), None);
    assert!(!choices(&mut mask, EOS + 1).is_empty());
    String::from_utf8(text).unwrap()
}

#[test]
fn numbers_end_and_strings_of_digits_do_not() {
    let schema = |value: Value| {
        let object = json!({"properties": {"a": value}, "required": ["a"]});
        Constrain::JsonSchema(object)
    };
    for (value, start) in [
        (json!({"type": "integer"}), "{\"a\":1"),
        (json!({"type": "integer", "minimum": 1}), "{\"a\":1"),
        (json!({"type": "number"}), "{\"a\":0.1"),
        (json!({"type": "number", "minimum": 0, "maximum": 1}), "{\"a\":0.1"),
        (json!({"type": "number"}), "{\"a\":1.5e1"),
        (json!({}), "{\"a\":1"),
    ] {
        let text = digits(&schema(value.clone()), start);
        let number = text.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
        assert_eq!(number.len(), 18, "{text} of {value}");
    }
    let lark = "start: \"n\" %json {\"type\": \"integer\"}";
    assert_eq!(digits(&Constrain::Lark(lark.into()), "n1").len(), 19);
    let text = schema(json!({"type": "string"}));
    assert!(digits(&text, "{\"a\":\"1").len() >= 100);
    assert_eq!(digits(&schema(json!({"const": 1e30})), "{\"a\":1").len(), 36);
    assert!(digits(&Constrain::Regex("[0-9]+".into()), "1").len() >= 100);
}
