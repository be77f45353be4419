//! Embeddings: OpenAI's `/v1/embeddings` and Ollama's `/api/embed`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::iter;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use crate::completion;
use crate::fields::{Fields, whole};
use crate::json_request::{self, JsonRequest};
use crate::limits::{self, PROMPTS};
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::state::Server;
use crate::turn::Turn;

/// Embeddings of texts, with the number of their tokens.
struct Embedded {
    host: InUse,
    rows: Vec<Vec<f32>>,
    tokens: usize,
}

/// The tokens of the texts: a text, texts, token ids, or lists of them.
fn inputs(host: &InUse, name: &str, given: &Value) -> Result<Vec<Vec<u32>>, Problem> {
    let must = format!("{name} has to be a text, token ids, or a list of them");
    let wrong = || Problem::field(name, must.clone());
    let of = |one: &Value| match one {
        Value::String(text) => {
            host.model.check_text(text.len())?;
            Ok(host.model.tokenize(text)?.0)
        }
        Value::Array(ids) => {
            let id = |v: &Value| whole(v).and_then(|id| u32::try_from(id).ok());
            ids.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(wrong)
        }
        _ => Err(wrong()),
    };
    let lists: Vec<Vec<u32>> = match given {
        Value::Array(list) if !list.iter().all(Value::is_number) => {
            list.iter().take(PROMPTS + 1).map(of).collect::<Result<_, _>>()?
        }
        one => vec![of(one)?],
    };
    if lists.len() > PROMPTS {
        return Err(Problem::field(name, format!("more than {PROMPTS} texts; send fewer at once")));
    }
    if lists.is_empty() || lists.iter().any(Vec::is_empty) {
        return Err(Problem::field(name, format!("{name} has an empty text; give some text")));
    }
    Ok(lists)
}

async fn embed(
    server: &Arc<Server>,
    call: &JsonRequest,
    name: &'static str,
) -> Result<Embedded, Problem> {
    let host = server.models.get(call.model()?.as_deref()).await?;
    let given = call.fields().value(name).cloned();
    let given =
        given.ok_or_else(|| Problem::field(name, format!("the field {name} is missing")))?;
    let turn = Turn::new(server, &host, call.client);
    let lists = turn.prepare(limits::size(&given), move |host| inputs(host, name, &given)).await?;
    let parts = lists.iter().map(Vec::as_slice).enumerate();
    let rows: Vec<_> = parts.map(|(i, ids)| completion::embedding(turn.part(i), ids)).collect();
    let rows = iter(rows).buffered(server.options.parallel.max(1)).try_collect().await?;
    let tokens = lists.iter().map(Vec::len).sum();
    Ok(Embedded { host, rows, tokens })
}

fn refuse_dimensions(fields: &Fields<'_>, rows: &[Vec<f32>]) -> Result<(), Problem> {
    let wanted: Option<usize> = fields.get("dimensions")?;
    let has = rows.first().map_or(0, Vec::len);
    match wanted {
        Some(wanted) if wanted != has => {
            let why = format!("dimensions is {wanted}, but the model gives {has}; leave it out");
            Err(Problem::field("dimensions", why))
        }
        _ => Ok(()),
    }
}

/// OpenAI's embeddings.
///
/// # Errors
/// What is wrong with the request.
pub async fn embeddings(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let fields = call.fields();
    let format: Option<String> = fields.get("encoding_format")?;
    let as_base64 = match format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let why = format!("encoding_format {other:?} is neither float nor base64");
            return Err(Problem::field("encoding_format", why));
        }
    };
    let Embedded { host, rows, tokens } = embed(&server, &call, "input").await?;
    refuse_dimensions(&fields, &rows)?;
    let one = |(index, row): (usize, &Vec<f32>)| {
        let bytes = || row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let embedding = match as_base64 {
            true => BASE64_STANDARD.encode(bytes()).into(),
            false => json!(row),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = rows.iter().enumerate().map(one).collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let all = json!({"object": "list", "data": data, "model": host.name, "usage": usage});
    Ok(json_request::json(&all))
}

/// llama.cpp's embeddings: `content` or `input`, and a list of one row for each text.
///
/// # Errors
/// What is wrong with the request.
pub async fn llama_embeddings(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let name = if call.fields().value("content").is_some() { "content" } else { "input" };
    let Embedded { rows, .. } = embed(&server, &call, name).await?;
    let row = |(index, row): (usize, &Vec<f32>)| json!({"index": index, "embedding": [row]});
    Ok(json_request::json(&rows.iter().enumerate().map(row).collect::<Value>()))
}

/// Ollama's embeddings.
///
/// # Errors
/// What is wrong with the request.
pub async fn ollama_embed(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let began = Instant::now();
    let Embedded { host, rows, tokens } = embed(&server, &call, "input").await?;
    refuse_dimensions(&call.fields(), &rows)?;
    Ok(json_request::json(&json!({
        "model": host.name,
        "embeddings": rows,
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

/// Ollama's embedding of one text, in its older form.
///
/// # Errors
/// What is wrong with the request.
pub async fn ollama_embeddings(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let Embedded { rows, .. } = embed(&server, &call, "prompt").await?;
    Ok(json_request::json(&json!({"embedding": rows.first()})))
}
