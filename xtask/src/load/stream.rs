//! One chat completion, streamed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Connection;

/// The endpoint.
pub const PATH: &str = "/v1/chat/completions";

/// What came of a request, as its client sees it.
pub struct Streamed {
    /// From sending to the first piece of text.
    pub first: Duration,
    /// The moments of all pieces of text.
    pub moments: Vec<Instant>,
    /// Tokens by the server's count.
    pub tokens: u64,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// The text.
    pub text: String,
}

/// Why there is no text.
#[derive(Debug)]
pub enum Refusal {
    /// The server is full (429) and says when to return.
    Full,
    /// Anything else, in words.
    Failed(String),
}

/// Something, or why there is none.
pub type Attempt<T> = Result<T, Refusal>;

impl From<std::io::Error> for Refusal {
    fn from(e: std::io::Error) -> Self {
        Self::Failed(e.to_string())
    }
}

/// The body of a request that gives just so many tokens.
pub fn body(model: &str, prompt: &str, tokens: usize) -> Value {
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": prompt }],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
}

/// Reads an answer of another status than 200.
pub fn refusal(connection: &mut Connection, head: &super::http::Head) -> Refusal {
    let body = connection.incoming(head).rest().unwrap_or_default();
    let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
    match (head.status, head.header("retry-after")) {
        (429, Some(_)) => Refusal::Full,
        (429, None) => Refusal::Failed(format!("429 without Retry-After: {text}")),
        (status, _) => Refusal::Failed(format!("{status} {text}")),
    }
}

/// Sends a request, and reads until the end, or until `pause` says so by an error; it gets the number
/// of pieces so far.
///
/// # Errors
/// The server refuses or breaks off, or `pause` has enough.
pub fn read(
    connection: &mut Connection,
    body: &Value,
    mut pause: impl FnMut(usize) -> Attempt<()>,
) -> Attempt<Streamed> {
    let start = Instant::now();
    let head = connection.start("POST", PATH, body.to_string().as_bytes())?;
    if head.status != 200 {
        return Err(refusal(connection, &head));
    }
    let mut incoming = connection.incoming(&head);
    let (mut moments, mut text, mut usage, mut done) = (Vec::new(), String::new(), None, false);
    while let Some(line) = incoming.line()? {
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if data.starts_with(b"[DONE]") {
            done = true;
            continue;
        }
        let data: Value = serde_json::from_slice(data)
            .map_err(|e| Refusal::Failed(format!("an event that is no JSON: {e}")))?;
        if let Some(error) = data.get("error") {
            return Err(Refusal::Failed(format!("an error in the stream: {error}")));
        }
        let delta = &data["choices"][0]["delta"];
        let piece = delta["content"].as_str().or(delta["reasoning_content"].as_str());
        if let Some(piece) = piece.filter(|p| !p.is_empty()) {
            moments.push(Instant::now());
            text.push_str(piece);
            pause(moments.len())?;
        }
        usage = data.get("usage").filter(|u| u.is_object()).cloned().or(usage);
    }
    let (Some(usage), true) = (usage, done) else {
        return Err(Refusal::Failed("a stream that ends without usage and [DONE]".into()));
    };
    let count = |name: &str| usage[name].as_u64().unwrap_or_default();
    let first = moments.first().copied().unwrap_or_else(Instant::now) - start;
    let (tokens, prompt) = (count("completion_tokens"), count("prompt_tokens"));
    Ok(Streamed { first, moments, tokens, prompt, text })
}

/// The name of the server's first model.
///
/// # Errors
/// It has none.
pub fn model(connection: &mut Connection) -> Result<String, String> {
    let (_, data) = connection.ask("GET", "/v1/models", b"").map_err(|e| e.to_string())?;
    let answer: Value = serde_json::from_slice(&data).unwrap_or_default();
    let name = answer["data"][0]["id"].as_str().map(String::from);
    name.ok_or_else(|| format!("/v1/models names none: {}", String::from_utf8_lossy(&data)))
}
