//! The objects of the responses interface.

use serde_json::{Value, json};

use crate::chat::{ChoiceAnswer, EndReason, Usage};
use crate::fields::Fields;
use crate::ids;
use crate::problem::Problem;

/// What every form of the response says.
pub struct ResponseForm {
    object: Value,
}

impl ResponseForm {
    /// The form of a request's response.
    pub fn new(fields: &Fields<'_>, model: &str) -> ResponseForm {
        let said = |name: &str| fields.value(name).cloned().unwrap_or(Value::Null);
        let or = |name: &str, default: Value| fields.value(name).cloned().unwrap_or(default);
        let object = json!({
            "id": ids::unique("resp_"),
            "object": "response",
            "created_at": ids::now(),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "instructions": said("instructions"),
            "max_output_tokens": said("max_output_tokens"),
            "metadata": or("metadata", json!({})),
            "model": model,
            "output": [],
            "parallel_tool_calls": or("parallel_tool_calls", true.into()),
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "temperature": said("temperature"),
            "text": or("text", json!({"format": {"type": "text"}})),
            "tool_choice": or("tool_choice", "auto".into()),
            "tools": or("tools", json!([])),
            "top_p": said("top_p"),
            "truncation": "disabled",
            "usage": null,
        });
        ResponseForm { object }
    }

    /// The response while it is made.
    pub fn in_progress(&self) -> Value {
        self.object.clone()
    }

    /// The response that was made.
    pub fn complete(&self, output: Vec<Value>, reason: EndReason, usage: &Usage) -> Value {
        let mut whole = self.object.clone();
        whole["output"] = output.into();
        whole["status"] = status(reason).into();
        if reason == EndReason::Length {
            whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        whole["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        });
        whole
    }

    /// The response that failed.
    pub fn failed(&self, problem: &Problem) -> Value {
        let mut whole = self.object.clone();
        whole["status"] = "failed".into();
        whole["error"] = json!({"code": "server_error", "message": problem.message});
        whole
    }

    /// A call of a function. The namespace that its name begins with is said apart.
    pub fn call_item(&self, id: &str, name: &str, arguments: &str, status: &str) -> Value {
        let mut item = json!({
            "id": id,
            "type": "function_call",
            "status": status,
            "call_id": id.replacen("fc_", "call_", 1),
            "name": name,
            "arguments": arguments,
        });
        let tools = self.object["tools"].as_array().into_iter().flatten();
        for namespace in tools.filter(|tool| tool["type"] == "namespace") {
            let inner = name.strip_prefix(namespace["name"].as_str().unwrap_or_default());
            if let Some(inner) = inner.and_then(|rest| rest.strip_prefix('.')) {
                item["namespace"] = namespace["name"].clone();
                item["name"] = inner.into();
            }
        }
        item
    }

    /// The response as a whole.
    pub fn whole(&self, choice: &ChoiceAnswer, usage: &Usage) -> Value {
        let mut output = Vec::new();
        let reason = choice.reason.unwrap_or(EndReason::Stop);
        if !choice.reasoning.is_empty() {
            output.push(reasoning_item(&ids::unique("rs_"), &choice.reasoning, "completed"));
        }
        if !choice.content.is_empty() || choice.calls.is_empty() && choice.reasoning.is_empty() {
            output.push(message_item(&ids::unique("msg_"), &choice.content, "completed"));
        }
        for (name, arguments) in &choice.calls {
            let item = self.call_item(&ids::unique("fc_"), name, arguments, "completed");
            output.push(item);
        }
        if let Some(last) = output.last_mut() {
            last["status"] = status(reason).into();
        }
        self.complete(output, reason, usage)
    }
}

/// The status of a response, and of its last item.
pub fn status(reason: EndReason) -> &'static str {
    if reason == EndReason::Length { "incomplete" } else { "completed" }
}

/// A part with text.
pub fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// A message; one that has just begun has no parts.
pub fn message_item(id: &str, text: &str, status: &str) -> Value {
    let content = if status == "in_progress" { json!([]) } else { json!([text_part(text)]) };
    json!({
        "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
    })
}

/// A part with what the model thought.
pub fn thought_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// What the model thought.
pub fn reasoning_item(id: &str, text: &str, status: &str) -> Value {
    let content = if status == "in_progress" { json!([]) } else { json!([thought_part(text)]) };
    json!({
        "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
    })
}
