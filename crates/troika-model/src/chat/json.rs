//! `tojson`.

use minijinja::value::Kwargs;
use minijinja::{Error, State, Value as Jinja};
use serde_json::Value;

use super::limits::refuse;
use super::namespace::settle;

/// The most spaces of indentation per level.
const INDENT: usize = 16;

/// The longest separator.
const SEPARATOR: usize = 16;

/// The arguments of Python's `json.dumps`.
struct Style {
    indent: Option<usize>,
    between_items: String,
    after_key: String,
    ascii: bool,
    sorted: bool,
}

/// Python's `json.dumps` as called by the transformers library: `ensure_ascii` is off by default,
/// colons and commas are followed by a space, and nothing is escaped for HTML.
pub(super) fn tojson(state: &State, value: Jinja, args: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = args.get("indent")?;
    let separators: Option<Vec<String>> = args.get("separators")?;
    let comma = if indent.is_some() { "," } else { ", " };
    let (between_items, after_key) = match separators.as_deref() {
        None => (comma.to_string(), ": ".to_string()),
        Some([items, key]) if items.len().max(key.len()) <= SEPARATOR => {
            (items.clone(), key.clone())
        }
        Some(_) => return Err(refuse("separators are two short texts")),
    };
    let ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let indent = indent.map(|n| n.min(INDENT));
    let style = Style { indent, between_items, after_key, ascii, sorted };
    let json = serde_json::to_value(settle(state, value)?).map_err(|e| refuse(e.to_string()))?;
    let mut out = String::new();
    style.dump(&json, 0, &mut out);
    Ok(Jinja::from_safe_string(out))
}

/// Python's `json.dumps` of a value, without options but `ensure_ascii`.
pub(super) fn dumps(value: &Value) -> String {
    let (between_items, after_key, mut out) = (", ".into(), ": ".into(), String::new());
    let style = Style { indent: None, between_items, after_key, ascii: false, sorted: false };
    style.dump(value, 0, &mut out);
    out
}

impl Style {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(n) = self.indent {
            out.push('\n');
            out.push_str(&" ".repeat(n * depth));
        }
    }

    fn scalar(&self, v: &Value, out: &mut String) {
        let mut text = v.to_string();
        // Python writes exponents with a sign and two digits.
        if let (true, Some((number, exponent))) = (v.is_f64(), text.split_once('e')) {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            text = format!("{number}e{sign}{digits:0>2}");
        }
        if !self.ascii {
            return out.push_str(&text);
        }
        for c in text.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                let units = &mut [0; 2];
                c.encode_utf16(units).iter().for_each(|u| out.push_str(&format!("\\u{u:04x}")));
            }
        }
    }

    fn dump(&self, v: &Value, depth: usize, out: &mut String) {
        // Items of a list have no keys.
        let (open, close, mut items): (_, _, Vec<(Option<&String>, &Value)>) = match v {
            Value::Array(list) if !list.is_empty() => {
                ('[', ']', list.iter().map(|item| (None, item)).collect())
            }
            Value::Object(map) if !map.is_empty() => {
                ('{', '}', map.iter().map(|(key, item)| (Some(key), item)).collect())
            }
            other => return self.scalar(other, out),
        };
        if self.sorted {
            items.sort_by_key(|(key, _)| *key);
        }
        out.push(open);
        for (i, (key, item)) in items.into_iter().enumerate() {
            out.push_str(if i > 0 { &self.between_items } else { "" });
            self.line(depth + 1, out);
            if let Some(key) = key {
                self.scalar(&Value::from(key.as_str()), out);
                out.push_str(&self.after_key);
            }
            self.dump(item, depth + 1, out);
        }
        self.line(depth, out);
        out.push(close);
    }
}
