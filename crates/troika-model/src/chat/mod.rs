//! Chat templates: Jinja, as Hugging Face writes them.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde_json::{Map, Value};

use crate::files::read_small;

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

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// Messages: objects with `role` and `content` (and whatever else the template reads).
    pub messages: Vec<Value>,
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Tools the model may call, as JSON schemas.
    pub tools: Option<Value>,
    /// Text of the BOS token.
    pub bos_token: String,
    /// Text of the EOS token.
    pub eos_token: String,
    /// Today's date as `(year, month, day)`, for templates that print it.
    pub today: Option<(i32, u32, u32)>,
    /// Other variables (`enable_thinking`, ...).
    pub extra: Map<String, Value>,
}

/// A parsed template.
pub struct ChatTemplate {
    env: Environment<'static>,
    has_tools_variant: bool,
}

const MAIN: &str = "chat";
const TOOLS: &str = "tools";

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the template in `tokenizer_config.json`; `None` when the
    /// folder has neither.
    ///
    /// # Errors
    /// A template that does not parse, a file that cannot be read.
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

    /// A list of named templates: the default one, and one for tools if there is one.
    fn named(list: &[Value]) -> Result<Option<ChatTemplate>, ChatError> {
        let find = |name: &str| {
            let entry = list.iter().find(|t| t["name"] == name);
            entry.and_then(|t| t["template"].as_str())
        };
        let Some(main) = find("default") else { return Ok(None) };
        let mut template = ChatTemplate::new(main)?;
        if let Some(tools) = find("tool_use") {
            template.add(TOOLS, tools)?;
            template.has_tools_variant = true;
        }
        Ok(Some(template))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// A template that does not parse.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| ChatError::Syntax(one_line(&e)))?);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_filter("tojson", tojson);
        let mut template = ChatTemplate { env, has_tools_variant: false };
        template.add(MAIN, source)?;
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), ChatError> {
        // Marks for training that change nothing in the text.
        let mut source = source.to_string();
        for mark in ["generation", "endgeneration"] {
            for (open, close) in [("{%", "%}"), ("{%-", "-%}"), ("{%-", "%}"), ("{%", "-%}")] {
                source = source.replace(&format!("{open} {mark} {close}"), "");
            }
        }
        let added = self.env.add_template_owned(name, source);
        added.map_err(|e| ChatError::Syntax(one_line(&e)))
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// What the template reports, for instance roles in an order it does not take.
    pub fn render(&self, input: &ChatInput) -> Result<String, ChatError> {
        let failed = |e: minijinja::Error| ChatError::Render(one_line(&e));
        let name = if input.tools.is_some() && self.has_tools_variant { TOOLS } else { MAIN };
        let mut env = self.env.clone();
        if let Some(today) = input.today {
            env.add_function("strftime_now", move |format: String| strftime(&format, today));
        }
        let mut context = input.extra.clone();
        context.insert("messages".into(), Value::Array(input.messages.clone()));
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        context.insert("bos_token".into(), input.bos_token.clone().into());
        context.insert("eos_token".into(), input.eos_token.clone().into());
        if let Some(tools) = &input.tools {
            context.insert("tools".into(), tools.clone());
        }
        let template = env.get_template(name).map_err(failed)?;
        template.render(Jinja::from(Serde(context))).map_err(failed)
    }
}

fn one_line(e: &minijinja::Error) -> String {
    let detail = e.detail().map_or_else(|| e.kind().to_string(), str::to_string);
    match e.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// Python's `json.dumps` with `ensure_ascii=False`: a space after colons and commas, no HTML
/// escapes; `indent` as in Jinja's filter.
fn tojson(json: Serde<Value>, args: Kwargs) -> Result<Jinja, minijinja::Error> {
    let indent: Option<usize> = args.get("indent")?;
    // Arguments of Python's version that do not change the text here.
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Jinja> = args.get(ignored)?;
    }
    args.assert_all_used()?;
    let mut out = String::new();
    dump(&json, indent.map(|n| n.min(16)), 0, &mut out);
    Ok(Jinja::from_safe_string(out))
}

fn dump(v: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(n) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(n * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match v {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The date formats templates use.
fn strftime(format: &str, (year, month, day): (i32, u32, u32)) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let name = MONTHS[(month.clamp(1, 12) - 1) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('b') => out.push_str(&name[..3]),
            Some('B') => out.push_str(name),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests;
