//! Chat templates in Jinja, as in Hugging Face files. Templates are untrusted: their cost is
//! limited (`limits`), and users' text cannot imitate their markers (`mask`).

mod date;
mod environment;
mod helper;
mod json;
mod limits;
mod mask;
mod namespace;
mod render;
mod source;

use std::path::Path;

use serde_json::Value;

use crate::files::{parse_json, read_small};
use helper::Helper;
use mask::Mask;
use render::Template;

pub use helper::{HelperCommand, serve};
pub use mask::ChatPrompt;
pub use render::{ChatError, ChatInput};

/// A parsed template.
pub struct ChatTemplate {
    main: Template,
    /// The template for conversations with tools, if there is a separate one.
    tools: Option<Template>,
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
        let config: Value = parse_json(&config).unwrap_or(Value::Null);
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
            template.tools = Some(Template::new(tools)?);
        }
        Ok(Some(template))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// The template does not parse, or is longer than 64 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        Ok(ChatTemplate { main: Template::new(source)?, tools: None, helper: None })
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
        &self.template(tools).source
    }

    fn template(&self, tools: bool) -> &Template {
        self.tools.as_ref().filter(|_| tools).unwrap_or(&self.main)
    }

    /// Renders the prompt of a conversation.
    ///
    /// # Errors
    /// The template fails, for instance because of the order of roles, or exceeds the limits on
    /// time or memory.
    pub fn render(&self, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
        let template = self.template(input.tools.is_some());
        match &self.helper {
            Some(helper) => helper.render(&template.source, input),
            None => template.render(input),
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

#[cfg(test)]
mod tests;
