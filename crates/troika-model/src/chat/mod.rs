//! Chat templates in Jinja, as in Hugging Face files. Templates are untrusted: their cost is
//! limited (`limits`), and users' text cannot imitate their markers (`mask`).

mod compile;
mod date;
mod json;
mod library;
mod limits;
mod mask;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use minijinja::value::Serde;
use minijinja::{AutoEscape, ErrorKind, Value as Jinja};
use serde_json::{Map, Value};

use crate::files::read_small;
use limits::Budget;
use mask::Mask;

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
#[derive(Clone, Debug, Default)]
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
    /// The template does not parse, or is longer than 256 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        Ok(ChatTemplate { main: checked(source)?, tools: None })
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
        let texts = || input.messages.iter().chain(&input.tools).chain(input.extra.values());
        let deep = || ChatError::Render("the messages are nested too deeply".into());
        let bytes = limits::json_size(texts()).ok_or_else(deep)?;
        let all: Vec<&Value> = texts().collect();
        let none = || ChatError::Render("the messages hold every private character".into());
        let mask = Mask::new(&input.control, &all, source).ok_or_else(none)?;
        let budget = Arc::new(Budget::new(bytes, mask));
        let context = context(input, &budget.mask);
        let text = on_own_stack(|| {
            render(source, context, &budget, input.today)
                .map_err(|e| ChatError::Render(budget.mask.remove(one_line(&e)).text))
        })?;
        Ok(budget.mask.remove(text))
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

/// A source that compiles: with Jinja's line ends, and with training marks (`{% generation %}`),
/// which do not change the text, as plain blocks.
fn checked(source: &str) -> Result<String, ChatError> {
    // A source that is too long is refused below.
    let source = match source.len() <= limits::SOURCE {
        true => plain_marks(&source.replace("\r\n", "\n").replace('\r', "\n")),
        false => source.to_string(),
    };
    on_own_stack(|| match compile::compile(&source) {
        Ok(_) => Ok(()),
        Err(e) => Err(ChatError::Syntax(one_line(&e))),
    })?;
    Ok(source)
}

/// Turns `{% generation %}` into `{% if true %}`, keeping the signs that control white space.
/// Texts, comments and other tags are not changed.
fn plain_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    // One pass, since a separate search for each kind of tag would reread the rest for every tag.
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let Some(end) = tag[2..].find(close).map(|end| end + 4) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end);
        let inner = tag[2..end - 2].trim_matches(['-', '+']).trim();
        match (close, inner) {
            ("%}", "generation") => out.push_str(&tag.replacen("generation", "if true", 1)),
            ("%}", "endgeneration") => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
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

fn render(
    source: &str,
    context: Map<String, Value>,
    budget: &Arc<Budget>,
    today: Option<(i32, u32, u32)>,
) -> Result<String, minijinja::Error> {
    let instructions = compile::compile(source)?;
    let env = library::environment(budget, today);
    let root = Jinja::from(Serde(context));
    let blocks = BTreeMap::new();
    let mut text = String::new();
    let mut out = minijinja::machinery::make_string_output(&mut text);
    minijinja::machinery::eval(&env, &instructions, root, &blocks, &mut out, AutoEscape::None)?;
    drop(out);
    Ok(text)
}

/// Runs on a thread with a stack of known size.
fn on_own_stack<T: Send>(
    work: impl FnOnce() -> Result<T, ChatError> + Send,
) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into());
        let thread = thread.stack_size(limits::STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| ChatError::Render(format!("it has no thread: {e}")))?;
        let failed = |_| Err(ChatError::Render("the template engine gave up on it".into()));
        thread.join().unwrap_or_else(failed)
    })
}

/// The most characters of a template's own message.
const MESSAGE: usize = 400;

fn one_line(e: &minijinja::Error) -> String {
    let mut detail = match (e.kind(), e.detail()) {
        (ErrorKind::OutOfFuel, _) => "it runs longer than any conversation needs".to_string(),
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
