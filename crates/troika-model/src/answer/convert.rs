//! Values that a model wrote as plain text, made JSON by the tool's schema.

use serde_json::Value;

use super::tool::ToolSpec;

/// References are followed so often: a schema may refer to itself.
const DEPTH: usize = 8;

/// The schema of a tool's argument.
pub(super) fn argument<'a>(tools: &'a [ToolSpec], tool: &str, key: &str) -> Option<Argument<'a>> {
    let root = &tools.iter().find(|t| t.name == tool)?.parameters;
    let schema = root.get("properties")?.get(key)?;
    Some(Argument { root, schema })
}

/// A part of a tool's schema, with the whole for its references.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument<'a> {
    pub(super) root: &'a Value,
    pub(super) schema: &'a Value,
}

impl<'a> Argument<'a> {
    /// Whether only strings are allowed: such values are written without quotes.
    pub(super) fn is_text(&self) -> bool {
        let types = self.types(self.schema, DEPTH);
        !types.is_empty() && types.iter().all(|t| *t == "string")
    }

    /// The type of its values. Without a single one, they are taken for objects.
    pub(super) fn kind(&self) -> &'a str {
        let types = self.types(self.schema, DEPTH);
        match types.first() {
            Some(&"integer") if types.len() == 1 => "number",
            Some(kind) if types.iter().all(|other| other == kind) => kind,
            _ => "object",
        }
    }

    /// The strings that are allowed, if they are listed.
    pub(super) fn choices(&self) -> Option<Vec<&'a str>> {
        let schema = self.resolved(self.schema, DEPTH);
        if let Some(value) = schema.get("const") {
            return Some(vec![value.as_str()?]);
        }
        schema.get("enum")?.as_array()?.iter().map(Value::as_str).collect()
    }

    /// The schema that `$ref` leads to.
    pub(super) fn resolved(&self, schema: &'a Value, depth: usize) -> &'a Value {
        let target = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|r| r.strip_prefix('#'))
            .and_then(|pointer| self.root.pointer(pointer));
        match target {
            Some(target) if depth > 0 => self.resolved(target, depth - 1),
            _ => schema,
        }
    }

    /// The types that are allowed. Empty if the schema names none, so that any is.
    fn types(&self, schema: &'a Value, depth: usize) -> Vec<&'a str> {
        let schema = self.resolved(schema, depth);
        match schema.get("type") {
            Some(Value::String(name)) => return vec![name],
            Some(Value::Array(names)) => return names.iter().filter_map(Value::as_str).collect(),
            _ => {}
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return values.iter().map(type_of).collect();
        }
        if let Some(value) = schema.get("const") {
            return vec![type_of(value)];
        }
        let Some(Value::Array(options)) = schema.get("anyOf").or_else(|| schema.get("oneOf"))
        else {
            return Vec::new();
        };
        let mut types = Vec::new();
        for option in options {
            let more = if depth > 0 { self.types(option, depth - 1) } else { Vec::new() };
            if more.is_empty() {
                return more;
            }
            types.extend(more);
        }
        types
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn allows(types: &[&str], value: &Value) -> bool {
    let is = type_of(value);
    types.is_empty() || types.iter().any(|t| *t == is || (*t == "integer" && is == "number"))
}

/// The JSON of a value: what its type says, else what parses, else a string.
pub(super) fn json(text: &str, argument: Option<Argument<'_>>) -> String {
    let quoted = || Value::String(text.to_owned()).to_string();
    let types = argument.map(|a| a.types(a.schema, DEPTH)).unwrap_or_default();
    if !types.is_empty() && types.iter().all(|t| *t == "string") {
        return quoted();
    }
    let trimmed = text.trim();
    if let Ok(value) = serde_json::from_str::<Value>(trimmed)
        && allows(&types, &value)
    {
        return trimmed.to_owned();
    }
    // Models that wrote much Python say it like this.
    let python = match trimmed {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => return quoted(),
    };
    if !types.is_empty() && allows(&types, &python) { python.to_string() } else { quoted() }
}

/// The beginning of a value whose rest is missing.
pub(super) fn unfinished(text: &str, argument: Option<Argument<'_>>) -> String {
    if argument.is_none_or(|a| a.is_text()) {
        let mut json = Value::String(text.to_owned()).to_string();
        json.pop();
        return json;
    }
    text.trim().to_owned()
}

/// The arguments' schema as a grammar takes it: an object.
pub(super) fn object(parameters: &Value) -> Value {
    let Value::Object(schema) = parameters else {
        return serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false});
    };
    let mut schema = schema.clone();
    if !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|k| schema.contains_key(*k)) {
        schema.insert("type".to_owned(), Value::from("object"));
    }
    Value::Object(schema)
}

/// An argument's schema by itself, with the definitions that it may refer to.
pub(super) fn alone(argument: Argument<'_>) -> Value {
    let Value::Object(schema) = argument.schema else { return argument.schema.clone() };
    let mut schema = schema.clone();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = argument.root.get(key) {
            schema.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(schema)
}
