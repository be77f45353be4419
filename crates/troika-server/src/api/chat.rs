//! OpenAI's `/v1/chat/completions`.

use std::time::Duration;

use serde_json::{Value, json};
use troika::engine::PromptProgress;
use troika::model::tokenizer::Tokenizer;

use super::Answer;
use super::request::{chat_request, start, top_logprobs};
use crate::chat::{
    ChatAnswer, ChatEvent, ChoiceAnswer, EndReason, TokenLogprob, Tools, Usage, chat_messages,
};
use crate::fields::Fields;
use crate::ids;
use crate::json_request::JsonRequest;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::stream::{self, EventWriter};
use troika::model::answer::Delta;

pub async fn chat(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    if fields.value("web_search_options").is_some() {
        let why = "web_search_options cannot be honoured: nothing is searched";
        return Err(Problem::field("web_search_options", why));
    }
    let tools = Tools::read(&fields, "parameters")?.chosen(&fields)?;
    let mut request =
        chat_request(&fields, &host, chat_messages(fields.value("messages"))?, tools)?;
    request.logprobs = top_logprobs(&fields)?;
    if fields.value("top_logprobs").is_some() && request.logprobs.is_none() {
        return Err(Problem::field("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    let form = AnswerForm::new("chatcmpl-", &fields, &host, request.logprobs.is_some())?;
    let streams = fields.flag("stream")?;
    let choices = request.choices;
    let answers = start(&call, &host, request).await?;
    let writer = ChatWriter { form, choices };
    stream::answer(answers, streams, writer, |writer, answer| writer.form.whole(&answer)).await
}

/// OpenAI's usage.
fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// What llama.cpp's server tells of the time that the first answer took, under the same names.
pub fn timings(usage: &Usage) -> Value {
    let stats = &usage.first;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let each = |time, n: usize| ms(time) / n.max(1) as f64;
    json!({
        "cache_n": stats.cached_tokens,
        "prompt_n": stats.computed_tokens,
        "prompt_ms": ms(stats.ttft),
        "prompt_per_token_ms": each(stats.ttft, stats.computed_tokens),
        "prompt_per_second": stats.prefill_rate(),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": ms(stats.decode),
        "predicted_per_token_ms": each(stats.decode, stats.generated_tokens),
        "predicted_per_second": stats.decode_rate(),
    })
}

/// How far a prompt is read, as llama.cpp's server says it.
pub fn prompt_progress(progress: PromptProgress, time: Duration) -> Value {
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let PromptProgress { total, cached, done } = progress;
    json!({"total": total, "cache": cached, "processed": done, "time_ms": time_ms})
}

/// A token's probability, as the chat interface says it.
pub fn token_logprob(tokenizer: Option<&Tokenizer>, of: &TokenLogprob) -> Value {
    let one = |token: u32, logprob: f32| {
        let bytes = tokenizer.and_then(|t| t.token_bytes(token)).unwrap_or_default();
        json!({
            "token": String::from_utf8_lossy(&bytes),
            "logprob": finite(logprob),
            "bytes": bytes,
        })
    };
    let mut chosen = one(of.token, of.logprobs.chosen);
    let top = of.logprobs.top.iter().map(|(token, logprob)| one(*token, *logprob));
    chosen["top_logprobs"] = top.collect();
    chosen
}

/// JSON has no infinity: OpenAI says -9999 for what is impossible.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// What every part of an answer says, to a conversation or to a text.
pub struct AnswerForm {
    id: String,
    created: u64,
    /// Whether tokens have probabilities.
    pub logprobs: bool,
    /// Whether a stream ends with its usage.
    with_usage: bool,
    /// Whether a stream tells how far the prompt is read.
    with_progress: bool,
    pub host: InUse,
}

impl AnswerForm {
    /// The form of an answer whose name begins with `prefix`.
    pub fn new(
        prefix: &str,
        fields: &Fields<'_>,
        host: &InUse,
        logprobs: bool,
    ) -> Result<AnswerForm, Problem> {
        let with_usage = fields.inner("stream_options")?.flag("include_usage")?;
        let with_progress = fields.flag("return_progress")?;
        let (created, host) = (ids::since_1970().as_secs(), host.clone());
        let id = ids::unique(prefix);
        Ok(AnswerForm { id, created, logprobs, with_usage, with_progress, host })
    }

    fn logprobs(&self, list: &[TokenLogprob]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let tokenizer = self.host.model.tokenizer();
        let content: Vec<Value> = list.iter().map(|l| token_logprob(tokenizer, l)).collect();
        json!({"content": content, "refusal": null})
    }

    /// An object with answers, or with news of them.
    pub fn object(&self, kind: &str, choices: Value) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.host.name,
            "system_fingerprint": concat!("troika-", env!("CARGO_PKG_VERSION")),
        });
        if self.with_usage {
            object["usage"] = Value::Null;
        }
        object["choices"] = choices;
        object
    }

    /// An object with the usage.
    pub fn counted(&self, kind: &str, choices: Value, all: &Usage) -> Value {
        let mut object = self.object(kind, choices);
        (object["usage"], object["timings"]) = (usage(all), timings(all));
        object
    }

    /// Writes how far the prompt is read, if that is asked for, with a choice that says nothing new.
    pub fn progress(
        &self,
        (kind, choice): (&str, Value),
        (progress, time): (PromptProgress, Duration),
        out: &mut String,
    ) {
        if self.with_progress {
            let mut object = self.object(kind, json!([choice]));
            object["prompt_progress"] = prompt_progress(progress, time);
            stream::data(&object, out);
        }
    }

    pub fn end(&self, kind: &str, all: &Usage, out: &mut String) {
        if self.with_usage {
            stream::data(&self.counted(kind, json!([]), all), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn whole(&self, answer: &ChatAnswer) -> Value {
        let choice = |(index, choice): (usize, &ChoiceAnswer)| {
            let reason = choice.reason.map_or("stop", EndReason::name);
            json!({
                "index": index,
                "message": message(choice),
                "logprobs": self.logprobs(&choice.logprobs),
                "finish_reason": reason,
            })
        };
        let choices = answer.choices.iter().enumerate().map(choice).collect();
        self.counted("chat.completion", choices, &answer.usage)
    }
}

fn function_call(name: &str, arguments: &str) -> Value {
    json!({
        "id": ids::unique("call_"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    })
}

fn message(choice: &ChoiceAnswer) -> Value {
    let mut message = json!({"role": "assistant", "content": choice.content, "refusal": null});
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = choice.reasoning.clone().into();
    }
    if !choice.calls.is_empty() {
        if choice.content.is_empty() {
            message["content"] = Value::Null;
        }
        let calls = choice.calls.iter().map(|(name, arguments)| function_call(name, arguments));
        message["tool_calls"] = calls.collect();
    }
    message
}

/// The kind of object of a chunk.
const CHUNK: &str = "chat.completion.chunk";

struct ChatWriter {
    form: AnswerForm,
    choices: usize,
}

impl ChatWriter {
    fn chunk(&self, index: usize, delta: Value, logprobs: &[TokenLogprob], out: &mut String) {
        self.write(news(index, delta, self.form.logprobs(logprobs), None), out);
    }

    fn write(&self, choice: Value, out: &mut String) {
        stream::data(&self.form.object(CHUNK, json!([choice])), out);
    }
}

/// What a chunk says of an answer.
fn news(index: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

/// A delta as OpenAI says it.
fn delta(delta: Delta) -> Value {
    let call = |index: usize, mut call: Value| {
        call["index"] = index.into();
        json!({"tool_calls": [call]})
    };
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::CallStart { index, name } => call(index, function_call(&name, "")),
        Delta::CallArguments { index, json } => {
            call(index, json!({"function": {"arguments": json}}))
        }
    }
}

impl EventWriter for ChatWriter {
    fn begin(&mut self, out: &mut String) {
        for index in 0..self.choices {
            self.chunk(index, json!({"role": "assistant", "content": ""}), &[], out);
        }
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(progress, time) => {
                let nothing = news(0, json!({}), Value::Null, None);
                self.form.progress((CHUNK, nothing), (progress, time), out);
            }
            ChatEvent::More(index, deltas, mut logprobs) => {
                if deltas.is_empty() {
                    self.chunk(index, json!({}), &logprobs, out);
                }
                for one in deltas {
                    self.chunk(index, delta(one), &std::mem::take(&mut logprobs), out);
                }
            }
            ChatEvent::End(index, reason, _) => {
                self.write(news(index, json!({}), Value::Null, Some(reason.name())), out);
            }
        }
    }

    fn end(&mut self, all: &Usage, out: &mut String) {
        self.form.end(CHUNK, all, out);
    }
}
