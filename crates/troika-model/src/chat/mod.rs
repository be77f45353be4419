//! Chat templates in Jinja, as in Hugging Face files. Templates are untrusted: their cost is
//! limited (`limits`), and users' text cannot imitate their markers (`mask`).

mod date;
mod environment;
mod helper;
mod json;
mod limits;
mod mask;
mod namespace;
mod source;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use minijinja::value::Serde;
use minijinja::{ErrorKind, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::files::read_small;
use environment::{add_functions, environment};
use helper::Helper;
use mask::Mask;

pub use helper::{HelperCommand, serve};
pub use mask::ChatPrompt;

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
    #[error("{file}: {why}")]
    File {
        /// File.
        file: String,
        /// What is wrong.
        why: String,
    },
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
    /// Text of the BOS token.
    pub bos_token: String,
    /// Text of the EOS token.
    pub eos_token: String,
    /// Today's date as `(year, month, day)`, for templates that print it.
    pub today: Option<(i32, u32, u32)>,
    /// Other variables (`enable_thinking`, ...).
    pub extra: Map<String, Value>,
    /// Spellings of the vocabulary's control tokens: plain text in tools and in messages other than
    /// the assistant's. If the list is empty, they act as the template's markers.
    pub control: Vec<String>,
}

/// A parsed template.
pub struct ChatTemplate {
    main: String,
    /// The template for conversations with tools, if there is a separate one.
    tools: Option<String>,
    helper: Option<Helper>,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the template in `tokenizer_config.json`; `None` if there is
    /// neither.
    ///
    /// # Errors
    /// The template does not parse, or a file cannot be read.
    pub fn from_hf_dir(dir: &Path) -> Result<Option<ChatTemplate>, ChatError> {
        let path = dir.join("chat_template.jinja");
        if path.exists() {
            let bad = |why: String| ChatError::File { file: path.display().to_string(), why };
            let source = read_small(&path).map_err(|e| bad(e.to_string()))?;
            let source = String::from_utf8(source).map_err(|_| bad("it is not UTF-8".into()))?;
            return ChatTemplate::new(&source).map(Some);
        }
        let config = read_small(&dir.join("tokenizer_config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or(Value::Null);
        match &config["chat_template"] {
            Value::String(source) => ChatTemplate::new(source).map(Some),
            Value::Array(list) => ChatTemplate::named(list),
            _ => Ok(None),
        }
    }

    /// A list of named templates: the default one and possibly one for tools.
    fn named(list: &[Value]) -> Result<Option<ChatTemplate>, ChatError> {
        let find = |name: &str| {
            let entry = list.iter().find(|t| t["name"] == name);
            entry.and_then(|t| t["template"].as_str())
        };
        let Some(main) = find("default") else { return Ok(None) };
        let mut template = ChatTemplate::new(main)?;
        if let Some(tools) = find("tool_use") {
            template.tools = Some(checked(tools)?);
        }
        Ok(Some(template))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// The template does not parse, or is longer than 64 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        Ok(ChatTemplate { main: checked(source)?, tools: None, helper: None })
    }

    /// Renders in a process of its own from now on. There the limits on time, memory and stack hold
    /// for every template. On a thread of this process, a template can go beyond them by comparing
    /// or joining lists that hold each other many times.
    #[must_use]
    pub fn with_helper(self, command: HelperCommand) -> ChatTemplate {
        ChatTemplate { helper: Some(Helper::new(command)), ..self }
    }

    /// The template's text for conversations with tools, or without.
    pub fn source(&self, tools: bool) -> &str {
        self.tools.as_ref().filter(|_| tools).unwrap_or(&self.main)
    }

    /// Renders the prompt of a conversation.
    ///
    /// # Errors
    /// The template fails, for instance because of the order of roles, or exceeds the limits on
    /// time or memory.
    pub fn render(&self, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
        let source = self.source(input.tools.is_some());
        match &self.helper {
            Some(helper) => helper.render(source, input),
            None => render(source, input),
        }
    }
}

/// Joins messages by newlines: the prompt of a model without a template. `control` as in
/// [`ChatInput`].
///
/// # Errors
/// The messages use all private characters.
pub fn join_messages(messages: &[Value], control: &[String]) -> Result<ChatPrompt, ChatError> {
    let all: Vec<&Value> = messages.iter().collect();
    let none = || ChatError::Render("the messages hold every private character".into());
    let mask = Mask::new(control, &all, "").ok_or_else(none)?;
    let mut prompt = ChatPrompt::default();
    for (i, message) in messages.iter().enumerate() {
        prompt.text.push_str(if i > 0 { "\n" } else { "" });
        let text = message["content"].as_str().unwrap_or_default();
        mask.plain(message, text, &mut prompt);
    }
    Ok(prompt)
}

/// A source that compiles, with Jinja's line ends.
fn checked(source: &str) -> Result<String, ChatError> {
    if source.len() > limits::SOURCE {
        let why = format!("it is longer than {} KiB", limits::SOURCE >> 10);
        return Err(ChatError::Syntax(why));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let (plain, longest) = source::plain_tags(&source);
    if longest > limits::TAG {
        return Err(ChatError::Syntax(format!("a tag is longer than {} KiB", limits::TAG >> 10)));
    }
    on_own_stack(move || {
        let compiled = environment().and_then(|env| env.template_from_str(&plain).map(|_| ()));
        compiled.map_err(|e| ChatError::Syntax(one_line(&e)))
    })?;
    Ok(source)
}

/// The variables of a template.
fn context(input: &ChatInput, mask: &Mask) -> Map<String, Value> {
    let mut messages = input.messages.clone();
    messages.iter_mut().for_each(|m| mask.message(m));
    let mut context = input.extra.clone();
    context.insert("messages".into(), Value::Array(messages));
    context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
    context.insert("bos_token".into(), input.bos_token.clone().into());
    context.insert("eos_token".into(), input.eos_token.clone().into());
    if let Some(tools) = &input.tools {
        let mut tools = tools.clone();
        mask.json(&mut tools);
        context.insert("tools".into(), tools);
    }
    context
}

/// Renders a source on a thread of this process.
fn render(source: &str, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
    let texts = || input.messages.iter().chain(&input.tools).chain(input.extra.values());
    let deep = || ChatError::Render("the messages are nested too deeply".into());
    let bytes = limits::json_size(texts()).ok_or_else(deep)?;
    let all: Vec<&Value> = texts().collect();
    let none = || ChatError::Render("the messages hold every private character".into());
    let mask = Arc::new(Mask::new(&input.control, &all, source).ok_or_else(none)?);
    let context = context(input, &mask);
    let (source, _) = source::plain_tags(&mask.tests(source));
    let today = input.today;
    on_own_stack(move || {
        let rendered = environment().and_then(|mut env| {
            env.set_fuel(Some(limits::fuel(bytes)));
            add_functions(&mut env, &mask, today);
            env.template_from_str(&source)?.render(Jinja::from(Serde(context)))
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

#[cfg(test)]
mod tests;
