//! Anthropic's `/v1/messages`.

use serde_json::{Value, json};

use super::Answer;
use crate::chat::{
    ChatAnswer, ChatEvent, ChatRequest, EndReason, ToolChoice, Tools, Usage, arguments_so_far,
    text_of, text_part, without_billing,
};
use crate::fields::Fields;
use crate::ids;
use crate::json_request::{self, JsonRequest};
use crate::open_model::InUse;
use crate::problem::{Dialect, Problem};
use crate::sampling;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;
use troika::model::answer::Delta;

pub async fn messages(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    let mut request = chat_request(&fields, &host)?;
    request.max_tokens = Some(fields.need("max_tokens")?);
    let streams = fields.flag("stream")?;
    let answers = super::request::start(&call, &host, request).await?;
    let writer = MessageWriter::new(&host.name, answers.usage.prompt);
    stream::answer(answers, streams, writer, MessageWriter::whole).await
}

pub async fn count_tokens(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let request = chat_request(&call.fields(), &host)?;
    let prompt = request.prepare(&Turn::new(&call, &host)).await?.generation.prompt;
    Ok(json_request::json(&json!({"input_tokens": prompt.len()})))
}

fn chat_request(fields: &Fields<'_>, host: &InUse) -> Result<ChatRequest, Problem> {
    let mut messages = Vec::new();
    let mut tools = tools(fields)?;
    if let Some(system) = fields.value("system") {
        let blocks = system.as_array().map_or(std::slice::from_ref(system), Vec::as_slice);
        let mut text = String::new();
        for block in blocks {
            let block = if block.is_string() { text_of(block) } else { text_of(&json!([block])) }?;
            match without_billing(&block) {
                Some(rest) => {
                    tools.left_out.insert("billing header".into());
                    text.push_str(rest);
                }
                None => text.push_str(&block),
            }
        }
        if !text.is_empty() {
            messages.push(json!({"role": "system", "content": text}));
        }
    }
    let wrong = || Problem::field("messages", "messages have to be a list of at least one");
    let list = fields.value("messages").and_then(Value::as_array);
    for message in list.filter(|list| !list.is_empty()).ok_or_else(wrong)? {
        add_message(message, &mut messages)?;
    }
    let continues =
        messages.last().is_some_and(|m| m["role"] == "assistant" && m.get("tool_calls").is_none());
    let extra = super::thinking::variables(fields, host)?;
    Ok(ChatRequest {
        messages,
        tools,
        constrain: match fields.inner("output_config")?.value("format") {
            Some(format) => super::constrain::format(format, "output_config")?,
            None => None,
        },
        params: sampling::params(fields, &host.model)?,
        stop: fields.texts("stop_sequences")?,
        choices: 1,
        fresh: super::request::fresh(fields)?,
        extra,
        thinking_budget: fields.inner("thinking")?.get("budget_tokens")?,
        split_reasoning: true,
        whole_calls: true,
        continues,
        ..ChatRequest::default()
    })
}

fn tools(fields: &Fields<'_>) -> Result<Tools, Problem> {
    let tools = Tools::read(fields, "input_schema")?;
    let Some(choice) = fields.value("tool_choice") else { return Ok(tools) };
    let single = choice["disable_parallel_tool_use"] == true;
    let choice = match choice["type"].as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => {
            let name = choice["name"].as_str();
            let missing = || Problem::field("tool_choice", "tool_choice needs the tool's name");
            ToolChoice::Named(name.ok_or_else(missing)?.to_string())
        }
        _ => {
            let why = "tool_choice has to be of type auto, any, tool or none";
            return Err(Problem::field("tool_choice", why));
        }
    };
    Tools { choice, single, ..tools }.checked()
}

