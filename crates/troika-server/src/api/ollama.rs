//! Ollama's `/api/chat` and `/api/generate`.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

use axum::response::Response;
use serde_json::{Value, json};
use troika::Request;

use super::Answer;
use super::chat::token_logprob;
use super::prompts::Prompt;
use super::request::{max_tokens, top_logprobs};
use crate::chat::{
    ChatAnswer, ChatEvent, ChatRequest, ChatStream, ChoiceAnswer, EndReason, Prepared,
    TokenLogprob, Tools, Usage, arguments_so_far, chat_messages,
};
use crate::completion::Generation;
use crate::fields::Fields;
use crate::grammar::Constrain;
use crate::ids;
use crate::json_request::{self, JsonRequest};
use crate::open_model::InUse;
use crate::problem::{Dialect, Problem};
use crate::sampling;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;
use troika::model::answer::Delta;
use troika::model::chat::rfc3339;

/// Which of the two is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Chat,
    Generate,
}

pub async fn chat(call: JsonRequest) -> Answer {
    let fields = call.fields();
    let messages = fields.value("messages");
    let mut list = messages.and_then(Value::as_array).into_iter().flatten();
    if list.any(|m| m["images"].as_array().is_some_and(|images| !images.is_empty())) {
        // In Ollama's words.
        let why = "this model is missing data required for image input: it reads text only";
        return Err(Problem::field("images", why));
    }
    let says = messages.is_some_and(|m| m.as_array().is_none_or(|m| !m.is_empty()));
    let form = match begin(&call, Verb::Chat, says).await? {
        Continue(form) => form,
        Break(done) => return Ok(done),
    };
    let host = form.host.clone();
    let tools = Tools::read(&fields, "parameters")?;
    let request = chat_request(&fields, &host, chat_messages(messages)?, tools)?;
    let answers = super::request::start(&call, &host, request).await?;
    form.respond(answers, &fields).await
}

/// Goes on with a prompt, through the chat template unless it is raw.
pub async fn generate(call: JsonRequest) -> Answer {
    let fields = call.fields();
    let prompt: String = fields.get("prompt")?.unwrap_or_default();
    let form = match begin(&call, Verb::Generate, !prompt.is_empty()).await? {
        Continue(form) => form,
        Break(done) => return Ok(done),
    };
    let host = form.host.clone();
    let suffix: Option<String> = fields.get("suffix")?.filter(|suffix: &String| !suffix.is_empty());
    let answers = if fields.flag("raw")? || suffix.is_some() {
        raw(&host, &call, prompt, suffix).await?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = fields.get::<String>("system")? {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": prompt}));
        let request = chat_request(&fields, &host, messages, Tools::default())?;
        super::request::start(&call, &host, request).await?
    };
    form.respond(answers, &fields).await
}

/// Opens the model, and keeps it open for as long as is asked. A request that says nothing does no
/// more than that, or closes it.
async fn begin(
    call: &JsonRequest,
    verb: Verb,
    says: bool,
) -> Result<ControlFlow<Response, OllamaForm>, Problem> {
    let asked = Instant::now();
    let fields = call.fields();
    let kept = keep_alive(&fields)?;
    if !says && kept == Some(Some(Duration::ZERO)) {
        let model: String = fields.need("model")?;
        call.server.models.unload(&model).await;
        let done = object(verb, &model, "", Some("unload"));
        return Ok(Break(json_request::json(&done)));
    }
    let host = call.host().await?;
    if let Some(time) = kept {
        host.keep(time);
    }
    if !says {
        return Ok(Break(json_request::json(&object(verb, &host.name, "", Some("load")))));
    }
    Ok(Continue(OllamaForm { verb, host, asked, loaded: asked.elapsed() }))
}

/// How long a model is to stay open, as Go writes times: `None` is for ever.
pub fn keep_alive(fields: &Fields<'_>) -> Result<Option<Option<Duration>>, Problem> {
    let seconds = match fields.value("keep_alive") {
        None => return Ok(None),
        Some(Value::Number(n)) => n.as_f64(),
        Some(Value::String(text)) => go_seconds(text),
        Some(_) => None,
    };
    let seconds = seconds.ok_or_else(|| {
        let must = "keep_alive has to be a number of seconds, or a time such as 5m or 1h30m";
        Problem::field("keep_alive", must)
    })?;
    // What is below nothing, or beyond all times, is for ever.
    Ok(Some(Duration::try_from_secs_f64(seconds).ok()))
}

/// The seconds of a time such as `1h30m`; without a unit it is of seconds.
fn go_seconds(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 6] =
        [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut sum = None;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, more) = rest.split_at(end);
        let unit = UNITS.iter().find(|(unit, _)| more.starts_with(unit));
        let (unit, seconds) = unit.copied().unwrap_or(("", 1.0));
        rest = &more[unit.len()..];
        if unit.is_empty() && !rest.is_empty() {
            return None;
        }
        sum = Some(sum.unwrap_or(0.0) + sign * number.parse::<f64>().ok()? * seconds);
    }
    sum
}

