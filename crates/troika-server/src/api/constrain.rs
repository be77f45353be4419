//! What an answer must follow, as clients say it.

use serde_json::Value;

use crate::fields::Fields;
use crate::grammar::Constrain;
use crate::problem::Problem;

/// Reads OpenAI's `response_format`, and the fields of vLLM and llama.cpp.
///
/// # Errors
/// A format that is not known, or several.
pub fn read(fields: &Fields<'_>) -> Result<Option<Constrain>, Problem> {
    let text = |name: &str| fields.get::<String>(name);
    let choices: Option<Vec<String>> = fields.get("guided_choice")?;
    let schema = |name: &str| fields.value(name).cloned().map(schema_or_text);
    let newer = fields.value("structured_outputs");
    let newer = newer.map(|o| structured_outputs(&Fields::within("structured_outputs", o)?));
    let all = [
        newer.transpose()?.flatten(),
        fields
            .value("response_format")
            .map(|f| format(f, "response_format"))
            .transpose()?
            .flatten(),
        schema("json_schema").map(Constrain::JsonSchema),
        schema("guided_json").map(Constrain::JsonSchema),
        text("guided_regex")?.map(Constrain::Regex),
        text("guided_grammar")?.map(Constrain::Lark),
        choices.map(Constrain::Choice),
    ];
    let mut given = all.into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(Problem::bad("an answer can follow one format only; give one of them"));
    }
    Ok(first)
}

/// vLLM's newer field, which holds one of several forms.
fn structured_outputs(fields: &Fields<'_>) -> Result<Option<Constrain>, Problem> {
    let text = |name: &str| fields.get::<String>(name);
    let choices: Option<Vec<String>> = fields.get("choice")?;
    let all = [
        fields.value("json").cloned().map(schema_or_text).map(Constrain::JsonSchema),
        fields.flag("json_object")?.then_some(Constrain::JsonObject),
        text("regex")?.map(Constrain::Regex),
        text("grammar")?.map(Constrain::Lark),
        choices.map(Constrain::Choice),
    ];
    Ok(all.into_iter().flatten().next())
}

/// A schema, which some clients send as text.
fn schema_or_text(value: Value) -> Value {
    match &value {
        Value::String(text) => serde_json::from_str(text).unwrap_or(value),
        _ => value,
    }
}

/// A format of the chat interface, or of the responses interface, where the schema is outside.
///
/// # Errors
/// A format that is not known.
pub fn format(format: &Value, name: &str) -> Result<Option<Constrain>, Problem> {
    let wrong = |why: String| Problem::field(name, format!("{name}: {why}"));
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => match &format["schema"] {
            Value::Null => Ok(Some(Constrain::JsonObject)),
            schema => Ok(Some(Constrain::JsonSchema(schema.clone()))),
        },
        Some("json_schema") => {
            let schema = match &format["json_schema"]["schema"] {
                Value::Null => &format["schema"],
                schema => schema,
            };
            match schema {
                Value::Object(_) | Value::Bool(_) => {
                    Ok(Some(Constrain::JsonSchema(schema.clone())))
                }
                _ => Err(wrong("a json_schema needs a schema, an object".into())),
            }
        }
        Some(other) => {
            Err(wrong(format!("{other:?} is none of text, json_object and json_schema")))
        }
        None => Err(wrong("it needs a type".into())),
    }
}
