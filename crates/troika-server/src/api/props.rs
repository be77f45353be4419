//! llama.cpp's `/props`, `/slots` and `/lora-adapters`.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use serde_json::{Value, json};
use troika::model::tokenizer::Tokenizer;

use super::Answer;
use super::ggml::settings;
use super::live::OfModel;
use crate::json_request;
use crate::state::Server;

/// What a model is, and what it does by itself. Its files' place is nobody's business.
pub async fn props(State(server): State<Arc<Server>>, Query(of): Query<OfModel>) -> Answer {
    let host = server.models.get(of.model.as_deref()).await?;
    let (model, tokenizer) = (&host.model, host.model.tokenizer());
    let token = |id: fn(&Tokenizer) -> Option<u32>| {
        tokenizer.and_then(|t| t.token(id(t)?)).unwrap_or_default()
    };
    let params = settings(&model.defaults().params());
    let mut props = json!({
        "default_generation_settings": {"params": params, "n_ctx": model.context()},
        "total_slots": server.options.parallel,
        "model_alias": host.name,
        "model_path": host.name,
        "modalities": {"vision": false, "audio": false, "video": false},
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": model.template(false).unwrap_or_default(),
        "bos_token": token(Tokenizer::bos),
        "eos_token": token(Tokenizer::eos),
        "build_info": concat!("troika ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    });
    if let Some(template) = model.template(true).filter(|t| Some(*t) != model.template(false)) {
        props["chat_template_tool_use"] = template.into();
    }
    Ok(json_request::json(&props))
}

/// Answers that are computed at once. They have no place of their own: the first are those at work.
pub async fn slots(State(server): State<Arc<Server>>, Query(of): Query<OfModel>) -> Answer {
    let host = server.models.get(of.model.as_deref()).await?;
    let (all, busy) = (server.options.parallel, server.queue.running());
    let context = host.model.context();
    let slot = |id| json!({"id": id, "n_ctx": context, "is_processing": id < busy});
    Ok(json_request::json(&(0..all).map(slot).collect::<Value>()))
}

/// There are none.
pub async fn lora_adapters() -> Response {
    json_request::json(&json!([]))
}