/// The prompt as it is, or what is between it and a suffix.
async fn raw(
    host: &InUse,
    call: &JsonRequest,
    prompt: String,
    suffix: Option<String>,
) -> Result<ChatStream, Problem> {
    // What messages would say is in the prompt.
    let request = chat_request(&call.fields(), host, Vec::new(), Tools::default())?;
    let turn = Turn::new(call, host);
    let bytes = prompt.len() + suffix.as_ref().map_or(0, String::len);
    let tokenize = move |host: &InUse| {
        let prompt = Prompt::of_text(&prompt, host)?;
        Ok(match suffix {
            Some(suffix) => prompt.before(&suffix, host)?.ids,
            None => prompt.ids,
        })
    };
    let prompt = turn.prepare(bytes, tokenize).await?;
    let grammar = turn.grammar(request.constrain).await?;
    let max_tokens = call.server.options.max_tokens.into_iter().chain(request.max_tokens).min();
    let ChatRequest { params, stop, logprobs, .. } = request;
    let request = Request { params, max_tokens, stop, logprobs, ..Request::default() };
    let generation = Generation { prompt, request, choices: 1, grammar, ..Generation::default() };
    Prepared::plain(generation).start(&turn).await
}

fn chat_request(
    fields: &Fields<'_>,
    host: &InUse,
    messages: Vec<Value>,
    tools: Tools,
) -> Result<ChatRequest, Problem> {
    let options = fields.inner("options")?;
    let constrain = match fields.value("format") {
        None => None,
        Some(Value::String(name)) if name.is_empty() => None,
        Some(Value::String(name)) if name == "json" => Some(Constrain::JsonObject),
        Some(Value::Object(schema)) => Some(Constrain::JsonSchema(schema.clone().into())),
        Some(_) => {
            return Err(Problem::field("format", "format has to be \"json\" or a JSON schema"));
        }
    };
    Ok(ChatRequest {
        messages,
        tools,
        constrain,
        params: sampling::params(&options, &host.model)?,
        max_tokens: max_tokens(&options, &["num_predict"])?,
        stop: options.texts("stop")?,
        choices: 1,
        logprobs: top_logprobs(fields)?,
        extra: super::thinking::variables(fields, host)?,
        split_reasoning: true,
        whole_calls: true,
        ..ChatRequest::default()
    })
}

/// An answer, or the end of one with its reason.
fn object(verb: Verb, model: &str, text: &str, end: Option<&str>) -> Value {
    let mut object = json!({"model": model, "created_at": rfc3339(ids::since_1970())});
    match verb {
        Verb::Chat => object["message"] = json!({"role": "assistant", "content": text}),
        Verb::Generate => object["response"] = text.into(),
    }
    object["done"] = end.is_some().into();
    if let Some(reason) = end {
        object["done_reason"] = reason.into();
    }
    object
}

struct OllamaForm {
    verb: Verb,
    host: InUse,
    asked: Instant,
    /// How long the model took to open, if it was not.
    loaded: Duration,
}

impl OllamaForm {
    async fn respond(self, mut answers: ChatStream, fields: &Fields<'_>) -> Answer {
        answers.left_out.extend(self.left_out(fields, answers.usage.prompt)?);
        let streams = fields.get("stream")?.unwrap_or(true);
        let writer = OllamaWriter { form: self, reason: None, call: None, logprobs: Vec::new() };
        let whole = |writer: OllamaWriter, answer: ChatAnswer| {
            let choice = answer.choices.into_iter().next().unwrap_or_default();
            writer.form.last(&choice, &answer.usage)
        };
        stream::answer(answers, streams, writer, whole).await
    }

    /// What a model that is open already cannot do for a request with a prompt of so many tokens: a
    /// longer context, or a shorter one that would shorten the prompt; thoughts that it has not.
    fn left_out(&self, fields: &Fields<'_>, prompt: usize) -> Result<Vec<String>, Problem> {
        let mut names = Vec::new();
        let wanted: Option<usize> = fields.inner("options")?.get("num_ctx")?;
        if wanted.is_some_and(|n| n > self.host.model.context() || n < prompt) {
            names.push("options.num_ctx".into());
        }
        if fields.value("think").is_some_and(|think| *think != false) && !self.host.thinks() {
            names.push("think".into());
        }
        Ok(names)
    }

