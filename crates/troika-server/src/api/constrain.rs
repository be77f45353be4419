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
    let newer = fields.inner("structured_outputs")?;
    let object = newer.flag("json_object")?.then_some(Constrain::JsonObject);
    let newer = guided(&newer, "")?.into_iter().chain([object]).flatten().next();
    let form = match fields.value("response_format") {
        Some(form) => format(form, "response_format")?,
        None => None,
    };
    let all = guided(fields, "guided_")?.into_iter();
    let mut given = all.chain([newer, form, schema(fields, "json_schema")]).flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(Problem::bad("an answer can follow one format only; give one of them"));
    }
    Ok(first)
}

/// vLLM's forms, whose names begin so; in its newer field, which holds one of them, with nothing.
fn guided(fields: &Fields<'_>, prefix: &str) -> Result<[Option<Constrain>; 4], Problem> {
    let name = |form: &str| format!("{prefix}{form}");
    Ok([
        schema(fields, &name("json")),
        fields.get(&name("regex"))?.map(Constrain::Regex),
        fields.get(&name("grammar"))?.map(Constrain::Lark),
        fields.get(&name("choice"))?.map(Constrain::Choice),
    ])
}

/// A schema, which some clients send as text.
fn schema(fields: &Fields<'_>, name: &str) -> Option<Constrain> {
    let value = fields.value(name)?;
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    Some(Constrain::JsonSchema(parsed.unwrap_or_else(|| value.clone())))
}

/// A known format of the chat interface, or of the responses one, where the schema is outside.
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
