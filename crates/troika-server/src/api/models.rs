//! OpenAI's `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::call;
use crate::models::{ListedModel, ModelState};
use crate::problem::Problem;
use crate::state::Server;

fn model(listed: &ListedModel) -> Value {
    let mut model = json!({
        "id": listed.name,
        "object": "model",
        "created": 0,
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

/// Lists the models.
pub async fn list(State(server): State<Arc<Server>>) -> Response {
    let data: Vec<Value> = server.models.list().iter().map(model).collect();
    call::json(&json!({"object": "list", "data": data}))
}

/// Tells of a model.
///
/// # Errors
/// There is none of that name.
pub async fn one(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let list = server.models.list();
    let found = list.iter().find(|listed| listed.name == name);
    let missing = || {
        let why = format!("there is no model {name:?} here; GET /v1/models lists those there are");
        Problem::new(StatusCode::NOT_FOUND, why).with_code("model_not_found")
    };
    Ok(call::json(&model(found.ok_or_else(missing)?)))
}
