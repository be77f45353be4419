//! Ollama's `/api/chat` and `/api/generate`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use troika::Request;

use super::chat::token_logprob;
use super::request::{logprobs, max_tokens};
use crate::chat::{
    ChatEvent, ChatRequest, ChatStream, ChoiceAnswer, EndReason, TokenLogprob, Tools, Usage,
    chat_messages,
};
use crate::completion::{self, Generation};
use crate::fields::Fields;
use crate::grammar::Constrain;
use crate::ids;
use crate::json_request::{self, JsonRequest};
use crate::open_model::InUse;
use crate::problem::{Dialect, Problem};
use crate::sampling;
use crate::state::Server;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;
use troika::model::answer::{Delta, Format, ReaderOptions};

/// Which of the two is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Chat,
    Generate,
}

/// Answers a conversation.
///
/// # Errors
/// What is wrong with the request.
pub async fn chat(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let fields = call.fields();
    let messages = with_thinking(fields.value("messages"));
    let says = messages.as_ref().is_some_and(|m| m.as_array().is_none_or(|m| !m.is_empty()));
    let form = match begin(&server, &call, Verb::Chat, says).await? {
        Begun::Answer(form) => form,
        Begun::Done(response) => return Ok(response),
    };
    let host = form.host.clone();
    let tools = Tools::read(&fields, "parameters")?;
    let request = chat_request(&fields, &host, chat_messages(messages.as_ref())?, tools)?;
    let answers = super::request::start(&server, &host, call.client, request).await?;
    form.respond(answers, &fields).await
}

/// Goes on with a prompt, through the chat template unless it is raw.
///
/// # Errors
/// What is wrong with the request.
pub async fn generate(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let fields = call.fields();
    fields.refuse(&[
        ("suffix", "text is not filled in"),
        ("images", "the model reads text only"),
        ("template", "the model's own template is used; send the prompt as raw instead"),
        ("context", "send the conversation to /api/chat instead"),
    ])?;
    let prompt: String = fields.get("prompt")?.unwrap_or_default();
    let form = match begin(&server, &call, Verb::Generate, !prompt.is_empty()).await? {
        Begun::Answer(form) => form,
        Begun::Done(response) => return Ok(response),
    };
    let host = form.host.clone();
    let answers = if fields.flag("raw")? {
        raw(&server, &host, &call, prompt).await?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = fields.get::<String>("system")? {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": prompt}));
        let request = chat_request(&fields, &host, messages, Tools::default())?;
        super::request::start(&server, &host, call.client, request).await?
    };
    form.respond(answers, &fields).await
}

/// What follows from the head of a request.
enum Begun {
    Answer(OllamaForm),
    Done(Response),
}

/// Opens the model. A request that says nothing does no more than that, or closes it.
async fn begin(
    server: &Arc<Server>,
    call: &JsonRequest,
    verb: Verb,
    says: bool,
) -> Result<Begun, Problem> {
    let asked = Instant::now();
    let fields = call.fields();
    if unload(server, &fields, says).await? {
        let model: String = fields.need("model")?;
        let done = object(verb, &model, "", Some("unload"));
        return Ok(Begun::Done(json_request::json(&done)));
    }
    let host = server.model(call.model()?.as_deref()).await?;
    if !says {
        return Ok(Begun::Done(json_request::json(&object(verb, &host.name, "", Some("load")))));
    }
    Ok(Begun::Answer(OllamaForm { verb, host, asked, loaded: asked.elapsed() }))
}

/// A request without a prompt that keeps the model for no time closes it, as Ollama's clients do.
async fn unload(server: &Server, fields: &Fields<'_>, says: bool) -> Result<bool, Problem> {
    let wrong = || {
        let must = "keep_alive has to be a number of seconds, or a time such as 5m";
        Problem::field("keep_alive", must)
    };
    let closes = match fields.value("keep_alive") {
        None => false,
        Some(Value::Number(n)) => n.as_f64() == Some(0.0),
        Some(Value::String(text)) => {
            let digits = text.trim_start_matches(['-', '+']);
            let number = digits.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let good = digits.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
            if number.is_empty() || !good || !number.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(wrong());
            }
            number.parse() == Ok(0.0)
        }
        Some(_) => return Err(wrong()),
    };
    if says || !closes {
        return Ok(false);
    }
    let name: String = fields.need("model")?;
    server.models.unload(&name).await;
    Ok(true)
}