/// Adds a message in OpenAI's form. Results of tools become messages of their own.
fn add_message(message: &Value, out: &mut Vec<Value>) -> Result<(), Problem> {
    let wrong = |why: &str| Problem::field("messages", format!("messages: {why}"));
    let role = message["role"].as_str().ok_or_else(|| wrong("one has no role"))?;
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(wrong(&format!("the role {role:?} is neither user nor assistant")));
    }
    let Value::Array(blocks) = &message["content"] else {
        out.push(json!({"role": role, "content": text_of(&message["content"])?}));
        return Ok(());
    };
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    let before = out.len();
    for block in blocks {
        match block["type"].as_str() {
            Some("tool_result") => {
                let id = &block["tool_use_id"];
                let content = text_of(&block["content"])?;
                out.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            Some("tool_use") => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": block["input"]},
            })),
            Some("thinking") => reasoning.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            _ => texts.push(text_of(&json!([block]))?),
        }
    }
    if texts.concat().is_empty() && out.len() > before {
        return Ok(());
    }
    let content = match (role, texts.len()) {
        ("user", 2..) => texts.iter().map(|text| text_part(text)).collect(),
        ("assistant", 0) if !calls.is_empty() => Value::Null,
        _ => texts.concat().into(),
    };
    let mut message = json!({"role": role, "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    out.push(message);
    Ok(())
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

/// Anthropic's word for the end, with the stop text.
fn end(reason: EndReason, stop_text: Option<&str>) -> (&'static str, Value) {
    match (reason, stop_text) {
        (EndReason::Stop, Some(text)) => ("stop_sequence", text.into()),
        (EndReason::Stop, None) => ("end_turn", Value::Null),
        (EndReason::Length, _) => ("max_tokens", Value::Null),
        (EndReason::ToolCalls, _) => ("tool_use", Value::Null),
    }
}

fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

struct MessageWriter {
    /// A message that says nothing as yet.
    message: Value,
    prompt_tokens: usize,
    begun: bool,
    blocks: usize,
    /// The type of the block that is being written.
    open: Option<&'static str>,
    ended: (&'static str, Value),
}

impl MessageWriter {
    fn new(model: &str, prompt_tokens: usize) -> MessageWriter {
        let message = json!({
            "id": ids::unique("msg_"),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
        });
        let ended = ("end_turn", Value::Null);
        MessageWriter { message, prompt_tokens, begun: false, blocks: 0, open: None, ended }
    }

    fn whole(self, answer: ChatAnswer) -> Value {
        let used = answer.usage;
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        let mut content = Vec::new();
        if !choice.reasoning.is_empty() {
            content.push(thinking(&choice.reasoning));
        }
        if !choice.content.is_empty() || choice.calls.is_empty() {
            content.push(json!({"type": "text", "text": choice.content}));
        }
        for (name, arguments) in &choice.calls {
            let input = arguments_so_far(arguments);
            let id = ids::unique("toolu_");
            content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        }
        let mut message = self.message;
        message["content"] = content.into();
        let reason = choice.reason.unwrap_or(EndReason::Stop);
        let (reason, sequence) = end(reason, choice.stop_text.as_deref());
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = sequence;
        message["usage"] = usage(&used);
        message
    }

    /// Writes the beginning once it is known how much of the prompt was cached.
    fn start(&mut self, cached: usize, out: &mut String) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let mut message = self.message.clone();
        let used = Usage { prompt: self.prompt_tokens, cached, ..Usage::default() };
        message["usage"] = usage(&used);
        stream::named("message_start", &json!({"type": "message_start", "message": message}), out);
        stream::named("ping", &json!({"type": "ping"}), out);
    }

    fn close(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            let index = self.blocks - 1;
            let stop = json!({"type": "content_block_stop", "index": index});
            stream::named("content_block_stop", &stop, out);
        }
    }

    /// Opens a block, unless one of the kind is open that goes on.
    fn open(&mut self, kind: &'static str, block: Value, out: &mut String) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.close(out);
        let start =
            json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        stream::named("content_block_start", &start, out);
        (self.blocks, self.open) = (self.blocks + 1, Some(kind));
    }

    fn delta(&self, delta: Value, out: &mut String) {
        let index = self.blocks.saturating_sub(1);
        let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
        stream::named("content_block_delta", &delta, out);
    }
}

impl EventWriter for MessageWriter {
    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(progress, _) => self.start(progress.cached, out),
            ChatEvent::More(_, deltas, _) => deltas.into_iter().for_each(|delta| match delta {
                Delta::Content(text) => {
                    self.open("text", json!({"type": "text", "text": ""}), out);
                    self.delta(json!({"type": "text_delta", "text": text}), out);
                }
                Delta::Reasoning(text) => {
                    self.open("thinking", thinking(""), out);
                    self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
                }
                Delta::CallStart { name, .. } => {
                    let id = ids::unique("toolu_");
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.open("tool_use", block, out);
                }
                Delta::CallArguments { json, .. } => {
                    self.delta(json!({"type": "input_json_delta", "partial_json": json}), out);
                }
            }),
            ChatEvent::End(_, reason, stop_text) => {
                self.ended = end(reason, stop_text.as_deref());
            }
        }
    }

    fn end(&mut self, all: &Usage, out: &mut String) {
        self.start(all.cached, out);
        self.close(out);
        let (reason, sequence) = &self.ended;
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let delta = json!({"type": "message_delta", "delta": delta, "usage": usage(all)});
        stream::named("message_delta", &delta, out);
        stream::named("message_stop", &json!({"type": "message_stop"}), out);
    }

    fn problem(&mut self, problem: &Problem, out: &mut String) {
        stream::named("error", &problem.body(Dialect::Anthropic), out);
    }
}
