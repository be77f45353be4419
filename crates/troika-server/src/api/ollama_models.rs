//! Ollama's lists of models.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use troika::model::families::gguf_name;
use troika::model::spec::Layer;

use super::Answer;
use crate::ids;
use crate::json_request::{self, JsonRequest};
use crate::models::{ListedModel, ModelState};
use crate::open_model::OpenModel;
use crate::state::Server;
use troika::model::chat::rfc3339;

/// The version of Ollama's interface that is spoken: editors ask whether it is new enough.
const VERSION: &str = "0.12.0";

/// What models without a template get.
const NO_TEMPLATE: &str = "{{ messages | map(attribute='content') | join('\\n') }}";

pub async fn version() -> Response {
    json_request::json(&json!({"version": VERSION}))
}

/// When the server began, as RFC 3339 says it: files of models may have no date of their own.
fn since(server: &Server) -> String {
    rfc3339(ids::since_1970().saturating_sub(server.models.clock()))
}

/// Parameters in billions or millions, as Ollama writes them.
fn parameters(host: &OpenModel) -> u64 {
    host.model.store().classes().iter().map(|c| c.parameters).sum()
}

fn details(listed: &ListedModel) -> Value {
    let (mut family, mut size, mut quantization) = (String::new(), String::new(), String::new());
    if let ModelState::Open(host) = &listed.state {
        family = gguf_name(&host.model.spec().family).to_string();
        size = match parameters(host) as f64 {
            n if n >= 1e9 => format!("{:.1}B", n / 1e9),
            n => format!("{:.1}M", n / 1e6),
        };
        // The type of most of the weights.
        let classes = host.model.store().classes();
        let most = classes.iter().max_by_key(|c| c.bytes);
        quantization = most.map_or(String::new(), |c| c.dtype.name().to_string());
    }
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": quantization,
    })
}

fn entry(server: &Server, name: &str, listed: &ListedModel) -> Value {
    let size = match &listed.state {
        ModelState::Open(host) if listed.bytes == 0 => host.weight_bytes(),
        _ => listed.bytes,
    };
    // Not of the contents, which would take long: it tells models apart.
    let named = format!("{} {}", listed.name, listed.bytes);
    let digest = ring::digest::digest(&ring::digest::SHA256, named.as_bytes());
    let digest: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    json!({
        "name": name,
        "model": name,
        "modified_at": since(server),
        "size": size,
        "digest": digest,
        "details": details(listed),
    })
}

/// The models on offer, by all their names.
pub fn entries(server: &Server) -> Value {
    let list = server.models.list();
    let of = |listed: &ListedModel| -> Vec<Value> {
        listed.names.iter().map(|name| entry(server, name, listed)).collect()
    };
    list.iter().flat_map(of).collect()
}

pub async fn tags(State(server): State<Arc<Server>>) -> Response {
    json_request::json(&json!({"models": entries(&server)}))
}

/// For ever, as far as clients can tell.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The models that are open.
pub async fn ps(State(server): State<Arc<Server>>) -> Response {
    let list = server.models.list();
    let open = |listed: &ListedModel| {
        let ModelState::Open(host) = &listed.state else { return None };
        let mut model = entry(&server, &listed.name, listed);
        let closes = host.left(server.options.keep_alive).unwrap_or(FOR_EVER).min(FOR_EVER);
        model["expires_at"] = rfc3339(ids::since_1970() + closes).into();
        model["size_vram"] = 0.into();
        model["context_length"] = host.model.context().into();
        Some(model)
    };
    let models: Vec<Value> = list.iter().filter_map(open).collect();
    json_request::json(&json!({"models": models}))
}

/// The chat template. Editors look for Ollama's name of a suffix in it before they send one.
fn template(host: &OpenModel) -> String {
    let template = host.model.template(false).unwrap_or(NO_TEMPLATE);
    let fills_in = host.model.tokenizer().is_some_and(|t| t.fim().is_some());
    let suffix = if fills_in { "{#- .Suffix: /api/generate fills in -#}" } else { "" };
    format!("{suffix}{template}")
}

/// What a model can do, as Ollama finds it: in its chat template, and in its tokens.
fn capabilities(host: &OpenModel) -> Vec<&'static str> {
    let tools = host.model.template(true).is_some_and(|template| template.contains("tools"));
    let insert = host.model.tokenizer().is_some_and(|t| t.fim().is_some());
    let known = [("completion", true), ("tools", tools), ("insert", insert)];
    let known = known.into_iter().chain([("thinking", host.thinks())]);
    known.filter(|(_, can)| *can).map(|(name, _)| name).collect()
}

/// Tells of a model. It is opened for that.
pub async fn show(call: JsonRequest) -> Answer {
    let fields = call.fields();
    let name = call.model()?.or(fields.get("name")?);
    let host = call.server.models.get(name.as_deref()).await?;
    let listed = call.server.models.listed(&host.name);
    let spec = host.model.spec();
    let arch = gguf_name(&spec.family);
    let mut info = json!({
        "general.architecture": arch,
        "general.parameter_count": parameters(&host),
    });
    info[format!("{arch}.context_length")] = spec.context.into();
    info[format!("{arch}.embedding_length")] = spec.hidden.into();
    info[format!("{arch}.block_count")] = spec.layers.len().into();
    if let Some(attn) = spec.layers.iter().find_map(Layer::attention) {
        info[format!("{arch}.attention.head_count")] = attn.heads.into();
        info[format!("{arch}.attention.head_count_kv")] = attn.kv_heads.into();
    }
    Ok(json_request::json(&json!({
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": template(&host),
        "modified_at": since(&call.server),
        "details": listed.as_ref().map(details),
        "model_info": info,
        "capabilities": capabilities(&host),
    })))
}