/// The prompt as it is.
async fn raw(
    server: &Arc<Server>,
    host: &InUse,
    call: &JsonRequest,
    prompt: String,
) -> Result<ChatStream, Problem> {
    // What messages would say is in the prompt.
    let request = chat_request(&call.fields(), host, Vec::new(), Tools::default())?;
    let (turn, bytes) = (Turn::new(server, host, call.client), prompt.len());
    host.model.check_text(bytes)?;
    let tokenize = move |host: &InUse| Ok(host.model.tokenize(&prompt)?.0);
    let prompt = turn.prepare(bytes, tokenize).await?;
    let grammar = match request.constrain {
        Some(constrain) => Some(turn.compile(constrain).await?),
        None => None,
    };
    let max_tokens = server.options.max_tokens.into_iter().chain(request.max_tokens).min();
    let request =
        Request { params: request.params, max_tokens, stop: request.stop, ..Request::default() };
    let tokens = prompt.len();
    let answers =
        completion::start(&turn, Generation { prompt, request, choices: 1, grammar, fresh: false })
            .await?;
    let reader = Format::detect(None).reader(ReaderOptions::default());
    Ok(ChatStream::new(server.metrics.clone(), answers, vec![reader]).of_prompt(tokens))
}

/// Messages with their reasoning under the name that templates know.
fn with_thinking(messages: Option<&Value>) -> Option<Value> {
    let mut messages = messages?.clone();
    // Anything but a list of objects is refused where messages are read.
    let list = messages.as_array_mut().into_iter().flatten();
    for message in list.filter_map(Value::as_object_mut) {
        if let Some(thinking) = message.remove("thinking") {
            message.insert("reasoning_content".into(), thinking);
        }
    }
    Some(messages)
}

fn chat_request(
    fields: &Fields<'_>,
    host: &InUse,
    messages: Vec<Value>,
    tools: Tools,
) -> Result<ChatRequest, Problem> {
    let empty = Map::new();
    let options = match fields.value("options") {
        Some(options) => Fields::within("options", options)?,
        None => Fields::of(&empty),
    };
    let constrain = match fields.value("format") {
        None => None,
        Some(Value::String(name)) if name.is_empty() => None,
        Some(Value::String(name)) if name == "json" => Some(Constrain::JsonObject),
        Some(Value::Object(schema)) => Some(Constrain::JsonSchema(schema.clone().into())),
        Some(_) => {
            return Err(Problem::field("format", "format has to be \"json\" or a JSON schema"));
        }
    };
    let mut extra = Map::new();
    if let Some(think) = fields.value("think") {
        extra.insert("enable_thinking".into(), (*think != false).into());
        if think.is_string() {
            extra.insert("reasoning_effort".into(), think.clone());
        }
    }
    Ok(ChatRequest {
        messages,
        tools,
        constrain,
        params: sampling::params(&options, &host.model)?,
        max_tokens: max_tokens(&options, &["num_predict"])?,
        stop: options.texts("stop")?,
        ignore_eos: false,
        choices: 1,
        fresh: false,
        logprobs: match fields.flag("logprobs")? {
            true => Some(logprobs("top_logprobs", fields.get("top_logprobs")?.unwrap_or(0))?),
            false => None,
        },
        extra,
        split_reasoning: true,
        whole_calls: true,
        continues: false,
    })
}

/// The time as RFC 3339 says it.
fn now() -> String {
    rfc3339(ids::since_1970())
}

/// A time since 1970 as RFC 3339 says it.
pub fn rfc3339(time: Duration) -> String {
    let (year, month, day) = troika::date_of_day((time.as_secs() / 86_400) as i64);
    let rest = time.as_secs() % 86_400;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let nanos = time.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// An answer, or the end of one with its reason.
fn object(verb: Verb, model: &str, text: &str, end: Option<&str>) -> Value {
    let mut object = json!({"model": model, "created_at": now()});
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
    async fn respond(self, answers: ChatStream, fields: &Fields<'_>) -> Result<Response, Problem> {
        if fields.get("stream")?.unwrap_or(true) {
            return Ok(stream::respond(
                answers,
                OllamaWriter { form: self, reason: None, call: None },
            ));
        }
        let answer = answers.collect().await?;
        let usage = answer.usage;
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        Ok(json_request::with_left_out(
            json_request::json(&self.last(&choice, &usage)),
            &answer.left_out,
        ))
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
    let arguments: Value = serde_json::from_str(arguments).unwrap_or(json!({}));
    json!({"function": {"name": name, "arguments": arguments}})
}

/// Writes an object a line.
struct OllamaWriter {
    form: OllamaForm,
    reason: Option<EndReason>,
    /// A call that is being read: its name and arguments.
    call: Option<(String, String)>,
}

impl OllamaWriter {
    fn line(value: &Value, out: &mut String) {
        out.push_str(&value.to_string());
        out.push('\n');
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

    fn silence(&mut self, out: &mut String) {
        OllamaWriter::line(&self.form.part(""), out);
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(..) => {}
            ChatEvent::More(_, deltas, logprobs) => {
                deltas.into_iter().for_each(|delta| match delta {
                    Delta::Content(text) => {
                        let mut part = self.form.part(&text);
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
        let choice = ChoiceAnswer { reason: self.reason, ..ChoiceAnswer::default() };
        OllamaWriter::line(&self.form.last(&choice, usage), out);
    }

    fn problem(&mut self, problem: &Problem, out: &mut String) {
        OllamaWriter::line(&problem.body(Dialect::Ollama), out);
    }
}
