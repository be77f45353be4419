//! What the responses interface is given: items of a conversation.

use serde_json::{Value, json};

use crate::chat::{chat_messages, text_of, tool};
use crate::fields::Fields;
use crate::problem::Problem;
use troika::model::answer::ToolSpec;

/// The messages of a request.
///
/// # Errors
/// Items of another form.
pub fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, Problem> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.get::<String>("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    let missing = || Problem::field("input", "input has to be a text or a list of items");
    match fields.value("input").ok_or_else(missing)? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) if !items.is_empty() => {
            items.iter().try_for_each(|item| add_item(item, &mut messages))?;
        }
        _ => return Err(missing()),
    }
    chat_messages(Some(&messages.into())).map_err(|e| Problem { param: Some("input".into()), ..e })
}

fn add_item(item: &Value, out: &mut Vec<Value>) -> Result<(), Problem> {
    match item["type"].as_str() {
        Some("message") | None => {
            let content = text_of(&item["content"])?;
            out.push(json!({"role": item["role"], "content": content}));
        }
        Some("function_call") => {
            let function = json!({"name": item["name"], "arguments": item["arguments"]});
            let call = json!({"id": item["call_id"], "type": "function", "function": function});
            // Calls of one turn belong to one message.
            let last = out.last_mut().filter(|m| m["role"] == "assistant");
            match last.and_then(|m| m.as_object_mut()) {
                Some(last) => match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => drop(last.insert("tool_calls".into(), json!([call]))),
                },
                None => {
                    out.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
                }
            }
        }
        Some("function_call_output") => {
            let content = text_of(&item["output"])?;
            out.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}));
        }
        // What a model thought is not told to it again, as its authors have it.
        Some("reasoning") => {}
        Some(kind) => {
            let why = format!("input: an item is of type {kind}, which is not known here");
            return Err(Problem::field("input", why));
        }
    }
    Ok(())
}

/// The functions that may be called, which here have their fields outside.
///
/// # Errors
/// A tool of another type, or of another form.
pub fn tools(fields: &Fields<'_>) -> Result<Vec<ToolSpec>, Problem> {
    let list: Vec<Value> = fields.get("tools")?.unwrap_or_default();
    let one = |value: &Value| {
        if value["type"] != "function" {
            let why = format!("a tool is of type {}; functions can be called", value["type"]);
            return Err(Problem::field("tools", why));
        }
        tool(&Fields::within("tools", value)?, "parameters")
    };
    list.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::messages;
    use crate::fields::Fields;

    #[test]
    fn items_become_messages() {
        let body = json!({
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"x\":1}"},
                {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
            ],
        });
        let call = |id: &str, name: &str, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = json!([call("a", "f", json!({"x": 1})), call("b", "g", json!({}))]);
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "1", "tool_call_id": "a"},
        ]);
        assert_eq!(json!(messages(&Fields::of(body.as_object().unwrap())).unwrap()), expected);
        for (input, says) in [
            (json!([]), "a text or a list"),
            (json!([{"type": "computer_call"}]), "computer_call"),
            (json!([{"type": "message", "content": "x"}]), "need a role"),
        ] {
            let body = json!({ "input": input });
            let problem = messages(&Fields::of(body.as_object().unwrap())).unwrap_err();
            assert!(problem.message.contains(says), "{}", problem.message);
            assert_eq!(problem.param.as_deref(), Some("input"));
        }
    }
}
