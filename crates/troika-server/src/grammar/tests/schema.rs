//! A checker of the keywords that the walks use, written from the standard and not from the
//! library that makes the grammars.

use serde_json::{Value, json};

/// Whether a value is valid. `root` holds the definitions.
pub(super) fn valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema != &Value::Bool(false) };
    keywords.iter().all(|(keyword, rule)| holds(value, keyword, rule, schema, root))
}

fn holds(value: &Value, keyword: &str, rule: &Value, schema: &Value, root: &Value) -> bool {
    let length = value.as_str().map(|text| text.chars().count() as f64);
    let items = value.as_array().map(|items| items.len() as f64);
    let number = rule.as_f64();
    match keyword {
        "type" => match rule {
            Value::Array(types) => types.iter().any(|t| is(value, t)),
            name => is(value, name),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => value == rule,
        "minimum" => value.as_f64() >= number || value.as_f64().is_none(),
        "maximum" => value.as_f64() <= number,
        "minLength" => length.is_none() || length >= number,
        "maxLength" => length <= number,
        "minItems" => items.is_none() || items >= number,
        "maxItems" => items <= number,
        "anyOf" => rule.as_array().unwrap().iter().any(|option| valid(value, option, root)),
        "$ref" => valid(value, root.pointer(&rule.as_str().unwrap()[1..]).unwrap(), root),
        "required" => value.as_object().is_none_or(|object| {
            rule.as_array().unwrap().iter().all(|key| object.contains_key(key.as_str().unwrap()))
        }),
        "properties" => each(rule.as_object().unwrap().iter(), |(key, inner)| {
            value.get(key).is_none_or(|member| valid(member, inner, root))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let named = |key: &str| schema["properties"].get(key).is_some();
            each(object.iter(), |(key, member)| named(key) || valid(member, rule, root))
        }),
        "prefixItems" => value.as_array().is_none_or(|items| {
            let rules = rule.as_array().unwrap();
            each(items.iter().zip(rules), |(item, rule)| valid(item, rule, root))
        }),
        "items" => value.as_array().is_none_or(|items| {
            let first = schema["prefixItems"].as_array().map_or(0, Vec::len);
            each(items.iter().skip(first), |item| valid(item, rule, root))
        }),
        // The test looks at these itself.
        "pattern" | "format" | "$defs" => true,
        other => panic!("the checker does not know {other}"),
    }
}

fn each<T>(mut items: impl Iterator<Item = T>, holds: impl Fn(T) -> bool) -> bool {
    items.all(holds)
}

fn is(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

#[test]
fn the_checker_tells_valid_from_invalid() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2}, "b": {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "string", "maxLength": 2}, "minItems": 1}}, "required": ["a"], "additionalProperties": false});
    let check = |value: Value| valid(&value, &schema, &schema);
    assert!(check(json!({"a": 2, "b": [1, "xy"]})));
    for bad in [
        json!({"a": 1}),
        json!({"a": 2.5}),
        json!({"b": [1]}),
        json!({"a": 2, "b": []}),
        json!({"a": 2, "b": [2]}),
        json!({"a": 2, "b": [1, "xyz"]}),
        json!({"a": 2, "c": 1}),
        json!([]),
    ] {
        assert!(!check(bad.clone()), "{bad}");
    }
}
