//! What the responses interface is given: items of a conversation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::chat::{chat_messages, full_name, text_of};
use crate::fields::Fields;
use crate::problem::Problem;

/// The messages of a request. Items of types that are not known are left out.
///
/// # Errors
/// Items of another form.
pub fn messages(
    fields: &Fields<'_>,
    left_out: &mut BTreeSet<String>,
) -> Result<Vec<Value>, Problem> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.get::<String>("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    let missing = || Problem::field("input", "input has to be a text or a list of items");
    match fields.value("input").ok_or_else(missing)? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                if !add_item(item, &mut messages)? {
                    left_out.insert(item["type"].as_str().unwrap_or_default().to_string());
                }
            }
        }
        _ => return Err(missing()),
    }
    chat_messages(Some(&messages.into())).map_err(|e| Problem { param: Some("input".into()), ..e })
}

/// Adds an item. Returns whether its type is known.
fn add_item(item: &Value, out: &mut Vec<Value>) -> Result<bool, Problem> {
    match item["type"].as_str() {
        Some("message") | None => {
            let content = text_of(&item["content"])?;
            out.push(json!({"role": item["role"], "content": content}));
        }
        // Calls by other servers, of tools that they run, have their input under other names.
        Some(kind) if kind.ends_with("_call") && item["call_id"].is_string() => {
            let name = match full_name(item) {
                Value::Null => kind.trim_end_matches("_call").into(),
                name => name,
            };
            let arguments = match (&item["arguments"], &item["input"]) {
                (Value::Null, Value::Null) => item["action"].clone(),
                (Value::Null, input) => json!({"input": input}),
                (arguments, _) => arguments.clone(),
            };
            let function = json!({"name": name, "arguments": arguments});
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
        Some(kind) if kind.ends_with("_output") && item["call_id"].is_string() => {
            let content = match &item["output"] {
                output @ Value::Object(_) => output.to_string(),
                output => text_of(output)?,
            };
            out.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}));
        }
        // What a model thought is not told to it again, as its authors have it.
        Some("reasoning") => {}
        Some(_) => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
                {"type": "function_call", "call_id": "c", "namespace": "n", "name": "f", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "*** a"},
                {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "2"}]},
                {"type": "local_shell_call", "call_id": "e", "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "call_id": "e", "output": {"exit": 0}},
                {"type": "web_search_call", "id": "ws", "action": {"type": "search"}},
                {"type": "compaction", "encrypted_content": "x"},
            ],
        });
        let call = |id: &str, name: &str, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = json!([call("a", "f", json!({"x": 1})), call("b", "g", json!({}))]);
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call("c", "n.f", json!({})), call("d", "patch", json!({"input": "*** a"}))]},
            {"role": "tool", "content": "2", "tool_call_id": "d"},
            {"role": "assistant", "content": "", "tool_calls": [call("e", "local_shell", json!({"type": "exec", "command": ["ls"]}))]},
            {"role": "tool", "content": "{\"exit\":0}", "tool_call_id": "e"},
        ]);
        let mut left_out = BTreeSet::new();
        let fields = Fields::of(body.as_object().unwrap());
        assert_eq!(json!(messages(&fields, &mut left_out).unwrap()), expected);
        assert!(left_out.iter().eq(["compaction", "web_search_call"]));
        for (input, says) in [
            (json!([]), "a text or a list"),
            (json!([{"type": "message", "content": "x"}]), "need a role"),
        ] {
            let body = json!({ "input": input });
            let fields = Fields::of(body.as_object().unwrap());
            let problem = messages(&fields, &mut BTreeSet::new()).unwrap_err();
            assert!(problem.message.contains(says), "{}", problem.message);
            assert_eq!(problem.param.as_deref(), Some("input"));
        }
    }
}
