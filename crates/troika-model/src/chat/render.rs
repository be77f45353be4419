//! Rendering on a thread of this process.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::date::LocalTime;
use super::environment::{add_functions, environment};
use super::limits;
use super::mask::{ChatPrompt, Mask};
use super::reads::Reads;
use super::source::plain_tags;

/// Why a template could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The template does not parse.
    #[error("the chat template does not parse: {0}")]
    Syntax(String),
    /// The template failed or refused the messages.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// The rendering was given up.
    #[error("the chat template failed: it takes longer than {} seconds", limits::DEADLINE.as_secs())]
    Slow,
    /// A file that cannot be read.
    #[error("{0}")]
    File(String),
}

/// The variables for rendering a template.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChatInput {
    /// Messages: objects with `role`, `content` and any other fields that the template reads.
    pub messages: Vec<Value>,
    /// Whether to end with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Tools that the model may call, as JSON schemas.
    pub tools: Option<Value>,
    /// Texts of special tokens by the names that templates know (`bos_token`, ...).
    pub special: Map<String, Value>,
    /// The local time, for templates that print it.
    pub now: Option<LocalTime>,
    /// Other variables (`enable_thinking`, ...).
    pub extra: Map<String, Value>,
    /// Spellings of the vocabulary's control tokens: plain text in tools and in messages other than
    /// the assistant's. If the list is empty, they act as the template's markers.
    #[serde(skip)]
    pub control: Vec<String>,
}

/// The variables of a template.
fn context(input: &ChatInput, mask: &Mask) -> Map<String, Value> {
    let mut messages = input.messages.clone();
    messages.iter_mut().for_each(|m| mask.message(m));
    let mut context = input.special.clone();
    context.insert("documents".into(), Value::Null);
    context.extend(input.extra.clone());
    context.insert("messages".into(), Value::Array(messages));
    context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
    let mut tools = input.tools.clone().unwrap_or_default();
    mask.json(&mut tools);
    context.insert("tools".into(), tools);
    context
}

/// The name of the template in its environment.
const NAME: &str = "chat";

/// A template that compiles.
pub(super) struct Template {
    /// The source, with Jinja's line ends.
    pub source: String,
    /// What renders it, but for the functions of a rendering.
    compiled: Environment<'static>,
    /// The form of messages that it reads.
    pub reads: Reads,
}

/// An environment with a template.
fn compiled(source: String) -> Result<Environment<'static>, Error> {
    let mut env = environment()?;
    env.add_template_owned(NAME, source)?;
    Ok(env)
}

impl Template {
    pub fn new(source: &str) -> Result<Template, ChatError> {
        if source.len() > limits::SOURCE {
            let why = format!("it is longer than {} KiB", limits::SOURCE >> 10);
            return Err(ChatError::Syntax(why));
        }
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let (plain, longest) = plain_tags(&source);
        if longest > limits::TAG {
            let why = format!("a tag is longer than {} KiB", limits::TAG >> 10);
            return Err(ChatError::Syntax(why));
        }
        let compiled =
            on_own_stack(move || compiled(plain).map_err(|e| ChatError::Syntax(one_line(&e))))?;
        Ok(Template { source, compiled, reads: Reads::default() })
    }

    /// Renders on a thread of this process.
    pub fn render(&self, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
        let texts = || input.messages.iter().chain(&input.tools).chain(input.extra.values());
        let deep = || ChatError::Render("the messages are nested too deeply".into());
        let bytes = limits::json_size(texts()).ok_or_else(deep)?;
        let all: Vec<&Value> = texts().collect();
        let none = || ChatError::Render("the messages hold every private character".into());
        let mask = Arc::new(Mask::new(&input.control, &all, &self.source).ok_or_else(none)?);
        let context = context(input, &mask);
        let env = match mask.tests(&self.source) {
            Cow::Borrowed(_) => Ok(self.compiled.clone()),
            Cow::Owned(source) => Err(plain_tags(&source).0),
        };
        let now = input.now;
        on_own_stack(move || {
            let rendered = env.or_else(compiled).and_then(|mut env| {
                env.set_fuel(Some(limits::fuel(bytes)));
                add_functions(&mut env, &mask, now);
                env.get_template(NAME)?.render(Jinja::from(Serde(context)))
            });
            match rendered {
                Ok(text) if text.len() as u64 > limits::output(bytes) => {
                    Err(ChatError::Render("its text is too long".into()))
                }
                Ok(text) => Ok(mask.remove(text)),
                Err(e) => Err(ChatError::Render(mask.remove(one_line(&e)).text)),
            }
        })
    }
}

/// Runs on a thread with a stack of known size, up to the deadline.
fn on_own_stack<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ChatError> {
    let (send, result) = channel();
    let thread = std::thread::Builder::new().name("chat template".into());
    let thread = thread.stack_size(limits::STACK).spawn(move || send.send(work()));
    thread.map_err(|e| ChatError::Render(format!("it has no thread: {e}")))?;
    match result.recv_timeout(limits::DEADLINE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(ChatError::Slow),
        Err(RecvTimeoutError::Disconnected) => {
            Err(ChatError::Render("the template engine gave up on it".into()))
        }
    }
}

/// The most characters of a template's own message.
const MESSAGE: usize = 400;

fn one_line(e: &minijinja::Error) -> String {
    let mut detail = match (e.kind(), e.detail()) {
        (ErrorKind::OutOfFuel, _) => "it does more work than any conversation needs".to_string(),
        (kind, None) => kind.to_string(),
        (_, Some(detail)) => detail.chars().take(MESSAGE).collect(),
    };
    if e.detail().is_some_and(|d| d.chars().nth(MESSAGE).is_some()) {
        detail.push_str(" ...");
    }
    match e.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}
