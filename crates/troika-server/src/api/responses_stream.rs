//! The events of the responses interface.

use serde_json::{Value, json};

use super::responses_form::{
    ResponseForm, message_item, reasoning_item, status, text_part, thought_part,
};
use crate::chat::{ChatAnswer, ChatEvent, EndReason, Usage};
use crate::ids;
use crate::problem::Problem;
use crate::stream::{self, EventWriter};
use troika::model::answer::Delta;

/// The item that is being written.
enum Item {
    Message { id: String, text: String },
    Reasoning { id: String, text: String },
    Call { id: String, name: String, arguments: String },
}

impl Item {
    fn id(&self) -> &str {
        match self {
            Item::Message { id, .. } | Item::Reasoning { id, .. } | Item::Call { id, .. } => id,
        }
    }

    fn json(&self, form: &ResponseForm, status: &str) -> Value {
        match self {
            Item::Message { id, text } => message_item(id, text, status),
            Item::Reasoning { id, text } => reasoning_item(id, text, status),
            Item::Call { id, name, arguments } => form.call_item(id, name, arguments, status),
        }
    }
}

/// Writes events with numbers.
pub struct ResponseWriter {
    form: ResponseForm,
    number: usize,
    done: Vec<Value>,
    open: Option<Item>,
    reason: EndReason,
}

impl ResponseWriter {
    /// A writer at the start of a response.
    pub fn new(form: ResponseForm) -> ResponseWriter {
        let (done, open, reason) = (Vec::new(), None, EndReason::Stop);
        ResponseWriter { form, number: 0, done, open, reason }
    }

    /// The response as a whole.
    pub fn whole(self, answer: ChatAnswer) -> Value {
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        self.form.whole(&choice, &answer.usage)
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut String) {
        event["type"] = kind.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        stream::named(kind, &event, out);
    }

    /// An event of the open item.
    fn send_of(&mut self, id: &str, kind: &str, mut event: Value, out: &mut String) {
        event["item_id"] = id.into();
        event["output_index"] = self.done.len().into();
        self.send(kind, event, out);
    }

    fn begin_item(&mut self, item: Item, out: &mut String) {
        self.end_item("completed", out);
        let index = self.done.len();
        let added = json!({"output_index": index, "item": item.json(&self.form, "in_progress")});
        self.send("response.output_item.added", added, out);
        let part = match &item {
            Item::Message { .. } => Some(text_part("")),
            Item::Reasoning { .. } => Some(thought_part("")),
            Item::Call { .. } => None,
        };
        if let Some(part) = part {
            let part = json!({"content_index": 0, "part": part});
            self.send_of(item.id(), "response.content_part.added", part, out);
        }
        self.open = Some(item);
    }

    fn end_item(&mut self, status: &str, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        let id = item.id().to_string();
        match &item {
            Item::Message { text, .. } => {
                let all = json!({"content_index": 0, "text": text, "logprobs": []});
                self.send_of(&id, "response.output_text.done", all, out);
                let part = json!({"content_index": 0, "part": text_part(text)});
                self.send_of(&id, "response.content_part.done", part, out);
            }
            Item::Reasoning { text, .. } => {
                let all = json!({"content_index": 0, "text": text});
                self.send_of(&id, "response.reasoning_text.done", all, out);
                let part = json!({"content_index": 0, "part": thought_part(text)});
                self.send_of(&id, "response.content_part.done", part, out);
            }
            Item::Call { name, arguments, .. } => {
                let all = json!({"name": name, "arguments": arguments});
                self.send_of(&id, "response.function_call_arguments.done", all, out);
            }
        }
        let item = item.json(&self.form, status);
        let done = json!({"output_index": self.done.len(), "item": item});
        self.send("response.output_item.done", done, out);
        self.done.push(item);
    }

    fn delta(&mut self, delta: Delta, out: &mut String) {
        let (id, kind, event) = match delta {
            Delta::Content(more) => {
                if !matches!(self.open, Some(Item::Message { .. })) {
                    let id = ids::unique("msg_");
                    self.begin_item(Item::Message { id, text: String::new() }, out);
                }
                let Some(Item::Message { id, text }) = &mut self.open else { return };
                text.push_str(&more);
                let event = json!({"content_index": 0, "delta": more, "logprobs": []});
                (id.clone(), "response.output_text.delta", event)
            }
            Delta::Reasoning(more) => {
                if !matches!(self.open, Some(Item::Reasoning { .. })) {
                    let id = ids::unique("rs_");
                    self.begin_item(Item::Reasoning { id, text: String::new() }, out);
                }
                let Some(Item::Reasoning { id, text }) = &mut self.open else { return };
                text.push_str(&more);
                let event = json!({"content_index": 0, "delta": more});
                (id.clone(), "response.reasoning_text.delta", event)
            }
            Delta::CallStart { name, .. } => {
                let (id, arguments) = (ids::unique("fc_"), String::new());
                self.begin_item(Item::Call { id, name, arguments }, out);
                return;
            }
            Delta::CallArguments { json, .. } => {
                let Some(Item::Call { id, arguments, .. }) = &mut self.open else { return };
                arguments.push_str(&json);
                let event = json!({"delta": json});
                (id.clone(), "response.function_call_arguments.delta", event)
            }
        };
        self.send_of(&id, kind, event, out);
    }
}

impl EventWriter for ResponseWriter {
    fn begin(&mut self, out: &mut String) {
        let response = json!({"response": self.form.in_progress()});
        self.send("response.created", response.clone(), out);
        self.send("response.in_progress", response, out);
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::More(_, deltas, _) => {
                deltas.into_iter().for_each(|delta| self.delta(delta, out));
            }
            ChatEvent::Prompt(..) => {}
            ChatEvent::End(_, reason, _) => self.reason = reason,
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        if self.open.is_none() && self.done.is_empty() {
            let id = ids::unique("msg_");
            self.begin_item(Item::Message { id, text: String::new() }, out);
        }
        self.end_item(status(self.reason), out);
        let response = self.form.complete(std::mem::take(&mut self.done), self.reason, usage);
        let kind = match self.reason {
            EndReason::Length => "response.incomplete",
            _ => "response.completed",
        };
        self.send(kind, json!({ "response": response }), out);
    }

    fn problem(&mut self, problem: &Problem, out: &mut String) {
        let response = json!({"response": self.form.failed(problem)});
        self.send("response.failed", response, out);
    }
}
