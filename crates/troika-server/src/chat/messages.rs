//! Messages of a conversation as templates read them.

use serde_json::{Map, Value, json};
use troika::model::chat::ChatPrompt;

use crate::ids;
use crate::problem::Problem;

/// The text of a content: a text, or a list of parts that are texts.
///
/// # Errors
/// A part other than text, such as an image.
pub fn text_of(content: &Value) -> Result<String, Problem> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(text_in).collect(),
        _ => Err(wrong(": a content has to be a text or a list of parts")),
    }
}

fn text_in(part: &Value) -> Result<&str, Problem> {
    match (part, part["type"].as_str()) {
        (Value::String(text), _) => Ok(text.as_str()),
        (_, Some("text" | "input_text" | "output_text")) => {
            part["text"].as_str().ok_or_else(|| wrong(": a part of text has no text"))
        }
        (_, Some("refusal")) => Ok(part["refusal"].as_str().unwrap_or("")),
        (_, kind) => {
            let kind = kind.unwrap_or("no known type");
            Err(wrong(&format!(": a part is of type {kind:?}; the model reads text only")))
        }
    }
}

/// A problem of messages, in words that follow that word.
fn wrong(why: &str) -> Problem {
    Problem::field("messages", format!("messages{why}"))
}

/// A user's content of texts: several stay parts, for templates that write something between them.
pub fn content_of(content: &Value) -> Result<Value, Problem> {
    match content.as_array().filter(|parts| parts.len() > 1) {
        Some(parts) => parts.iter().map(|part| Ok(text_part(&text_of(&json!([part]))?))).collect(),
        None => Ok(text_of(content)?.into()),
    }
}

pub fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The texts of a content that has been checked.
fn texts(content: &Value) -> impl Iterator<Item = &str> {
    let parts = content.as_array().into_iter().flatten();
    content.as_str().into_iter().chain(parts.filter_map(|part| part["text"].as_str()))
}

/// A system prompt without the line that some agents begin it with. It counts their requests, and
/// differs in each, so that no beginning of a prompt would be kept.
pub fn without_billing(system: &str) -> Option<&str> {
    let line = system.strip_prefix("x-anthropic-billing-header:")?;
    Some(line.split_once('\n').map_or("", |(_, rest)| rest))
}

/// What an assistant thought, under any name that clients send it back by.
fn thought(message: &Map<String, Value>) -> Option<Value> {
    let named = ["reasoning_content", "reasoning", "thinking"].map(|name| message.get(name));
    let named = named.into_iter().flatten().find(|text| text.is_string()).cloned();
    let parts = message.get("content").and_then(Value::as_array).into_iter().flatten();
    let parts = parts
        .filter(|part| thinks(part))
        .filter_map(|p| p["thinking"].as_str().or(p["text"].as_str()));
    let parts: String = parts.collect();
    named.or((!parts.is_empty()).then(|| parts.into()))
}

fn thinks(part: &Value) -> bool {
    matches!(part["type"].as_str(), Some("thinking" | "reasoning"))
}

/// Checks OpenAI's messages, and makes texts of their contents and objects of their calls'
/// arguments, as templates read them.
///
/// # Errors
/// Messages of another form.
pub fn chat_messages(messages: Option<&Value>) -> Result<Vec<Value>, Problem> {
    let list = messages.ok_or_else(|| wrong(" are missing"))?;
    let list = list.as_array().ok_or_else(|| wrong(" have to be a list"))?;
    if list.is_empty() {
        return Err(wrong(" are an empty list; give at least one"));
    }
    list.iter().map(chat_message).collect()
}

