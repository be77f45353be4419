//! What a template reads. Clients send a conversation in one form, published templates read several:
//! contents as texts or as lists of parts, arguments of calls as objects or as JSON, one system
//! message or many. A form that a template does not read fails, or is silently lost. So a few words
//! are rendered in each form, once for each template and only where a conversation needs it.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::json::dumps;

/// The names of thoughts. The transformers library passes the first two.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Characters of a call's name for templates of models that know no others (Mistral's).
const SHORT_ID: usize = 9;

/// Renders messages, with a tool; `None` where the template refuses them.
type Render<'r> = &'r dyn Fn(Value) -> Option<String>;

/// What a template reads, as far as it has been asked for.
#[derive(Default)]
pub(super) struct Reads {
    texts: OnceLock<bool>,
    parts: OnceLock<bool>,
    several: OnceLock<bool>,
    one_system: OnceLock<bool>,
    calls: OnceLock<Calls>,
    thoughts: OnceLock<Thoughts>,
}

/// The form of messages that call tools.
#[derive(Clone, Copy, Default)]
struct Calls {
    /// Arguments are JSON in a text.
    json: bool,
    /// Calls have short names.
    short: bool,
    /// A message may have no content.
    without: bool,
    /// A content may be empty.
    empty: bool,
}

/// The form of thoughts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thoughts {
    /// Members of the message.
    Members,
    /// Members, but not beside a text and calls (gpt-oss).
    Alone,
    /// Parts of the content (Mistral).
    Parts,
}

/// Whether the template shows a content of these parts: a template that prints lists is not meant
/// to be given any.
fn shows(parts: Value, render: Render<'_>) -> bool {
    let text = render(json!([{"role": "user", "content": parts}])).unwrap_or_default();
    let after = text.split_once("one-").map(|(_, after)| after);
    after.is_some_and(|after| after.contains("two") && !prints(after))
}

impl Reads {
    /// Gives messages the form that the template reads.
    pub fn fit(&self, messages: &mut Vec<Value>, render: Render<'_>) {
        let system = |m: Option<&Value>| m.is_some_and(|m| m["role"] == "system");
        while system(messages.first()) && system(messages.get(1)) && self.one_system(render) {
            let second = text_of(&messages.remove(1)["content"]);
            messages[0]["content"] =
                format!("{}\n\n{second}", text_of(&messages[0]["content"])).into();
        }
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            let content = message.get("content").cloned().unwrap_or_default();
            // Templates that read both forms read parts from users.
            let user = message.get("role").is_some_and(|role| role == "user");
            let keeps = || self.parts(render) && (user || !self.texts(render));
            let one = || json!([{"type": "text", "text": text_of(&content)}]);
            let fitted = match &content {
                Value::Array(parts) if parts.iter().any(|part| !part["text"].is_string()) => None,
                Value::Array(_) if !keeps() => Some(text_of(&content).into()),
                Value::Array(parts) if parts.len() > 1 && !self.several(render) => Some(one()),
                Value::String(_) if !self.texts(render) && self.parts(render) => Some(one()),
                _ => None,
            };
            fitted.map(|content| message.insert("content".into(), content));
            if message.contains_key("tool_calls") || message.contains_key("tool_call_id") {
                self.fit_calls(message, self.calls.get_or_init(|| Calls::of(render)));
            }
            self.fit_thoughts(message, render);
            // As the transformers library does: templates that test for a member find none.
            message.retain(|_, value| !value.is_null());
        }
    }

    fn texts(&self, render: Render<'_>) -> bool {
        let probe = json!([{"role": "user", "content": "one-two"}]);
        *self.texts.get_or_init(|| render(probe).is_some_and(|text| text.contains("one-two")))
    }

    fn parts(&self, render: Render<'_>) -> bool {
        let parts = json!([{"type": "text", "text": "one-two"}]);
        *self.parts.get_or_init(|| shows(parts, render))
    }

    /// Whether the template reads more than the first part.
    fn several(&self, render: Render<'_>) -> bool {
        let parts = json!([{"type": "text", "text": "one-"}, {"type": "text", "text": "two"}]);
        *self.several.get_or_init(|| shows(parts, render))
    }

    /// Whether the template shows one system message, but not two.
    fn one_system(&self, render: Render<'_>) -> bool {
        let shows = |texts: &[&str]| {
            let system = texts.iter().map(|text| json!({"role": "system", "content": text}));
            let probe = system.chain([json!({"role": "user", "content": "three"})]).collect();
            render(probe).is_some_and(|all| texts.iter().all(|text| all.contains(text)))
        };
        *self.one_system.get_or_init(|| !shows(&["one-1", "two-2"]) && shows(&["one-1"]))
    }

    fn fit_calls(&self, message: &mut Map<String, Value>, reads: &Calls) {
        let short = |id: &mut Value| {
            if let Some(text) = id.as_str().filter(|text| reads.short && text.len() != SHORT_ID) {
                let kept: Vec<char> = text.chars().filter(char::is_ascii_alphanumeric).collect();
                let kept: String = kept[kept.len().saturating_sub(SHORT_ID)..].iter().collect();
                *id = format!("{kept:0>SHORT_ID$}").into();
            }
        };
        message.get_mut("tool_call_id").into_iter().for_each(short);
        let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
        for call in calls {
            call.get_mut("id").into_iter().for_each(short);
            if let Some(arguments) = call.pointer_mut("/function/arguments")
                && reads.json
                && !arguments.is_string()
            {
                *arguments = dumps(arguments).into();
            }
        }
        let content = message.get("content").unwrap_or(&Value::Null);
        if content.is_null() && !reads.without {
            message.insert("content".into(), "".into());
        } else if content == "" && !reads.empty && reads.without {
            message.remove("content");
        }
    }

    fn fit_thoughts(&self, message: &mut Map<String, Value>, render: Render<'_>) {
        let given = THOUGHTS.iter().find_map(|name| message.get(*name).filter(|t| t.is_string()));
        let Some(thought) = given.cloned().filter(|_| message["role"] == "assistant") else {
            return;
        };
        let content = message.get("content").cloned().unwrap_or_default();
        let (calls, text) = (message.contains_key("tool_calls"), text_of(&content));
        let mut thought = thought.as_str().unwrap_or_default().to_string();
        match self.thoughts.get_or_init(|| Thoughts::of(render)) {
            Thoughts::Alone if calls && !text.is_empty() && !thought.is_empty() => {
                thought = format!("{thought}\n\n{text}");
                message.insert("content".into(), "".into());
            }
            Thoughts::Parts if !thought.is_empty() => {
                let mut parts = vec![json!({"type": "thinking", "thinking": thought})];
                match content {
                    Value::Array(more) => parts.extend(more),
                    _ if text.is_empty() => {}
                    _ => parts.push(json!({"type": "text", "text": text})),
                }
                message.insert("content".into(), parts.into());
            }
            _ => {}
        }
        message.extend(named(&thought));
    }
}

