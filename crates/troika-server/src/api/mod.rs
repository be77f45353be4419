//! The interfaces, a file for each.

mod anthropic;
mod chat;
mod completions;
mod constrain;
mod embeddings;
mod ggml;
mod live;
mod models;
mod ollama;
mod ollama_models;
mod prompts;
mod request;
mod responses;
mod responses_form;
mod responses_input;
mod thinking;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};

use crate::json_request::read_off;
use crate::problem::Problem;
use crate::state::Server;

/// What a request is answered with. The error says what is wrong with it, or why it is not served.
type Answer = Result<Response, Problem>;

pub fn routes() -> Router<Arc<Server>> {
    let routes = Router::new()
        .route("/health", get(live::health))
        .route("/v1/health", get(live::health))
        .route("/metrics", get(live::metrics))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::info))
        .route("/apply-template", post(tokens::apply_template))
        .route("/troika/status", get(live::status))
        .route("/troika/events", get(live::events))
        .route("/troika/plan", get(live::plan));
    let routes = routes
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens));
    let routes = routes
        .route("/completion", post(ggml::completion))
        .route("/completions", post(ggml::completion))
        .route("/infill", post(ggml::infill))
        .route("/chat/completions", post(chat::chat))
        .route("/embedding", post(embeddings::ggml_embeddings))
        .route("/embeddings", post(embeddings::ggml_embeddings))
        .route("/models", get(models::ggml_list))
        .route("/props", get(models::props))
        .route("/slots", get(models::slots))
        .route("/lora-adapters", get(models::lora_adapters));
    routes
        .route("/api/version", get(ollama_models::version))
        .route("/api/tags", get(ollama_models::tags))
        .route("/api/ps", get(ollama_models::ps))
        .route("/api/show", post(ollama_models::show))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(embeddings::ollama_embed))
        .route("/api/embeddings", post(embeddings::ollama_embed_one))
        .method_not_allowed_fallback(async |request| {
            read_off(request).await;
            Problem::new(
                axum::http::StatusCode::METHOD_NOT_ALLOWED,
                "this path does not take this method; see docs/server.md for those that it takes",
            )
        })
        .fallback(async |request| {
            read_off(request).await;
            Problem::new(
                axum::http::StatusCode::NOT_FOUND,
                "there is nothing at this path; see docs/server.md for the paths that there are",
            )
        })
}
