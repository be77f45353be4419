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
    // A thought that neither a message nor a call followed.
    messages.retain(|m| {
        m["role"] != "assistant" || !m["content"].is_null() || m.get("tool_calls").is_some()
    });
    chat_messages(Some(&messages.into())).map_err(|e| Problem { param: Some("input".into()), ..e })
}

/// Adds an item. Returns whether its type is known.
fn add_item(item: &Value, out: &mut Vec<Value>) -> Result<bool, Problem> {
    match item["type"].as_str() {
        Some("message") | None => {
            match out.last_mut().filter(|last| item["role"] == "assistant" && thinks(last)) {
                Some(last) => last["content"] = text_of(&item["content"])?.into(),
                None => out.push(json!({"role": item["role"], "content": item["content"]})),
            }
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
                    out.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
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
        // It belongs to what follows: a call or a message. Templates know which thoughts to show.
        Some("reasoning") => {
            let text = |name: &str| -> String {
                let parts = item[name].as_array().into_iter().flatten();
                parts.filter_map(|part| part["text"].as_str()).collect()
            };
            let full = text("content");
            let thought = if full.is_empty() { text("summary") } else { full };
            if !thought.is_empty() {
                out.push(
                    json!({"role": "assistant", "content": null, "reasoning_content": thought}),
                );
            }
        }
        Some(_) => return Ok(false),
    }
    Ok(true)
}

/// Whether a message is a thought that waits for what follows.
fn thinks(message: &Value) -> bool {
    message["reasoning_content"].is_string()
        && message["content"].is_null()
        && message.get("tool_calls").is_none()
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
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
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
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "lost"}]},
                {"role": "user", "content": "b"},
            ],
        });
        let call = |id: &str, name: &str, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = json!([call("a", "f", json!({"x": 1})), call("b", "g", json!({}))]);
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "reasoning_content": "t", "tool_calls": calls},
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "assistant", "content": null, "tool_calls": [call("c", "n.f", json!({})), call("d", "patch", json!({"input": "*** a"}))]},
            {"role": "tool", "content": "2", "tool_call_id": "d"},
            {"role": "assistant", "content": null, "tool_calls": [call("e", "local_shell", json!({"type": "exec", "command": ["ls"]}))]},
            {"role": "tool", "content": "{\"exit\":0}", "tool_call_id": "e"},
            {"role": "assistant", "content": "a", "reasoning_content": "s"},
            {"role": "user", "content": "b"},
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
