//! What is wrong with JSON that people edit, in words that do not suppose Rust.

/// A sentence for an error of `serde_json`: the place first, then what is wrong there.
pub fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (what, place) = match text.rsplit_once(" at line ") {
        Some((what, place)) => (what, format!("line {}: ", place.replace(" column", ", column"))),
        None => (text.as_str(), String::new()),
    };
    format!("{place}{}", plain(what))
}

/// Whether a field may be left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn plain(what: &str) -> String {
    let (what, expected) = match what.split_once(", expected ") {
        Some((what, expected)) => (what, Some(expected)),
        None => (what, None),
    };
    let is_value = ["invalid type: ", "invalid value: "].iter().find_map(|p| what.strip_prefix(p));
    if let (Some(value), Some(expected)) = (is_value, expected) {
        return format!("{} where {} belongs", found(value), wanted(expected));
    }
    if let (Some(count), Some(expected)) = (what.strip_prefix("invalid length "), expected) {
        return format!("a list of {count} where {} belongs", wanted(expected));
    }
    let known = expected.map_or(String::new(), |names| {
        let names = names.trim_start_matches("one of ").replace('`', "");
        format!("; known: {}", names.replace(" or ", ", "))
    });
    let quoted = |kind: &str| what.strip_prefix(kind).map(|name| name.trim_matches('`'));
    if let Some(name) = quoted("missing field ") {
        return format!("the field {name:?} is missing");
    }
    if let Some(name) = quoted("unknown field ") {
        return format!("there is no field {name:?}{known}");
    }
    if let Some(name) = quoted("unknown variant ") {
        return format!("{name:?} is not known here{known}");
    }
    if let Some(name) = quoted("duplicate field ") {
        return format!("the field {name:?} is there twice");
    }
    match what.strip_prefix("EOF while parsing ") {
        Some(inside) => format!("the text ends within {}", wanted(inside)),
        None => format!("{what}{}", expected.map_or(String::new(), |e| format!(", expected {e}"))),
    }
}

/// The value that is there.
fn found(value: &str) -> String {
    let inner = |kind: &str| value.strip_prefix(kind).map(|v| v.trim_matches('`').to_string());
    let literal = ["integer ", "floating point ", "boolean "].into_iter().find_map(inner);
    literal.unwrap_or_else(|| match value {
        "null" => "null".into(),
        "map" => "an object".into(),
        "sequence" => "a list".into(),
        "unit variant" => "a name alone".into(),
        other => other.replacen("string ", "the text ", 1),
    })
}

/// What belongs there.
fn wanted(name: &str) -> String {
    let kind = name.split_whitespace().next().unwrap_or(name);
    match kind {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number from 0 on",
        "i64" | "i32" => "a whole number",
        "f64" | "f32" => "a number",
        "struct" | "map" | "object" => "an object",
        "tuple" | "sequence" | "list" => "a list",
        "enum" | "variant" | "string" => "a name in quotes",
        "value" => "a value",
        _ => match name {
            "a boolean" => "true or false",
            "a string" => "a text in quotes",
            "a map" | "an object" => "an object",
            "a sequence" | "a list" => "a list",
            other => other,
        },
    }
    .into()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::fault;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "read to see what fails")]
    struct Sample {
        count: usize,
        part: f64,
        on: bool,
        list: Vec<u32>,
        mode: Mode,
        #[serde(default)]
        split: Option<Split>,
    }

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Split {
        Parts {
            #[expect(dead_code, reason = "read to see what fails")]
            list: Vec<u32>,
        },
    }

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
        Slow,
    }

    #[test]
    fn faults_are_said_in_plain_words() {
        let good = r#"{"count": 1, "part": 0.5, "on": true, "list": [1], "mode": "fast"}"#;
        assert!(serde_json::from_str::<Sample>(good).is_ok());
        for (from, to, said) in [
            ("1,", "\"x\",", "the text \"x\" where a whole number from 0 on belongs"),
            ("1,", "-1,", "-1 where a whole number from 0 on belongs"),
            ("1,", "1.5,", "1.5 where a whole number from 0 on belongs"),
            ("1,", "null,", "null where a whole number from 0 on belongs"),
            ("0.5", "[]", "a list where a number belongs"),
            ("true", "{}", "an object where true or false belongs"),
            ("[1]", "[-1]", "-1 where a whole number from 0 on belongs"),
            ("[1]", "3", "3 where a list belongs"),
            ("\"fast\"", "\"quick\"", "\"quick\" is not known here; known: fast, slow"),
            ("\"count\"", "\"counts\"", "there is no field \"counts\"; known: count, part, on"),
            ("\"count\": 1, ", "", "the field \"count\" is missing"),
            ("\"on\": true", "\"count\": 2", "the field \"count\" is there twice"),
            ("\"fast\"}", "\"fast\"", "the text ends within an object"),
            (
                "\"fast\"}",
                "\"fast\", \"split\": \"parts\"}",
                "a name alone where an object belongs",
            ),
            (good, "[]", "a list of 0 where an object belongs"),
        ] {
            let text = good.replacen(from, to, 1);
            let error = serde_json::from_str::<Sample>(&text).unwrap_err();
            let plain = fault(&error);
            assert!(plain.contains(said), "{plain}");
            assert!(plain.starts_with("line 1, column "), "{plain}");
            for rust in ["usize", "struct", "variant", "f64", "sequence", "`", "u32"] {
                assert!(!plain.contains(rust), "{plain}");
            }
        }
    }
}
