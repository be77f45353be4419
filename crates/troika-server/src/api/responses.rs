//! OpenAI's `/v1/responses`. Nothing is kept between requests.

use serde_json::{Value, json};

use super::Answer;
use super::request::{chat_request, max_tokens, start};
use super::responses_form::{Item, ItemKind, ResponseForm, status};
use super::responses_input::messages;
use crate::chat::{ChatEvent, EndReason, Tools, Usage};
use crate::json_request::JsonRequest;
use crate::problem::Problem;
use crate::stream::{self, EventWriter};
use troika::model::answer::Delta;

pub async fn responses(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    if fields.texts("include")?.iter().any(|what| what == "message.output_text.logprobs") {
        let why = "include: /v1/chat/completions tells the probabilities of tokens";
        return Err(Problem::field("include", why));
    }
    let mut tools = Tools::read(&fields, "parameters")?.chosen(&fields)?;
    let messages = messages(&fields, &mut tools.left_out)?;
    let mut request = chat_request(&fields, &host, messages, tools)?;
    request.max_tokens = max_tokens(&fields, &["max_output_tokens"])?;
    if let Some(format) = fields.inner("text")?.value("format") {
        request.constrain = super::constrain::format(format, "text.format")?;
    }
    let form = ResponseForm::new(&fields, &host.name);
    let streams = fields.flag("stream")?;
    let answers = start(&call, &host, request).await?;
    let (done, open, reason) = (Vec::new(), None, EndReason::Stop);
    let writer = ResponseWriter { form, number: 0, done, open, reason };
    stream::answer(answers, streams, writer, |writer, answer| writer.form.whole(answer)).await
}

/// Writes events with numbers.
struct ResponseWriter {
    form: ResponseForm,
    number: usize,
    done: Vec<Value>,
    open: Option<Item>,
    reason: EndReason,
}

impl ResponseWriter {
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

    fn begin_item(&mut self, kind: ItemKind, name: &str, out: &mut String) {
        self.end_item("completed", out);
        let item = Item::new(kind, name, "");
        let begun = self.form.item(&item, "in_progress");
        let added = json!({"output_index": self.done.len(), "item": begun});
        self.send("response.output_item.added", added, out);
        self.send_part(&item, "response.content_part.added", out);
        self.open = Some(item);
    }

    fn send_part(&mut self, item: &Item, kind: &str, out: &mut String) {
        if let Some(part) = item.part() {
            self.send_of(&item.id, kind, json!({"content_index": 0, "part": part}), out);
        }
    }

    fn end_item(&mut self, status: &str, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        self.send_of(&item.id, &format!("{}.done", event(item.kind)), item.all(), out);
        self.send_part(&item, "response.content_part.done", out);
        let item = self.form.item(&item, status);
        let done = json!({"output_index": self.done.len(), "item": item});
        self.send("response.output_item.done", done, out);
        self.done.push(item);
    }

    fn delta(&mut self, delta: Delta, out: &mut String) {
        let (kind, more) = match delta {
            Delta::Content(more) => (ItemKind::Message, more),
            Delta::Reasoning(more) => (ItemKind::Reasoning, more),
            Delta::CallArguments { json, .. } => (ItemKind::Call, json),
            Delta::CallStart { name, .. } => return self.begin_item(ItemKind::Call, &name, out),
        };
        if kind != ItemKind::Call && self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.begin_item(kind, "", out);
        }
        let Some(item) = self.open.as_mut().filter(|item| item.kind == kind) else { return };
        item.text.push_str(&more);
        let id = item.id.clone();
        let news = match kind {
            ItemKind::Message => json!({"content_index": 0, "delta": more, "logprobs": []}),
            ItemKind::Reasoning => json!({"content_index": 0, "delta": more}),
            ItemKind::Call => json!({"delta": more}),
        };
        self.send_of(&id, &format!("{}.delta", event(kind)), news, out);
    }
}

/// What the events of an item's text begin with.
fn event(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Message => "response.output_text",
        ItemKind::Reasoning => "response.reasoning_text",
        ItemKind::Call => "response.function_call_arguments",
    }
}

impl EventWriter for ResponseWriter {
    fn begin(&mut self, out: &mut String) {
        let response = json!({"response": self.form.object});
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
            self.begin_item(ItemKind::Message, "", out);
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
