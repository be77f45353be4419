//! Ollama's `/api/chat` and `/api/generate`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use troika::Request;

use super::request::max_tokens;
use crate::answer::{Delta, Format, ReaderOptions};
use crate::call::{self, Call};
use crate::chat::{
    ChatEvent, ChatRequest, ChatStream, ChoiceAnswer, EndReason, Tools, Usage, chat_messages,
    compile,
};
use crate::completion::{self, Generation};
use crate::fields::Fields;
use crate::grammar::Constrain;
use crate::host::InUse;
use crate::problem::{Dialect, Problem};
use crate::sampling;
use crate::state::{Server, apart};
use crate::stream::{self, EventWriter};

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
pub async fn chat(State(server): State<Arc<Server>>, call: Call) -> Result<Response, Problem> {
    let asked = Instant::now();
    let fields = call.fields();
    if let Some(unloaded) = unload(&server, &fields, "messages").await? {
        return Ok(unloaded);
    }
    let host = server.model(call.model()?.as_deref()).await?;
    let form = OllamaForm { verb: Verb::Chat, model: host.name.clone(), asked, loaded: asked.elapsed() };
    let tools = Tools { list: super::chat::tools(&fields)?, ..Tools::default() };
    let messages = with_arguments(fields.value("messages"));
    let request = chat_request(&fields, &host, chat_messages(messages.as_ref())?, tools)?;
    let answers = super::request::start(&server, &host, call.client, request).await?;
    form.respond(answers, &fields).await
}

/// Goes on with a prompt, through the chat template unless it is raw.
///
/// # Errors
/// What is wrong with the request.
pub async fn generate(State(server): State<Arc<Server>>, call: Call) -> Result<Response, Problem> {
    let asked = Instant::now();
    let fields = call.fields();
    if let Some(unloaded) = unload(&server, &fields, "prompt").await? {
        return Ok(unloaded);
    }
    let host = server.model(call.model()?.as_deref()).await?;
    let form =
        OllamaForm { verb: Verb::Generate, model: host.name.clone(), asked, loaded: asked.elapsed() };
    fields.refuse(&[
        ("suffix", "text is not filled in"),
        ("images", "the model reads text only"),
        ("template", "the model's own template is used; send the prompt as raw instead"),
        ("context", "send the conversation to /api/chat instead"),
    ])?;
    let prompt: String = fields.get("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        // Ollama's way to open a model.
        return Ok(call::json(&form.object("", true, "load")));
    }
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

/// A request without a prompt that keeps the model for no time closes it, as Ollama's clients do.
async fn unload(
    server: &Server,
    fields: &Fields<'_>,
    prompt: &str,
) -> Result<Option<Response>, Problem> {
    let says = match fields.value(prompt) {
        None => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    let keeps = fields.value("keep_alive").is_some_and(|k| *k == 0 || *k == "0" || *k == "0s");
    if says || !keeps {
        return Ok(None);
    }
    let name: String = fields.need("model")?;
    server.models.unload(&name).await;
    let done = json!({"model": name, "created_at": now(), "done": true, "done_reason": "unload"});
    Ok(Some(call::json(&done)))
}

/// The prompt as it is.
async fn raw(
    server: &Arc<Server>,
    host: &InUse,
    call: &Call,
    prompt: String,
) -> Result<ChatStream, Problem> {
    // What messages would say is in the prompt.
    let request = chat_request(&call.fields(), host, Vec::new(), Tools::default())?;
    let (of, most) = (host.clone(), server.options.max_tokens);
    let generation = apart(move || {
        let grammar = request.constrain.as_ref().map(|c| compile(&of, c)).transpose()?;
        let (prompt, _) = of.model.tokenize(&prompt)?;
        let max_tokens = most.into_iter().chain(request.max_tokens).min();
        let request = Request {
            params: request.params,
            max_tokens,
            stop: request.stop,
            ..Request::default()
        };
        Ok(Generation { prompt, request, choices: 1, grammar: grammar.map(Arc::new) })
    })
    .await?;
    let tokens = generation.prompt.len();
    let timeout = server.options.timeout;
    let answers = completion::start(host, &server.queue, call.client, generation, timeout).await?;
    let reader = Format::detect(None).reader(ReaderOptions::default());
    Ok(ChatStream::new(server.metrics.clone(), answers, vec![reader]).of_prompt(tokens))
}

/// Messages whose calls have arguments as objects, which is Ollama's form and a template's, too.
fn with_arguments(messages: Option<&Value>) -> Option<Value> {
    let mut messages = messages?.clone();
    for message in messages.as_array_mut()? {
        let thinking = message["thinking"].take();
        if thinking.is_string() {
            message["reasoning_content"] = thinking;
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
        logprobs: None,
        extra,
        split_reasoning: true,
        whole_calls: true,
        continues: false,
    })
}

/// The time as RFC 3339 says it.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = troika::today().unwrap_or((1970, 1, 1));
    let rest = seconds.as_secs() % 86_400;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let nanos = seconds.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

struct OllamaForm {
    verb: Verb,
    model: String,
    asked: Instant,
    /// How long the model took to open, if it was not.
    loaded: Duration,
}

impl OllamaForm {
    async fn respond(self, answers: ChatStream, fields: &Fields<'_>) -> Result<Response, Problem> {
        if fields.get("stream")?.unwrap_or(true) {
            return Ok(stream::respond(answers, OllamaWriter { form: self, reason: None, call: None }));
        }
        let answer = answers.collect().await?;
        let usage = answer.usage;
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        Ok(call::json(&self.last(&choice, &usage)))
    }

    fn object(&self, text: &str, done: bool, reason: &str) -> Value {
        let mut object = json!({"model": self.model, "created_at": now()});
        match self.verb {
            Verb::Chat => object["message"] = json!({"role": "assistant", "content": text}),
            Verb::Generate => object["response"] = text.into(),
        }
        object["done"] = done.into();
        if done {
            object["done_reason"] = reason.into();
        }
        object
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
        let mut object = self.object(&choice.content, true, reason);
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
            let mut object = self.form.object("", false, "");
            self.form.inner(&mut object)["tool_calls"] = json!([tool_call(&name, &arguments)]);
            OllamaWriter::line(&object, out);
        }
    }
}

impl EventWriter for OllamaWriter {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    /// The first line comes with the first token.
    fn begin(&mut self, _: &mut String) {}

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::More(_, deltas, _) => deltas.into_iter().for_each(|delta| match delta {
                Delta::Content(text) => {
                    OllamaWriter::line(&self.form.object(&text, false, ""), out);
                }
                Delta::Reasoning(text) => {
                    let mut object = self.form.object("", false, "");
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
            }),
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
