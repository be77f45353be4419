//! Ollama's lists of models.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::call::{self, Call};
use crate::models::{ListedModel, ModelState};
use crate::problem::Problem;
use crate::state::Server;

/// The version of Ollama's interface that is spoken: editors ask whether it is new enough.
const VERSION: &str = "0.12.0";

/// A date for what has none: clients parse it.
const NO_DATE: &str = "1970-01-01T00:00:00Z";

/// The version.
pub async fn version() -> Response {
    call::json(&json!({"version": VERSION}))
}

fn details(listed: &ListedModel) -> Value {
    let family = match &listed.state {
        ModelState::Open(host) => host.model.spec().family.to_string(),
        _ => String::new(),
    };
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    })
}

fn entry(listed: &ListedModel) -> Value {
    json!({
        "name": listed.name,
        "model": listed.name,
        "modified_at": NO_DATE,
        "size": listed.bytes,
        "digest": "",
        "details": details(listed),
    })
}

/// The models on offer.
pub async fn tags(State(server): State<Arc<Server>>) -> Response {
    let models: Vec<Value> = server.models.list().iter().map(entry).collect();
    call::json(&json!({"models": models}))
}

/// The models that are open.
pub async fn ps(State(server): State<Arc<Server>>) -> Response {
    let list = server.models.list();
    let open = list.iter().filter(|listed| matches!(listed.state, ModelState::Open(_)));
    let models: Vec<Value> = open.map(entry).collect();
    call::json(&json!({"models": models}))
}

/// Tells of a model. It is opened for that.
///
/// # Errors
/// There is none of that name, or it cannot be opened.
pub async fn show(State(server): State<Arc<Server>>, call: Call) -> Result<Response, Problem> {
    let fields = call.fields();
    let name = call.model()?.or(fields.get("name")?);
    let host = server.model(name.as_deref()).await?;
    let list = server.models.list();
    let listed = list.iter().find(|listed| listed.name == host.name);
    let gone = || Problem::new(StatusCode::NOT_FOUND, "the model was closed; ask again");
    let (model, spec) = (&host.model, host.model.spec());
    let arch = spec.family.to_string();
    let mut info = json!({
        "general.architecture": arch,
        "general.parameter_count": model.store().classes().iter().map(|c| c.parameters).sum::<u64>(),
    });
    info[format!("{arch}.context_length")] = spec.context.into();
    info[format!("{arch}.embedding_length")] = spec.hidden.into();
    info[format!("{arch}.block_count")] = spec.layers.len().into();
    Ok(call::json(&json!({
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": model.template(false).unwrap_or_default(),
        "modified_at": NO_DATE,
        "details": details(listed.ok_or_else(gone)?),
        "model_info": info,
        "capabilities": ["completion", "tools", "embedding"],
    })))
}
