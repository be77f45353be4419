//! `/health` and `/metrics`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::json_request;
use crate::models::ModelState;
use crate::problem::Problem;
use crate::state::Server;

/// Whether requests are served: not while the first model is being opened.
///
/// # Errors
/// They are not, as yet.
pub async fn health(State(server): State<Arc<Server>>) -> Result<Response, Problem> {
    let first = server.models.list().into_iter().next().map(|listed| listed.state);
    let why = match first {
        Some(ModelState::Loading) => "the model is being opened".to_string(),
        Some(ModelState::Failed(why)) => why,
        _ => return Ok(json_request::json(&json!({"status": "ok"}))),
    };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    Err(Problem { retry_after: Some(1), ..problem })
}

/// Figures for Prometheus.
pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    server.metrics.queued.set(server.queue.waiting() as i64);
    server.metrics.running.set(server.queue.running() as i64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], server.metrics.text()).into_response()
}
