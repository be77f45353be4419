//! Text to tokens and back, under the names of llama.cpp's server and of vLLM's.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};
use troika::Conversation;
use troika::model::chat::local_time;

use super::Answer;
use super::prompts::{check_ids, encode};
use crate::chat::{Tools, chat_messages, text_bytes};
use crate::fields::Fields;
use crate::json_request::{self, JsonRequest};
use crate::limits;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::state::Server;
use crate::turn::Turn;

pub async fn tokenize(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    let special = fields.get("add_special_tokens")?.or(fields.get("add_special")?);
    // llama.cpp's server, whose field is "content", adds none by itself.
    let by_content = fields.value("content").is_some();
    let text: Option<String> =
        if by_content { fields.get("content")? } else { fields.get("prompt")? };
    let talk = fields.value("messages").map(|_| conversation(&fields, &host)).transpose()?;
    let pieces = fields.flag("with_pieces")?;
    let parse_special = fields.get("parse_special")?.unwrap_or(true);
    let turn = Turn::new(&call, &host);
    let given = talk.as_ref().map_or(&[][..], |talk| talk.messages.as_slice());
    let of_text = text.as_ref().map_or(0, String::len);
    host.model.check_text(of_text + text_bytes(given))?;
    let bytes = of_text + given.iter().map(limits::size).sum::<usize>();
    let tokenize = move |host: &InUse| {
        if let Some(talk) = talk {
            let prompt = host.model.chat_prompt(&talk)?;
            host.model.check_text(prompt.text.len())?;
            return Ok(host.model.tokenize_chat(&prompt)?.0);
        }
        let text =
            text.ok_or_else(|| Problem::field("content", "content, the text, is missing"))?;
        encode(&text, host, special.unwrap_or(!by_content), parse_special)
    };
    let ids = turn.prepare(bytes, tokenize).await?;
    let spelled = |id: &u32| {
        let bytes = host.model.tokenizer().and_then(|t| t.token_bytes(*id)).unwrap_or_default();
        let piece = match String::from_utf8(bytes) {
            Ok(text) => Value::from(text),
            Err(bytes) => json!(bytes.into_bytes()),
        };
        json!({"id": id, "piece": piece})
    };
    let tokens = if pieces { ids.iter().map(spelled).collect() } else { json!(ids) };
    let (count, most) = (ids.len(), host.model.context());
    Ok(json_request::json(&json!({"tokens": tokens, "count": count, "max_model_len": most})))
}

pub async fn detokenize(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let ids: Vec<u32> = call.fields().need("tokens")?;
    let tokenizer = host.model.tokenizer();
    let tokenizer = tokenizer.ok_or_else(|| Problem::bad("the model has no tokenizer"))?;
    check_ids("tokens", &ids, &host)?;
    let text = tokenizer.decode(&ids, false).map_err(|e| Problem::bad(e.to_string()))?;
    Ok(json_request::json(&json!({"content": text, "prompt": text})))
}

/// What clients that count tokens want to know, as vLLM tells it.
pub async fn info(State(server): State<Arc<Server>>) -> Answer {
    let host = server.models.get(None).await?;
    let tokenizer = host.model.tokenizer();
    let token = |id: Option<u32>| id.and_then(|id| tokenizer?.token(id));
    Ok(json_request::json(&json!({
        "tokenizer_class": "troika",
        "model_max_length": host.model.context(),
        "eos_token": token(tokenizer.and_then(|t| t.eos())),
        "bos_token": token(tokenizer.and_then(|t| t.bos())),
        "pad_token": null,
        "chat_template": host.model.template(false),
    })))
}

/// The prompt that a conversation becomes.
pub async fn apply_template(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let talk = conversation(&call.fields(), &host)?;
    let bytes = talk.messages.iter().map(limits::size).sum();
    let render = move |host: &InUse| Ok(host.model.chat_prompt(&talk)?.text);
    let prompt = Turn::new(&call, &host).prepare(bytes, render).await?;
    Ok(json_request::json(&json!({"prompt": prompt})))
}

/// A conversation as the chat interface reads it.
fn conversation(fields: &Fields<'_>, host: &InUse) -> Result<Conversation, Problem> {
    Ok(Conversation {
        tools: Tools::read(fields, "parameters")?.chosen(fields)?.for_template(),
        extra: super::thinking::variables(fields, host)?,
        now: Some(local_time()),
        add_generation_prompt: fields.get("add_generation_prompt")?.unwrap_or(true),
        ..Conversation::new(chat_messages(fields.value("messages"))?)
    })
}