fn chat_message(message: &Value) -> Result<Value, Problem> {
    let message = message.as_object().ok_or_else(|| wrong(" have to be objects"))?;
    let role = message.get("role").and_then(Value::as_str);
    let role = match role.ok_or_else(|| wrong(" need a role"))? {
        // Newer clients say "developer" for what templates know as "system".
        "developer" | "system" => "system",
        "function" => "tool",
        role @ ("user" | "assistant" | "tool") => role,
        role => return Err(wrong(&format!(" have the role {role:?}, which is not known"))),
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let content = message.get("content").unwrap_or(&Value::Null);
    if content.is_null() && role != "assistant" {
        return Err(wrong(&format!(" of the role {role} need a content")));
    }
    let content = match role {
        "user" => content_of(content)?,
        // Templates tell calls alone from calls beside a text.
        _ if content.is_null() && message.get("tool_calls").is_some_and(Value::is_array) => {
            Value::Null
        }
        _ => match content.as_array().filter(|_| role == "assistant") {
            Some(parts) => {
                text_of(&parts.iter().filter(|part| !thinks(part)).cloned().collect())?.into()
            }
            None => text_of(content)?.into(),
        },
    };
    out.insert("content".into(), content);
    for (to, name) in [("name", "name"), ("name", "tool_name"), ("tool_call_id", "tool_call_id")] {
        if let Some(text) = message.get(name).filter(|v| v.is_string()) {
            out.insert(to.into(), text.clone());
        }
    }
    if let Some(thought) = thought(message).filter(|_| role == "assistant") {
        out.insert("reasoning_content".into(), thought);
    }
    if let Some(Value::Array(calls)) = message.get("tool_calls")
        && !calls.is_empty()
    {
        out.insert("tool_calls".into(), calls.iter().map(call).collect::<Result<_, _>>()?);
    }
    Ok(Value::Object(out))
}

/// A call with its arguments as an object.
fn call(call: &Value) -> Result<Value, Problem> {
    let mut call = call.clone();
    let function = call.get_mut("function").and_then(Value::as_object_mut);
    let function = function.filter(|f| f.get("name").is_some_and(Value::is_string));
    let function = function.ok_or_else(|| wrong(": a tool call has no function with a name"))?;
    let arguments = match function.get("arguments").unwrap_or(&Value::Null) {
        Value::Null => Value::Object(Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        // Text that is not JSON stays as the model wrote it.
        Value::String(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        other => other.clone(),
    };
    function.insert("arguments".into(), arguments);
    Ok(call)
}

/// The bytes of the texts of messages: their names and calls do not count towards the context.
pub fn text_bytes(messages: &[Value]) -> usize {
    messages.iter().flat_map(|message| texts(&message["content"])).map(str::len).sum()
}

/// Messages for a model without a template: calls are written into the texts, in Hermes's format,
/// so that the model sees what it called.
pub(super) fn with_calls_as_text(messages: &[Value]) -> Vec<Value> {
    let with_calls = |message: &Value| {
        let mut message = message.clone();
        let calls = message.get("tool_calls").and_then(Value::as_array).cloned();
        for call in calls.into_iter().flatten() {
            let text = message["content"].as_str().unwrap_or_default();
            let gap = if text.is_empty() { "" } else { "\n" };
            let text = format!("{text}{gap}<tool_call>\n{}\n</tool_call>", call["function"]);
            message["content"] = text.into();
        }
        message
    };
    messages.iter().map(with_calls).collect()
}

/// Marks the end of the last message, which the answer is to continue. Returns the mark, at which
/// [`cut_at`] cuts the rendered prompt, as the transformers library does.
///
/// # Errors
/// The last message calls tools.
pub(super) fn mark_last(messages: &mut [Value]) -> Result<String, Problem> {
    let mark = ids::unique("continued");
    let Some(last) = messages.last_mut() else { return Ok(mark) };
    if last.get("tool_calls").is_some() {
        let why =
            ": the last one calls tools, so that it cannot be continued; give the tools' results";
        return Err(wrong(why));
    }
    let content: String = texts(&last["content"]).collect();
    // If the blank is gone afterwards, the template trims messages.
    last["content"] = format!("{content}{mark} ").into();
    Ok(mark)
}

/// Cuts a prompt at the mark of [`mark_last`], after the last message's `content`.
///
/// # Errors
/// The template leaves the last message out.
pub(super) fn cut_at(mark: &str, content: &str, prompt: &mut ChatPrompt) -> Result<(), Problem> {
    let Some(at) = prompt.text.rfind(mark) else {
        let why = ": the chat template leaves the last one out, so that it cannot be continued";
        return Err(wrong(why));
    };
    let trims = !prompt.text[at + mark.len()..].starts_with(' ');
    prompt.text.truncate(at);
    // White space before a blank message is the template's own.
    if trims && !content.trim().is_empty() {
        prompt.text.truncate(prompt.text.trim_end().len());
    }
    let end = prompt.text.len();
    prompt.plain.retain(|place| *place < end);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use troika::model::chat::{ChatInput, ChatPrompt, ChatTemplate};

    use super::{chat_messages, cut_at, mark_last, text_bytes, without_billing};
    use crate::problem::Problem;

    #[test]
    fn contents_become_texts_and_arguments_objects() {
        let calls = |arguments| {
            json!([{"id": "a", "type": "function",
            "function": {"name": "f", "arguments": arguments}}])
        };
        let messages = json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": calls("{\"x\": [1]}"), "audio": 1},
            {"role": "assistant", "tool_calls": calls("not json")},
            {"role": "tool", "tool_call_id": "a", "content": "c", "tool_calls": []},
        ]);
        let expected = json!([
            {"role": "system", "content": "ab"},
            {"role": "assistant", "content": null, "tool_calls": calls_of(json!({"x": [1]}))},
            {"role": "assistant", "content": null, "tool_calls": calls_of(json!("not json"))},
            {"role": "tool", "content": "c", "tool_call_id": "a"},
        ]);
        assert_eq!(json!(chat_messages(Some(&messages)).unwrap()), expected);
    }

    #[test]
    fn thoughts_come_under_any_name_and_users_parts_stay() {
        let part = |text: &str| json!({"type": "text", "text": text});
        let thinks = json!([{"type": "thinking", "thinking": "t"}, part("a")]);
        let messages = json!([
            {"role": "user", "content": [part("a"), {"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": "a", "reasoning": "t"},
            {"role": "assistant", "content": "a", "thinking": "t", "reasoning": null},
            {"role": "assistant", "content": thinks},
        ]);
        let thought = json!({"role": "assistant", "content": "a", "reasoning_content": "t"});
        let user = json!({"role": "user", "content": [part("a"), part("b")]});
        let expected = [user, thought.clone(), thought.clone(), thought];
        assert_eq!(chat_messages(Some(&messages)).unwrap(), expected);
        assert_eq!(text_bytes(&expected), 5);
        let system = "x-anthropic-billing-header: cch=a;\nBe brief.";
        assert_eq!(without_billing(system), Some("Be brief."));
        assert_eq!(without_billing("Be brief."), None);
    }

    #[test]
    fn only_texts_count_towards_the_context() {
        let calls = calls_of(json!({"x": "a long argument"}));
        let messages = [
            json!({"role": "user", "content": "é?"}),
            json!({"role": "assistant", "content": "", "tool_calls": calls}),
            json!({"role": "tool", "content": "1", "tool_call_id": "a"}),
        ];
        assert_eq!(text_bytes(&messages), 4);
    }

    fn calls_of(arguments: serde_json::Value) -> serde_json::Value {
        json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}])
    }

    #[test]
    fn what_is_no_conversation_is_refused_in_words() {
        for (messages, says) in [
            (None, "are missing"),
            (Some(json!("x")), "have to be a list"),
            (Some(json!([])), "are an empty list"),
            (Some(json!([1])), "have to be objects"),
            (Some(json!([{"content": "x"}])), "need a role"),
            (Some(json!([{"role": "king"}])), "the role \"king\""),
            (Some(json!([{"role": "user"}])), "of the role user need a content"),
            (Some(json!([{"role": "user", "content": 5}])), "a text or a list of parts"),
            (Some(json!([{"role": "user", "content": [{"type": "image_url"}]}])), "image_url"),
            (Some(json!([{"role": "user", "content": [7]}])), "no known type"),
            (Some(json!([{"role": "assistant", "tool_calls": [{}]}])), "no function with a name"),
        ] {
            let problem = chat_messages(messages.as_ref()).unwrap_err();
            assert!(problem.message.contains(says), "{}", problem.message);
            assert_eq!(problem.param.as_deref(), Some("messages"));
        }
    }

    /// The prompt in which the answer goes on after `content`.
    fn continued(template: &str, content: &str) -> Result<String, Problem> {
        let mut messages = [
            json!({"role": "user", "content": "i"}),
            json!({"role": "assistant", "content": content}),
        ];
        let mark = mark_last(&mut messages)?;
        let input = ChatInput { messages: messages.to_vec(), ..ChatInput::default() };
        let mut prompt = ChatTemplate::new(template).unwrap().render(&input).unwrap();
        cut_at(&mark, content, &mut prompt)?;
        Ok(prompt.text)
    }

    #[test]
    fn an_answer_goes_on_where_the_last_message_ends() {
        const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
                              <|im_end|>\n{% endfor %}";
        const TRIMS: &str = "{% for m in messages %}<|start_header_id|>{{ m.role }}\
                             <|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}";
        let parts_of_markers =
            ["<", "i", "im", "end", "e", "n", "d", "m", "_", "|", ">", "<|", "|>", "\n", "", "x y"];
        for content in parts_of_markers.into_iter().chain(["```json\n", "x \n ", "eot", "\n\n<|"]) {
            let begun = "<|im_start|>user\ni<|im_end|>\n<|im_start|>assistant\n";
            assert_eq!(continued(CHATML, content).unwrap(), format!("{begun}{content}"));
            let begun = "<|start_header_id|>user<|end_header_id|>\n\ni<|eot_id|>\
                         <|start_header_id|>assistant<|end_header_id|>\n\n";
            let expected = format!("{begun}{}", content.trim());
            assert_eq!(continued(TRIMS, content).unwrap(), expected);
        }
        let problem = continued("{{ messages[0].content }}", "x").unwrap_err();
        assert!(problem.message.contains("leaves the last one out"), "{}", problem.message);
        let mut calls = [json!({"role": "assistant", "content": "", "tool_calls": [{}]})];
        assert!(mark_last(&mut calls).unwrap_err().message.contains("calls tools"));
        // Places of plain text after the cut are gone with it.
        let mut prompt = ChatPrompt { text: "<u>Oncemark <end>".into(), plain: vec![2, 12] };
        cut_at("mark", "Once", &mut prompt).unwrap();
        assert_eq!(prompt, ChatPrompt { text: "<u>Once".into(), plain: vec![2] });
    }
}