/// A turn that calls a tool, and its result.
fn calling(id: &str, arguments: &Value, more: Value) -> Value {
    let function = json!({"name": "probe", "arguments": arguments});
    let mut turn = json!({"role": "assistant",
        "tool_calls": [{"id": id, "type": "function", "function": function}]});
    if let (Some(turn), Value::Object(more)) = (turn.as_object_mut(), more) {
        turn.extend(more);
    }
    let result = json!({"role": "tool", "tool_call_id": id, "name": "probe", "content": "done"});
    json!([{"role": "user", "content": "go"}, turn, result])
}

/// A call's name as servers make them.
const ID: &str = "call_0123456789abcdef";

impl Calls {
    fn of(render: Render<'_>) -> Calls {
        let arguments = json!({"key": "some-value"});
        let shown = |text: String| {
            // Neither as Python prints objects, nor as JSON in JSON.
            text.contains("some-value") && !text.contains("{'key'") && !text.contains("value\\\"")
        };
        for (short, json) in [(false, false), (false, true), (true, false), (true, true)] {
            let arguments = if json { dumps(&arguments).into() } else { arguments.clone() };
            let id = if short { &ID[ID.len() - SHORT_ID..] } else { ID };
            let shows = |more| render(calling(id, &arguments, more)).is_some_and(shown);
            let (without, empty) = (shows(json!({})), shows(json!({"content": ""})));
            if without || empty {
                return Calls { json, short, without, empty };
            }
        }
        Calls { empty: true, ..Calls::default() }
    }
}

impl Thoughts {
    fn of(render: Render<'_>) -> Thoughts {
        let shows = |more: Value| {
            let id = &ID[ID.len() - SHORT_ID..];
            let text = render(calling(id, &json!({"key": "v"}), more));
            // A template that prints the part shows no thought.
            text.map(|text| text.contains("some-thought") && !prints(&text))
        };
        let member = |text: &str| {
            let content = ("content".to_string(), text.into());
            shows(named("some-thought").chain([content]).collect())
        };
        if member("") == Some(true) {
            return if member("text").is_none() { Thoughts::Alone } else { Thoughts::Members };
        }
        let parts = json!([{"type": "thinking", "thinking": "some-thought"}]);
        match shows(json!({"content": parts})) {
            Some(true) => Thoughts::Parts,
            _ => Thoughts::Members,
        }
    }
}

/// A thought under its names.
fn named(thought: &str) -> impl Iterator<Item = (String, Value)> {
    THOUGHTS.iter().map(move |name| (name.to_string(), thought.into()))
}

/// Whether a text has a part as Python or JSON writes it.
fn prints(text: &str) -> bool {
    ["{'type'", "{\"type\": \"te", "{\"type\": \"th"].iter().any(|part| text.contains(part))
}

/// The text of a content.
pub(super) fn text_of(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten();
    content.as_str().into_iter().chain(parts.filter_map(|part| part["text"].as_str())).collect()
}
