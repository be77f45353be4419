//! What a request may hold: the table of docs/server.md.
//!
//! Each list and text of a request has a limit, so that none of them takes the time or the memory
//! of all. Texts that the model reads are limited by its context, too
//! ([`troika::Model::check_text`]).

use serde_json::{Map, Value};

use crate::problem::Problem;

/// Texts of at most [`SHORT_TEXT`] bytes that are rendered or tokenized at once.
pub const TEXTS_AT_ONCE: usize = 2;
/// A text of at most this many bytes is tokenized within some 50 ms.
pub const SHORT_TEXT: usize = 64 << 10;
/// Longer texts that are rendered or tokenized at once: each takes hundreds of bytes for one of its
/// own.
pub const LONG_TEXTS_AT_ONCE: usize = 1;
/// Grammars that are compiled at once.
pub const GRAMMARS_AT_ONCE: usize = 4;
/// A body of more bytes is parsed apart from the threads that serve connections.
pub const SHORT_BODY: usize = 64 << 10;
/// After a body of more bytes the heap's free memory is given back to the system.
pub const LONG_BODY: usize = 1 << 20;

/// The most answers to one request.
pub const CHOICES: usize = 128;
/// The most tokens whose probabilities are told beside the chosen one's.
pub const LOGPROBS: usize = 20;
/// The most prompts or texts of a request for completions or embeddings.
pub const PROMPTS: usize = 2048;

/// What a field may hold.
struct Limit {
    /// Names of fields, or the names of an object and of a field in it.
    fields: &'static str,
    /// Elements of a list, or entries of an object.
    items: usize,
    /// Bytes of each element of a list, of all of an object, or of a text, as JSON.
    bytes: usize,
}

const fn limit(fields: &'static str, items: usize, bytes: usize) -> Limit {
    Limit { fields, items, bytes }
}

/// As much as the body may hold.
const ANY: usize = usize::MAX;

const LIMITS: &[Limit] = &[
    limit("messages", 16_384, ANY),
    limit("system", 1024, ANY),
    limit("prompt input tokens", 1 << 20, ANY),
    limit("content instructions suffix input_prefix input_suffix", 1, ANY),
    limit("input_extra", 1024, ANY),
    limit("images", 64, ANY),
    limit("stop stop_sequences options.stop", 64, 1 << 10),
    limit("logit_bias options.logit_bias", 4096, 256 << 10),
    limit("tools", 1024, 256 << 10),
    limit("response_format format text output_config json_schema", 256, 256 << 10),
    limit("guided_json structured_outputs", 256, 256 << 10),
    limit("guided_regex guided_grammar", 1, 256 << 10),
    limit("guided_choice structured_outputs.choice", 1024, 4 << 10),
];

/// Fields that are not in the table.
const OTHERS: Limit = limit("", 1024, 64 << 10);

/// Checks that no field of a request holds too much.
pub fn check(fields: &Map<String, Value>) -> Result<(), Problem> {
    for (name, value) in fields {
        let is_named = |limit: &&Limit| limit.fields.split(' ').any(|field| field == name);
        LIMITS.iter().find(is_named).unwrap_or(&OTHERS).check(name, value)?;
    }
    for limit in LIMITS {
        for field in limit.fields.split(' ') {
            if let Some((object, inner)) = field.split_once('.')
                && let Some(value) = fields.get(object).and_then(|object| object.get(inner))
            {
                limit.check(field, value)?;
            }
        }
    }
    Ok(())
}

impl Limit {
    fn check(&self, name: &str, value: &Value) -> Result<(), Problem> {
        let items = match value {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 1,
        };
        if items > self.items {
            let why = format!("{name} has {items} elements, and {} are allowed", self.items);
            return Err(Problem::field(name, why));
        }
        if self.bytes == ANY {
            return Ok(());
        }
        let bytes = match value {
            Value::Array(list) => list.iter().map(size).max().unwrap_or(0),
            one => size(one),
        };
        if bytes > self.bytes {
            let of = if value.is_array() { "an element of " } else { "" };
            let why = format!("{of}{name} has {bytes} bytes, and {} are allowed", self.bytes);
            return Err(Problem::field(name, why));
        }
        Ok(())
    }
}

/// Bytes of texts, names and numbers, about as JSON writes them.
pub fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|item| size(item) + 1).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + size(value) + 4).sum(),
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{LIMITS, check};

    #[test]
    fn each_list_and_text_has_an_end() {
        let long = "x".repeat(1025);
        let texts = |n: usize, len: usize| json!(vec!["x".repeat(len); n]);
        let biases = |n: usize| (0..n).map(|i| (i.to_string(), json!(1))).collect();
        let biases = |n: usize| serde_json::Value::Object(biases(n));
        for (body, good) in [
            (json!({"stop": texts(64, 1024)}), true),
            (json!({"stop": texts(65, 1)}), false),
            (json!({"stop": texts(1, 1025)}), false),
            (json!({"stop": long}), false),
            (json!({"stop_sequences": texts(65, 1)}), false),
            (json!({"options": {"stop": [long]}}), false),
            (json!({"options": {"stop": "x", "num_predict": 3}}), true),
            (json!({"logit_bias": biases(4096)}), true),
            (json!({"logit_bias": biases(4097)}), false),
            (json!({"tools": texts(1025, 1)}), false),
            (
                json!({"tools": [{"function": {"name": "f", "description": "x".repeat(256 << 10)}}]}),
                false,
            ),
            (json!({"guided_choice": texts(1025, 1)}), false),
            (json!({"structured_outputs": {"choice": texts(1, 4097)}}), false),
            (json!({"response_format": {"schema": {"enum": texts(300, 1024)}}}), false),
            (json!({"made_up": "x".repeat(65 << 10)}), false),
            (json!({"user": "me", "prompt": "x".repeat(1 << 20)}), true),
        ] {
            let told = check(body.as_object().unwrap());
            assert_eq!(told.is_ok(), good, "{told:?} {}", body.to_string().len());
            let says = |problem: &crate::problem::Problem| problem.message.contains("are allowed");
            assert!(told.as_ref().err().is_none_or(says), "{told:?}");
        }
    }

    #[test]
    fn the_document_has_the_table() {
        let page = include_str!("../../../docs/server.md");
        for field in LIMITS.iter().flat_map(|limit| limit.fields.split(' ')) {
            let field = format!("`{field}`");
            assert!(page.contains(&field), "docs/server.md does not name {field}");
        }
    }
}
