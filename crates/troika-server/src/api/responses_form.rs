//! The objects of the responses interface.

use serde_json::{Value, json};

use crate::chat::{ChatAnswer, EndReason, Usage};
use crate::fields::Fields;
use crate::ids;
use crate::problem::Problem;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    Message,
    Reasoning,
    Call,
}

pub struct Item {
    pub kind: ItemKind,
    pub id: String,
    /// The name of a call.
    name: String,
    /// The text, or the arguments of a call.
    pub text: String,
}

impl Item {
    pub fn new(kind: ItemKind, name: &str, text: &str) -> Item {
        let id = ids::unique(match kind {
            ItemKind::Message => "msg_",
            ItemKind::Reasoning => "rs_",
            ItemKind::Call => "fc_",
        });
        Item { kind, id, name: name.into(), text: text.into() }
    }

    /// The part with its text; a call has none.
    pub fn part(&self) -> Option<Value> {
        let text = &self.text;
        match self.kind {
            ItemKind::Message => Some(
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            ),
            ItemKind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            ItemKind::Call => None,
        }
    }

    /// What is told when all of it is there.
    pub fn all(&self) -> Value {
        match self.kind {
            ItemKind::Message => json!({"content_index": 0, "text": self.text, "logprobs": []}),
            ItemKind::Reasoning => json!({"content_index": 0, "text": self.text}),
            ItemKind::Call => json!({"name": self.name, "arguments": self.text}),
        }
    }
}

/// What every form of the response says.
pub struct ResponseForm {
    /// The response while it is made.
    pub object: Value,
}

impl ResponseForm {
    pub fn new(fields: &Fields<'_>, model: &str) -> ResponseForm {
        let said = |name: &str| fields.value(name).cloned().unwrap_or(Value::Null);
        let or = |name: &str, default: Value| fields.value(name).cloned().unwrap_or(default);
        let object = json!({
            "id": ids::unique("resp_"),
            "object": "response",
            "created_at": ids::since_1970().as_secs(),
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

    pub fn failed(&self, problem: &Problem) -> Value {
        let mut whole = self.object.clone();
        whole["status"] = "failed".into();
        whole["error"] = json!({"code": "server_error", "message": problem.message});
        whole
    }

    /// An item; one that has just begun has no parts. The namespace that the name of a call begins
    /// with is said apart.
    pub fn item(&self, item: &Item, status: &str) -> Value {
        let Item { kind, id, name, text } = item;
        let content = Vec::from_iter(item.part().filter(|_| status != "in_progress"));
        let mut item = match kind {
            ItemKind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": content,
            }),
            ItemKind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": content,
            }),
            ItemKind::Call => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": id.replacen("fc_", "call_", 1),
                "name": name,
                "arguments": text,
            }),
        };
        if *kind != ItemKind::Call {
            return item;
        }
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

    pub fn whole(&self, answer: ChatAnswer) -> Value {
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        let mut items = Vec::new();
        let reason = choice.reason.unwrap_or(EndReason::Stop);
        if !choice.reasoning.is_empty() {
            items.push(Item::new(ItemKind::Reasoning, "", &choice.reasoning));
        }
        if !choice.content.is_empty() || choice.calls.is_empty() && choice.reasoning.is_empty() {
            items.push(Item::new(ItemKind::Message, "", &choice.content));
        }
        let call =
            |(name, arguments): &(String, String)| Item::new(ItemKind::Call, name, arguments);
        items.extend(choice.calls.iter().map(call));
        let mut output: Vec<Value> =
            items.iter().map(|item| self.item(item, "completed")).collect();
        if let Some(last) = output.last_mut() {
            last["status"] = status(reason).into();
        }
        self.complete(output, reason, &answer.usage)
    }
}

/// The status of a response, and of its last item.
pub fn status(reason: EndReason) -> &'static str {
    if reason == EndReason::Length { "incomplete" } else { "completed" }
}
