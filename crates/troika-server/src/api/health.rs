//! `/health` and `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Answer;
use crate::json_request;
use crate::models::ModelState;
use crate::problem::Problem;
use crate::state::Server;

/// Whether requests are served: not while the first model is being opened, or when all have failed.
pub async fn health(State(server): State<Arc<Server>>) -> Answer {
    let states: Vec<ModelState> = server.models.list().into_iter().map(|l| l.state).collect();
    let failed = states.iter().find_map(|state| match state {
        ModelState::Failed(why) => Some(why.clone()),
        _ => None,
    });
    let is = |wanted: fn(&ModelState) -> bool| states.iter().any(wanted);
    let why = match (is(|s| matches!(s, ModelState::Loading)), failed) {
        _ if is(|s| matches!(s, ModelState::Open(_))) => None,
        (true, _) => Some("the model is being opened".into()),
        (false, failed) => failed.filter(|_| !is(|s| matches!(s, ModelState::Closed))),
    };
    let Some(why) = why else { return Ok(json_request::json(&json!({"status": "ok"}))) };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    Err(Problem { retry_after: Some(1), ..problem })
}

pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    server.metrics.queued.set(server.queue.waiting() as i64);
    server.metrics.running.set(server.queue.running() as i64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], server.metrics.text()).into_response()
}
