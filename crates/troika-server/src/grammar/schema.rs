//! Schemas as grammars take them: without what only annotates, and with objects that are closed.

use std::collections::BTreeSet;

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

/// Keywords that hold schemas, and those that hold them by names.
const HOLDERS: &str = "allOf anyOf oneOf items prefixItems additionalItems additionalProperties";
const MAPS: &str = "properties patternProperties $defs definitions";
/// The other keywords that `llguidance` knows.
const KNOWN: &str = "$ref $anchor const enum type required minItems maxItems minProperties \
                     maxProperties minLength maxLength pattern format minimum maximum \
                     exclusiveMinimum exclusiveMaximum multipleOf";
/// Keywords that assert what it does not know. `then`, `else` and `minContains` need one of them.
const UNKNOWN: &str = "not if contains uniqueItems propertyNames dependencies dependentRequired \
                       dependentSchemas unevaluatedItems unevaluatedProperties $dynamicRef";
/// The formats that it knows. All others only annotate.
const FORMATS: &str = "date-time time date duration email hostname ipv4 ipv6 uuid uri";
/// The largest `multipleOf`: it takes as many states of the lexer.
const DIVISOR: f64 = 10_000.0;
/// Properties of an object. Where they are optional, the time grows with their square.
const PROPERTIES: usize = 500;
/// Keywords by which a schema names properties.
const GIVERS: &str = "properties $ref allOf anyOf oneOf if dependentSchemas dependencies";

fn is_in(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// A schema to which a grammar holds.
#[derive(Default)]
pub struct HeldSchema {
    pub schema: Value,
    /// Keywords of the original to which no grammar holds.
    pub left_out: BTreeSet<String>,
    /// Names of definitions that are merged with other schemas.
    merged: BTreeSet<String>,
    patterns: RegexBuilder,
    /// All parts of references.
    targets: BTreeSet<String>,
}

impl HeldSchema {
    /// Removes what annotates, and what no grammar holds to. Closes objects that have properties and
    /// do not say whether there may be others, unless they are merged with other schemas.
    pub fn new(schema: &Value) -> HeldSchema {
        let mut held = HeldSchema::default();
        held.collect(schema);
        held.schema = held.walk(schema, false);
        held
    }

    /// Collects references, and the definitions that are merged: those of a schema that has other
    /// parts, and theirs.
    fn collect(&mut self, root: &Value) {
        let mut open = vec![(root, false)];
        while let Some((schema, part)) = open.pop() {
            if let Value::Array(all) = schema {
                open.extend(all.iter().map(|one| (one, part)));
            }
            let Value::Object(members) = schema else { continue };
            let part = part || givers(members) > 1;
            for (key, value) in members {
                match value {
                    Value::String(reference) if key == "$ref" => {
                        self.targets.extend(reference.split('/').map(str::to_owned));
                        let name = reference.rsplit('/').next().unwrap_or_default();
                        if part && self.merged.insert(name.to_owned()) {
                            let target = root.pointer(reference.trim_start_matches('#'));
                            open.extend(target.map(|target| (target, true)));
                        }
                    }
                    Value::Object(all) if is_in(MAPS, key) => {
                        open.extend(all.values().map(|one| (one, false)));
                    }
                    _ if is_in(KNOWN, key) => {}
                    _ => open.push((value, part && key.ends_with("Of"))),
                }
            }
        }
    }

    /// A schema, which may be a part of a merged one.
    fn walk(&mut self, schema: &Value, part: bool) -> Value {
        let Value::Object(members) = schema else { return schema.clone() };
        let part = part || givers(members) > 1;
        let mut out = Map::new();
        for (key, value) in members {
            if self.holds(key, value, members) {
                // Its options exclude each other.
                let apart = key == "oneOf" && members.contains_key("discriminator");
                let kept = self.kept(key, value, part);
                out.insert(if apart { "anyOf" } else { key }.to_owned(), kept);
            }
        }
        let others = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
        if !part
            && !others.iter().any(|key| members.contains_key(*key))
            && let Some(Value::Object(properties)) = out.get_mut("properties")
        {
            for name in members.get("required").and_then(Value::as_array).into_iter().flatten() {
                properties.entry(name.as_str().unwrap_or_default()).or_insert(true.into());
            }
            out.entry("type").or_insert("object".into());
            out.insert("additionalProperties".to_owned(), false.into());
        }
        Value::Object(out)
    }

    /// Whether a grammar holds to a keyword. What it should hold to and does not is left out.
    fn holds(&mut self, key: &str, value: &Value, of: &Map<String, Value>) -> bool {
        let any_name = key == "propertyNames"
            && [json!({}), json!({"type": "string"})].contains(&self.walk(value, false));
        let mut matches = |pattern: &String| {
            self.patterns.mk_regex_for_serach(&regex_to_lark(pattern, "dw")).is_ok()
        };
        let holds = match (key, value) {
            ("format", Value::String(format)) => return is_in(FORMATS, format),
            ("uniqueItems" | "not", Value::Bool(false)) => return false,
            ("unevaluatedItems" | "unevaluatedProperties", Value::Bool(true)) => return false,
            _ if any_name => return false,
            ("pattern", Value::String(pattern)) => matches(pattern),
            ("patternProperties", Value::Object(all)) => all.keys().all(matches),
            // Of properties that may be missing it tells none from one.
            ("minProperties" | "maxProperties", count) => {
                !of.contains_key("properties")
                    || *count == 1
                        && of.get("additionalProperties").is_none_or(|more| *more == false)
            }
            ("multipleOf", Value::Number(divisor)) => divisor.as_f64() <= Some(DIVISOR),
            ("properties", Value::Object(all)) => all.len() <= PROPERTIES,
            _ => !is_in(UNKNOWN, key),
        };
        if !holds {
            self.left_out.insert(match key {
                "multipleOf" => format!("multipleOf above {DIVISOR}"),
                "properties" => format!("more than {PROPERTIES} properties of an object"),
                _ => key.to_owned(),
            });
        }
        // References may lead through keywords that nobody knows.
        let leads = self.targets.contains(key);
        holds && (leads || [HOLDERS, MAPS, KNOWN].iter().any(|words| is_in(words, key)))
    }

    fn kept(&mut self, key: &str, value: &Value, part: bool) -> Value {
        let in_place = part && key.ends_with("Of");
        match value {
            _ if is_in(KNOWN, key) => value.clone(),
            Value::Array(all) => all.iter().map(|one| self.walk(one, in_place)).collect(),
            Value::Object(all) if is_in(MAPS, key) => {
                let one = |(name, one): (&String, &Value)| {
                    let merged = self.merged.contains(name);
                    (name.clone(), self.walk(one, merged))
                };
                Value::Object(all.iter().map(one).collect())
            }
            _ => self.walk(value, in_place || self.merged.contains(key)),
        }
    }
}

/// How many parts of a schema name properties: several are merged.
fn givers(members: &Map<String, Value>) -> usize {
    let gives =
        |one: &&Value| one.as_object().is_some_and(|one| one.keys().any(|key| is_in(GIVERS, key)));
    let parts = members.iter().map(|(key, value)| match value {
        Value::Array(all) if key == "allOf" => all.iter().filter(gives).count(),
        Value::Array(all) if key.ends_with("Of") => usize::from(all.iter().any(|one| gives(&one))),
        _ => usize::from(is_in(GIVERS, key)),
    });
    parts.sum()
}
