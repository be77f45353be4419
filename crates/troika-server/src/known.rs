//! The fields of each interface, and what becomes of each: those of `known.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::problem::Problem;

/// What becomes of a field.
#[derive(Clone, Copy)]
enum Fate {
    /// It is read, or changes nothing.
    Taken,
    /// It is refused for this reason, but for the values before it that ask for nothing.
    Refused(&'static str, &'static str),
}

type Fields = HashMap<&'static str, Fate>;

/// Fields by path, by object with a point before it, or by group.
static KNOWN: LazyLock<HashMap<&str, Fields>> = LazyLock::new(|| {
    let (mut known, mut of): (HashMap<&str, Fields>, Vec<&str>) = Default::default();
    for line in include_str!("known.txt").lines() {
        if let Some(names) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            of = names.split(' ').collect();
        }
        let (verb, rest) = line.split_once(' ').unwrap_or_default();
        let mut parts = rest.split('|').map(str::trim);
        let names = parts.next().unwrap_or_default().split(' ');
        let refused = Fate::Refused(parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let fields: Fields = match verb {
            "of" => {
                names.filter_map(|name| known.get(name)).flatten().map(|(n, f)| (*n, *f)).collect()
            }
            "read" | "idle" => names.map(|name| (name, Fate::Taken)).collect(),
            "not" => names.map(|name| (name, refused)).collect(),
            _ => continue,
        };
        of.iter().for_each(|name| known.entry(*name).or_default().extend(&fields));
    }
    known
});

/// The most names that are told, and the most letters of each.
const NAMES: usize = 16;
const LETTERS: usize = 64;

/// Checks the fields of a request to a path. Returns the names that nobody knows.
///
/// # Errors
/// One of them is known, and cannot be honoured.
pub fn check(path: &str, body: &Map<String, Value>) -> Result<Vec<String>, Problem> {
    let mut unknown = Vec::new();
    let Some(known) = KNOWN.get(path) else { return Ok(unknown) };
    look("", known, body, &mut unknown)?;
    for (name, value) in body.iter().filter(|(name, _)| known.contains_key(name.as_str())) {
        let object = format!(".{name}");
        if let (Some(known), Value::Object(inner)) = (KNOWN.get(object.as_str()), value) {
            look(&format!("{name}."), known, inner, &mut unknown)?;
        }
    }
    unknown.truncate(NAMES);
    Ok(unknown)
}

fn look(
    object: &str,
    known: &Fields,
    fields: &Map<String, Value>,
    unknown: &mut Vec<String>,
) -> Result<(), Problem> {
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match known.get(name.as_str()) {
            Some(Fate::Taken) => {}
            Some(Fate::Refused(but, why)) if asks(value, but) => {
                let name = format!("{object}{name}");
                return Err(Problem::field(&name, format!("{name} cannot be honoured: {why}")));
            }
            Some(Fate::Refused(..)) => {}
            None => {
                let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
                unknown.push(object.chars().chain(name.chars()).take(LETTERS).map(plain).collect());
            }
        }
    }
    Ok(())
}

/// Whether a value asks for what is refused.
fn asks(value: &Value, but: &str) -> bool {
    match value {
        _ if !but.is_empty() => {
            let same = |one: &Value| {
                one == value || one.as_f64().is_some_and(|n| value.as_f64() == Some(n))
            };
            !serde_json::Deserializer::from_str(but).into_iter().flatten().any(|one| same(&one))
        }
        Value::Bool(yes) => *yes,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check;

    #[test]
    fn each_field_is_taken_refused_or_named() {
        for (path, body, want) in [
            ("/v1/chat/completions", json!({"user": "me", "min_tokens": 0, "n": 2}), Ok("")),
            ("/v1/chat/completions", json!({"min_tokens": 2}), Err("min_tokens")),
            ("/v1/chat/completions", json!({"modalities": ["text"], "audio": null}), Ok("")),
            ("/v1/chat/completions", json!({"modalities": ["audio"]}), Err("modalities")),
            ("/v1/chat/completions", json!({"temp": 1, "ü,\nb": {}}), Ok("temp ???b")),
            ("/v1/chat/completions", json!({"options": {"tfs_z": 0.5}}), Ok("options")),
            ("/v1/responses", json!({"truncation": "disabled", "store": true}), Ok("")),
            ("/v1/responses", json!({"truncation": "auto"}), Err("truncation")),
            ("/api/chat", json!({"options": {"tfs_z": 1.0, "x": 1}}), Ok("options.x")),
            ("/api/chat", json!({"options": {"tfs_z": 0.5}}), Err("options.tfs_z")),
        ] {
            let told = check(path, body.as_object().unwrap());
            let told = told.map(|names| names.join(" ")).map_err(|p| p.param.unwrap());
            assert_eq!(told.as_deref().map_err(|p| &**p), want, "{path} {body}");
        }
    }
}
