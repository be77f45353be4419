//! `tojson`.

use minijinja::value::{Kwargs, Serde};
use minijinja::{Error, Value as Jinja};
use serde_json::Value;

/// Most spaces a level is indented by.
pub(super) const INDENT: usize = 16;

/// Python's `json.dumps` with `ensure_ascii=False`: a space after colons and commas, no HTML
/// escapes; `indent` as in Jinja's filter.
pub(super) fn tojson(json: Serde<Value>, args: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = args.get("indent")?;
    // Arguments of Python's version that do not change the text here.
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Jinja> = args.get(ignored)?;
    }
    args.assert_all_used()?;
    let mut out = String::new();
    dump(&json, indent.map(|n| n.min(INDENT)), 0, &mut out);
    Ok(Jinja::from_safe_string(out))
}

fn dump(v: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(n) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(n * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match v {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}
