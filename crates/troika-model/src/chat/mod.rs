//! Chat templates in Jinja, as in Hugging Face files. Templates are untrusted: their cost is
//! limited (`limits`), and users' text cannot imitate their markers (`mask`).

mod date;
mod environment;
mod helper;
mod json;
mod limits;
mod mask;
mod namespace;
mod reads;
mod render;
mod source;

use std::cell::Cell;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::files::{parse_json, read_small};
use crate::spec::{GgufMeta, GgufValue};
use helper::Helper;
use mask::Mask;
use render::Template;

pub use date::{LocalTime, local_time, rfc3339};
pub use helper::{HelperCommand, serve};
pub use mask::ChatPrompt;
pub use render::{ChatError, ChatInput};

/// A parsed template.
pub struct ChatTemplate {
    main: Template,
    /// The template for conversations with tools, if there is a separate one.
    tools: Option<Template>,
    helper: Option<Helper>,
    /// Texts of special tokens by their names.
    special: Map<String, Value>,
}

impl ChatTemplate {
    /// Reads a folder's templates: `chat_template.jinja` with the named ones in
    /// `additional_chat_templates`, or those in `tokenizer_config.json`, or `chat_template.json`.
    /// `None` if there are none.
    ///
    /// # Errors
    /// A template does not parse, or a file cannot be read.
    pub fn from_hf_dir(dir: &Path) -> Result<Option<ChatTemplate>, ChatError> {
        let text = |path: &Path| {
            let bad = |why: String| ChatError::File(format!("{}: {why}", path.display()));
            if !path.exists() {
                return Ok(None);
            }
            let source = read_small(path).map_err(|e| bad(e.to_string()))?;
            String::from_utf8(source).map(Some).map_err(|_| bad("it is not UTF-8".into()))
        };
        let json = |name: &str| -> Value {
            let read = read_small(&dir.join(name)).unwrap_or_default();
            parse_json(&read).unwrap_or_default()
        };
        let (config, older) = (json("tokenizer_config.json"), json("special_tokens_map.json"));
        let named = text(&dir.join("additional_chat_templates/tool_use.jinja"))?;
        let (main, tools) = match text(&dir.join("chat_template.jinja"))? {
            Some(main) => (Some(main), named),
            None => match named_in(&config["chat_template"]) {
                (None, _) => named_in(&json("chat_template.json")["chat_template"]),
                found => found,
            },
        };
        let Some(main) = main else { return Ok(None) };
        let mut special = Map::new();
        for (name, token) in [&older, &config].into_iter().filter_map(Value::as_object).flatten() {
            // Each is a text, or an object with it.
            let text = token.as_str().or(token["content"].as_str());
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                special.insert(name.clone(), text.into());
            }
        }
        Ok(Some(ChatTemplate { special, ..ChatTemplate::with_tools(&main, tools.as_deref())? }))
    }

    /// Reads the templates of a GGUF file; `None` if there are none.
    ///
    /// # Errors
    /// A template does not parse.
    pub fn from_gguf(meta: &GgufMeta) -> Result<Option<ChatTemplate>, ChatError> {
        let text = |name: &str| meta.get(name).and_then(GgufValue::as_str);
        let Some(main) = text("tokenizer.chat_template") else { return Ok(None) };
        let mut template =
            ChatTemplate::with_tools(main, text("tokenizer.chat_template.tool_use"))?;
        let tokens = meta.get("tokenizer.ggml.tokens").and_then(GgufValue::as_texts);
        for (key, name) in [
            ("unknown", "unk"),
            ("padding", "pad"),
            ("seperator", "sep"),
            ("cls", "cls"),
            ("mask", "mask"),
        ] {
            let id = meta.get(&format!("tokenizer.ggml.{key}_token_id"));
            let id = id.and_then(GgufValue::as_u64).and_then(|id| usize::try_from(id).ok());
            if let Some(token) = id.and_then(|id| tokens?.iter().nth(id)) {
                template.special.insert(format!("{name}_token"), token.into());
            }
        }
        Ok(Some(template))
    }

    /// Parses a template.
    ///
    /// # Errors
    /// The template does not parse, or is longer than 64 KiB.
    pub fn new(source: &str) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::with_tools(source, None)
    }

    fn with_tools(source: &str, tools: Option<&str>) -> Result<ChatTemplate, ChatError> {
        let tools = tools.map(Template::new).transpose()?;
        Ok(ChatTemplate { main: Template::new(source)?, tools, helper: None, special: Map::new() })
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

    /// Renders the prompt of a conversation. Messages are given to the template in the form that it
    /// reads.
    ///
    /// # Errors
    /// The template fails, for instance because of the order of roles, or exceeds the limits on
    /// time or memory.
    pub fn render(&self, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
        let template = self.template(input.tools.is_some());
        let render = |input: &ChatInput| match &self.helper {
            Some(helper) => helper.render(&template.source, input),
            None => template.render(input),
        };
        let mut input = input.clone();
        for (name, token) in &self.special {
            input.special.entry(name.as_str()).or_insert_with(|| token.clone());
        }
        let mut messages = std::mem::take(&mut input.messages);
        let slow = Cell::new(false);
        template.reads.fit(&mut messages, &|probe| {
            let messages = probe.as_array().filter(|_| !slow.get())?.clone();
            let calls = messages.iter().any(|message| message["role"] == "tool");
            let probe = ChatInput {
                messages,
                add_generation_prompt: true,
                tools: (calls || input.tools.is_some()).then(probe_tools),
                extra: Map::new(),
                ..input.clone()
            };
            let rendered = render(&probe);
            slow.set(rendered == Err(ChatError::Slow));
            rendered.ok().map(|prompt| prompt.text)
        });
        if slow.get() {
            return Err(ChatError::Slow);
        }
        render(&ChatInput { messages, ..input })
    }
}

/// The default template and the one for tools: a text, or a list of named ones.
fn named_in(value: &Value) -> (Option<String>, Option<String>) {
    let find = |name: &str| {
        let entry = value.as_array()?.iter().find(|t| t["name"] == name)?;
        entry["template"].as_str().map(str::to_string)
    };
    (value.as_str().map(str::to_string).or_else(|| find("default")), find("tool_use"))
}

/// The tool that [`reads`] calls.
fn probe_tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"key": {"type": "string"}}});
    let function = json!({"name": "probe", "description": "", "parameters": parameters});
    json!([{"type": "function", "function": function}])
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
        mask.plain(message, &reads::text_of(&message["content"]), &mut prompt);
    }
    Ok(prompt)
}

#[cfg(test)]
mod tests;
