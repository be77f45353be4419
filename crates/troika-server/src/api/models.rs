//! OpenAI's `/v1/models`, and llama.cpp's `/models`, `/props`, `/slots` and `/lora-adapters`.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde_json::{Value, json};
use troika::model::tokenizer::Tokenizer;

use super::Answer;
use super::ggml::settings;
use super::live::OfModel;
use crate::json_request;
use crate::models::{ListedModel, ModelState};
use crate::state::Server;

fn model(name: &str, listed: &ListedModel) -> Value {
    let mut model = json!({
        "id": name,
        "object": "model",
        "created": listed.modified.as_secs(),
        "owned_by": "troika",
    });
    if let ModelState::Open(host) = &listed.state {
        model["meta"] = json!({
            "n_ctx": host.model.context(),
            "n_ctx_train": host.model.spec().context,
            "n_vocab": host.model.spec().vocab,
            "size": host.weight_bytes(),
        });
    }
    model
}

pub async fn list(State(server): State<Arc<Server>>) -> Response {
    let list = server.models.list();
    let data = list.iter().flat_map(|listed| listed.names.iter().map(|name| model(name, listed)));
    let data: Vec<Value> = data.collect();
    json_request::json(&json!({"object": "list", "data": data}))
}

/// Lists the models as llama.cpp's server and its router do.
pub async fn ggml_list(State(server): State<Arc<Server>>) -> Response {
    let list = server.models.list();
    let with_status = |listed: &ListedModel| {
        let mut model = model(&listed.name, listed);
        model["aliases"] = json!(listed.names[1..]);
        let (status, failed) = match &listed.state {
            ModelState::Closed => ("unloaded", false),
            ModelState::Loading => ("loading", false),
            ModelState::Open(_) => ("loaded", false),
            ModelState::Failed(_) => ("unloaded", true),
        };
        model["status"] = json!({"value": status, "failed": failed});
        model
    };
    let data: Vec<Value> = list.iter().map(with_status).collect();
    let models = super::ollama_models::entries(&server);
    json_request::json(&json!({"object": "list", "data": data, "models": models}))
}

pub async fn one(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Answer {
    let found = server.models.listed(&name).ok_or_else(|| server.models.unknown(&name))?;
    Ok(json_request::json(&model(&found.name, &found)))
}

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
