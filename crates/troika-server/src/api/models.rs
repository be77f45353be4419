//! OpenAI's `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::Answer;
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
