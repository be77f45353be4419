//! Whether and how much a model is to think, in the words of every interface.

use serde_json::{Map, Value};

use crate::fields::Fields;
use crate::open_model::InUse;
use crate::problem::Problem;

/// The variables of the chat template: those of the request, and what it says about thinking.
///
/// # Errors
/// A field of another type, or a word that says nothing about thinking.
pub fn variables(fields: &Fields<'_>, host: &InUse) -> Result<Map<String, Value>, Problem> {
    of(fields, host.model.template(false).unwrap_or_default())
}

fn of(fields: &Fields<'_>, template: &str) -> Result<Map<String, Value>, Problem> {
    let mut variables: Map<String, Value> = fields.get("chat_template_kwargs")?.unwrap_or_default();
    let given = |name: &str| variables.get(name).and_then(Value::as_bool);
    let mut on = given("enable_thinking").or(given("thinking")).or(fields.get("enable_thinking")?);
    let mut effort: Option<String> = fields.get("reasoning_effort")?;
    for (name, switch) in [("reasoning", "enabled"), ("output_config", "")] {
        let inner = fields.inner(name)?;
        effort = effort.or(inner.get("effort")?);
        on = on.or(inner.get(switch)?);
    }
    on = on.or(match fields.value("thinking") {
        None => None,
        Some(Value::Bool(on)) => Some(*on),
        Some(thinking) => match thinking["type"].as_str() {
            Some("enabled" | "adaptive" | "auto") => Some(true),
            Some("disabled") => Some(false),
            _ => {
                let why = "thinking has to be of type enabled, adaptive or disabled";
                return Err(Problem::field("thinking", why));
            }
        },
    });
    match fields.value("think") {
        None => {}
        Some(Value::Bool(think)) => on = on.or(Some(*think)),
        Some(Value::String(word)) if ["low", "medium", "high", "max"].contains(&word.as_str()) => {
            effort = effort.or(Some(word.clone()));
        }
        Some(_) => {
            let why = "think has to be true, false, \"low\", \"medium\", \"high\" or \"max\"";
            return Err(Problem::field("think", why));
        }
    }
    if let Some(word) = effort {
        on = on.or(Some(word != "none"));
        variables.entry("reasoning_effort").or_insert(read(&word, template).into());
    }
    if let Some(on) = on {
        // The second is DeepSeek's.
        for name in ["enable_thinking", "thinking"] {
            variables.entry(name).or_insert(on.into());
        }
    }
    Ok(variables)
}

/// The word that a template reads for an effort: the nearest of the three that all know, where it
/// names some words but not this one.
fn read<'w>(word: &'w str, template: &str) -> &'w str {
    let names =
        |word: &str| ["'", "\""].iter().any(|q| template.contains(&format!("{q}{word}{q}")));
    let some = ["low", "medium", "high"].into_iter().any(names);
    match word {
        word if !some || names(word) => word,
        "none" | "minimal" => "low",
        "xhigh" if names("max") => "max",
        "max" if names("xhigh") => "xhigh",
        "xhigh" | "max" => "high",
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{of, read};
    use crate::fields::Fields;

    #[test]
    fn every_spelling_becomes_what_templates_read() {
        let kwargs = |value: Value| json!({"chat_template_kwargs": value});
        for (body, on, effort) in [
            (json!({}), None, None),
            (json!({"reasoning_effort": "none"}), Some(false), Some("none")),
            (json!({"reasoning_effort": "minimal"}), Some(true), Some("minimal")),
            (json!({"reasoning": {"effort": "none"}}), Some(false), Some("none")),
            (
                json!({"reasoning": {"effort": "xhigh", "summary": "auto"}}),
                Some(true),
                Some("xhigh"),
            ),
            (json!({"reasoning": {"enabled": false}}), Some(false), None),
            (json!({"reasoning": {"effort": null}}), None, None),
            (json!({"thinking": {"type": "adaptive"}}), Some(true), None),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 9}}), Some(true), None),
            (json!({"thinking": {"type": "disabled"}}), Some(false), None),
            (json!({"output_config": {"effort": "high"}}), Some(true), Some("high")),
            (
                json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}),
                Some(false),
                Some("low"),
            ),
            (json!({"think": true}), Some(true), None),
            (json!({"think": false}), Some(false), None),
            (json!({"think": "low"}), Some(true), Some("low")),
            (json!({"enable_thinking": false}), Some(false), None),
            (kwargs(json!({"thinking": true})), Some(true), None),
            (
                kwargs(json!({"enable_thinking": false, "reasoning_effort": "x"})),
                Some(false),
                Some("x"),
            ),
        ] {
            let variables = of(&Fields::of(body.as_object().unwrap()), "").unwrap();
            let on = on.map(Value::from);
            assert_eq!(variables.get("enable_thinking"), on.as_ref(), "{body}");
            assert_eq!(variables.get("thinking"), on.as_ref(), "{body}");
            assert_eq!(variables.get("reasoning_effort").and_then(Value::as_str), effort, "{body}");
        }
        for body in [json!({"think": "x"}), json!({"thinking": {}}), json!({"reasoning": 1})] {
            assert!(of(&Fields::of(body.as_object().unwrap()), "").is_err(), "{body}");
        }
    }

    #[test]
    fn efforts_that_a_template_does_not_name_become_its_nearest() {
        for (word, template, is) in [
            ("max", "{{ reasoning_effort }}", "max"),
            ("max", "{% set e = \"medium\" %}", "high"),
            ("minimal", "{% set e = 'medium' %}", "low"),
            ("none", "{% if e == 'none' or e == 'high' %}", "none"),
            ("xhigh", "'max' 'high'", "max"),
            ("low", "'medium'", "low"),
        ] {
            assert_eq!(read(word, template), is, "{word} {template}");
        }
    }
}
