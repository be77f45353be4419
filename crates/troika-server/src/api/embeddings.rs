//! Embeddings: OpenAI's `/v1/embeddings` and Ollama's `/api/embed`.

use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream::iter;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use troika::Embeddings;
use troika::model::tokenizer::Tokenizer;

use super::Answer;
use crate::completion::{self, STATES_AT_ONCE};
use crate::fields::{Fields, whole};
use crate::json_request::{self, JsonRequest};
use crate::limits::{self, PROMPTS};
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::turn::Turn;

/// Embeddings of texts, with the number of their tokens.
struct Embedded {
    host: InUse,
    rows: Vec<Vec<f32>>,
    tokens: usize,
}

/// Texts that are read together, at most: they share a place in the queue.
const TEXTS_AT_ONCE: usize = 16;

/// What becomes of a text's states.
struct EmbeddingForm {
    /// The field of the texts.
    name: &'static str,
    /// Texts that are too long are cut.
    truncate: bool,
    /// Their length is one; `None`: as the model has it.
    normalized: Option<bool>,
    /// How many numbers are kept; `None`: all.
    dimensions: Option<usize>,
}

/// Cuts tokens to the context. A mark of the end stays.
fn cut(host: &InUse, mut ids: Vec<u32>) -> Vec<u32> {
    let (context, eos) = (host.model.context(), host.model.tokenizer().and_then(Tokenizer::eos));
    if ids.len() > context {
        let end = ids.pop_if(|last| eos == Some(*last));
        ids.truncate(context - usize::from(end.is_some()));
        ids.extend(end);
    }
    ids
}

/// The tokens of the texts: a text, texts, token ids, or lists of them.
fn inputs(host: &InUse, form: &EmbeddingForm, given: &Value) -> Result<Vec<Vec<u32>>, Problem> {
    let name = form.name;
    let must = format!("{name} has to be a text, token ids, or a list of them");
    let wrong = || Problem::field(name, must.clone());
    let of = |one: &Value| match one {
        Value::String(text) => {
            let mut text = text.as_str();
            if form.truncate {
                let most = host.model.longest_text().min(text.len());
                text = &text[..text.floor_char_boundary(most)];
            }
            host.model.check_text(text.len())?;
            let ids = host.model.tokenize(text)?.0;
            Ok(if form.truncate { cut(host, ids) } else { ids })
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

async fn embed(call: &JsonRequest, form: EmbeddingForm) -> Result<Embedded, Problem> {
    let host = call.host().await?;
    let Embeddings { pooling, normalized } =
        match (call.server.options.pooling, host.model.embeddings()) {
            (Some(pooling), said) => Embeddings { pooling, ..said.unwrap_or_default() },
            (None, said) => said.map_err(Problem::bad)?,
        };
    let normalized = form.normalized.unwrap_or(normalized);
    let (has, name) = (host.model.spec().hidden, form.name);
    let kept = form.dimensions.unwrap_or(has);
    if !(1..=has).contains(&kept) {
        let why = format!("dimensions is {kept}; it has to be from 1 to {has}, the model's own");
        return Err(Problem::field("dimensions", why));
    }
    let given: Value = call.fields().need(name)?;
    let turn = Turn::new(call, &host);
    let lists = turn.prepare(limits::size(&given), move |host| inputs(host, &form, &given)).await?;
    let tokens = lists.iter().map(Vec::len).sum();
    let mut groups: Vec<Vec<Vec<u32>>> = Vec::new();
    for ids in lists {
        let fits = |group: &&mut Vec<Vec<u32>>| {
            let tokens: usize = group.iter().map(Vec::len).sum();
            group.len() < TEXTS_AT_ONCE && tokens + ids.len() <= STATES_AT_ONCE
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push(ids),
            None => groups.push(vec![ids]),
        }
    }
    let parts = groups.into_iter().enumerate();
    let parts: Vec<_> =
        parts.map(|(i, texts)| completion::embeddings(turn.part(i), texts, pooling)).collect();
    let rows: Vec<Vec<Vec<f64>>> =
        iter(parts).buffered(call.server.options.parallel.max(1)).try_collect().await?;
    // Devices that model time only give no states.
    let first = |row: Vec<f64>| shaped(row.get(..kept).unwrap_or_default(), normalized);
    let rows = rows.into_iter().flatten().map(first).collect::<Result<_, _>>()?;
    Ok(Embedded { host, rows, tokens })
}

/// An embedding as it is told.
fn shaped(row: &[f64], normalized: bool) -> Result<Vec<f32>, Problem> {
    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    if !length.is_finite() || length == 0.0 {
        return Err(Problem::fault("the embedding is not finite; are the weights damaged?"));
    }
    let by = if normalized { length } else { 1.0 };
    Ok(row.iter().map(|x| (x / by) as f32).collect())
}

/// Whether the length is to be one, in llama.cpp's words or in others'.
fn normalized(fields: &Fields<'_>) -> Result<Option<bool>, Problem> {
    match fields.get::<i64>("embd_normalize")? {
        None => fields.get("normalize"),
        Some(2) => Ok(Some(true)),
        Some(-1) => Ok(Some(false)),
        Some(other) => {
            let why =
                format!("embd_normalize is {other}; it has to be 2 (length one) or -1 (none)");
            Err(Problem::field("embd_normalize", why))
        }
    }
}

/// OpenAI's embeddings.
pub async fn embeddings(call: JsonRequest) -> Answer {
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
    let (normalized, dimensions) = (normalized(&fields)?, fields.get("dimensions")?);
    let form = EmbeddingForm { name: "input", truncate: false, normalized, dimensions };
    let Embedded { host, rows, tokens } = embed(&call, form).await?;
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
pub async fn ggml_embeddings(call: JsonRequest) -> Answer {
    let fields = call.fields();
    let name = if fields.value("content").is_some() { "content" } else { "input" };
    let (normalized, dimensions) = (normalized(&fields)?, fields.get("dimensions")?);
    let form = EmbeddingForm { name, truncate: false, normalized, dimensions };
    let Embedded { rows, .. } = embed(&call, form).await?;
    let row = |(index, row): (usize, &Vec<f32>)| json!({"index": index, "embedding": [row]});
    Ok(json_request::json(&rows.iter().enumerate().map(row).collect::<Value>()))
}

/// Embeds for Ollama's interface, after which the model stays open for as long as is asked.
async fn ollama(call: &JsonRequest, name: &'static str) -> Result<Embedded, Problem> {
    let fields = call.fields();
    let (truncate, dimensions) = (fields.get("truncate")?, fields.get("dimensions")?);
    let truncate = truncate.unwrap_or(true);
    let kept = super::ollama::keep_alive(&fields)?;
    let form = EmbeddingForm { name, truncate, normalized: Some(true), dimensions };
    let embedded = embed(call, form).await?;
    if let Some(time) = kept {
        embedded.host.keep(time);
    }
    Ok(embedded)
}

pub async fn ollama_embed(call: JsonRequest) -> Answer {
    let began = Instant::now();
    let Embedded { host, rows, tokens } = ollama(&call, "input").await?;
    Ok(json_request::json(&json!({
        "model": host.name,
        "embeddings": rows,
        "total_duration": began.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

/// Ollama's embedding of one text, in its older form.
pub async fn ollama_embed_one(call: JsonRequest) -> Answer {
    let Embedded { rows, .. } = ollama(&call, "prompt").await?;
    Ok(json_request::json(&json!({"embedding": rows.first()})))
}