    fn part(&self, text: &str) -> Value {
        object(self.verb, &self.host.name, text, None)
    }

    fn logprobs(&self, list: &[TokenLogprob]) -> Value {
        list.iter().map(|l| token_logprob(self.host.model.tokenizer(), l)).collect()
    }

    /// Where reasoning and calls are said.
    fn inner<'a>(&self, object: &'a mut Value) -> &'a mut Value {
        match self.verb {
            Verb::Chat => &mut object["message"],
            Verb::Generate => object,
        }
    }

    fn last(&self, choice: &ChoiceAnswer, usage: &Usage) -> Value {
        let reason = match choice.reason {
            Some(EndReason::Length) => "length",
            _ => "stop",
        };
        let mut object = object(self.verb, &self.host.name, &choice.content, Some(reason));
        if !choice.logprobs.is_empty() {
            object["logprobs"] = self.logprobs(&choice.logprobs);
        }
        let inner = self.inner(&mut object);
        if !choice.reasoning.is_empty() {
            inner["thinking"] = choice.reasoning.clone().into();
        }
        if !choice.calls.is_empty() {
            let calls = choice.calls.iter().map(|(name, arguments)| tool_call(name, arguments));
            inner["tool_calls"] = calls.collect();
        }
        let ns = |time: Duration| time.as_nanos() as u64;
        let (stats, all) = (&usage.first, self.asked.elapsed());
        for (name, value) in [
            ("total_duration", ns(all)),
            ("load_duration", ns(self.loaded)),
            ("prompt_eval_count", usage.prompt as u64),
            ("prompt_eval_duration", ns(stats.ttft)),
            ("eval_count", usage.completion as u64),
            ("eval_duration", ns(stats.decode)),
        ] {
            object[name] = value.into();
        }
        object
    }
}

fn tool_call(name: &str, arguments: &str) -> Value {
    json!({"function": {"name": name, "arguments": arguments_so_far(arguments)}})
}

/// Writes an object a line.
struct OllamaWriter {
    form: OllamaForm,
    reason: Option<EndReason>,
    /// A call that is being read: its name and arguments.
    call: Option<(String, String)>,
    /// Of tokens whose text is not told yet.
    logprobs: Vec<TokenLogprob>,
}

impl OllamaWriter {
    fn line(value: &Value, out: &mut String) {
        out.push_str(&format!("{value}\n"));
    }

    /// Tells of a call that is complete.
    fn tell_call(&mut self, out: &mut String) {
        if let Some((name, arguments)) = self.call.take() {
            let mut object = self.form.part("");
            self.form.inner(&mut object)["tool_calls"] = json!([tool_call(&name, &arguments)]);
            OllamaWriter::line(&object, out);
        }
    }
}

impl EventWriter for OllamaWriter {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    /// The first line comes with the first token.
    fn begin(&mut self, _: &mut String) {}

    fn waiting(&self, out: &mut String) {
        OllamaWriter::line(&self.form.part(""), out);
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(..) => {}
            ChatEvent::More(_, deltas, logprobs) => {
                self.logprobs.extend(logprobs);
                deltas.into_iter().for_each(|delta| match delta {
                    Delta::Content(text) => {
                        let mut part = self.form.part(&text);
                        let logprobs = std::mem::take(&mut self.logprobs);
                        if !logprobs.is_empty() {
                            part["logprobs"] = self.form.logprobs(&logprobs);
                        }
                        OllamaWriter::line(&part, out);
                    }
                    Delta::Reasoning(text) => {
                        let mut object = self.form.part("");
                        self.form.inner(&mut object)["thinking"] = text.into();
                        OllamaWriter::line(&object, out);
                    }
                    Delta::CallStart { name, .. } => {
                        self.tell_call(out);
                        self.call = Some((name, String::new()));
                    }
                    Delta::CallArguments { json, .. } => {
                        if let Some((_, arguments)) = &mut self.call {
                            arguments.push_str(&json);
                        }
                    }
                })
            }
            ChatEvent::End(_, reason, _) => {
                self.tell_call(out);
                self.reason = Some(reason);
            }
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        let logprobs = std::mem::take(&mut self.logprobs);
        let choice = ChoiceAnswer { reason: self.reason, logprobs, ..ChoiceAnswer::default() };
        OllamaWriter::line(&self.form.last(&choice, usage), out);
    }

    fn problem(&mut self, problem: &Problem, out: &mut String) {
        OllamaWriter::line(&problem.body(Dialect::Ollama), out);
    }
}
