//! Answers as they come: server-sent events, or a JSON object a line.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{iter, unfold};
use futures_util::{FutureExt, StreamExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::chat::{ChatAnswer, ChatEvent, ChatStream, Usage};
use crate::json_request::{self, escaped};
use crate::problem::{Dialect, Problem};

/// After so long without anything to send something is sent, so that nobody in between takes the
/// connection for dead.
const SILENCE: Duration = Duration::from_secs(15);

/// Writes the news of answers in a client's form.
pub trait EventWriter: Send + 'static {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// What comes first, so that the head of the response goes out before the first token is there.
    fn begin(&mut self, out: &mut String) {
        out.push_str(": begun\n\n");
    }

    /// What says that the answer is still on its way: after some silence nobody in between shall
    /// take the connection for dead.
    fn waiting(&self, out: &mut String) {
        out.push_str(": waiting\n\n");
    }

    fn event(&mut self, event: ChatEvent, out: &mut String);

    /// What comes last.
    fn end(&mut self, usage: &Usage, out: &mut String);

    /// A problem in the middle of an answer, which ends it.
    fn problem(&mut self, problem: &Problem, out: &mut String) {
        data(&problem.body(Dialect::OpenAi), out);
    }
}

/// Writes an event with data alone.
pub fn data(value: &Value, out: &mut String) {
    out.push_str(&format!("data: {value}\n\n"));
}

pub fn named(name: &str, value: &Value, out: &mut String) {
    out.push_str(&format!("event: {name}\n"));
    data(value, out);
}

/// A response that grows with the answers, or one made of them as a whole when they are complete.
///
/// # Errors
/// An answer failed before the response began.
pub async fn answer<W: EventWriter>(
    answers: ChatStream,
    streams: bool,
    writer: W,
    whole: impl FnOnce(W, ChatAnswer) -> Value,
) -> Result<Response, Problem> {
    if streams {
        return Ok(respond(answers, writer));
    }
    let left_out = answers.left_out.clone();
    let whole = json_request::json(&whole(writer, answers.collect().await?));
    Ok(json_request::with_left_out(whole, &left_out))
}

/// A response that grows with the answers. If the client goes, they are cancelled.
pub fn respond<W: EventWriter>(stream: ChatStream, mut writer: W) -> Response {
    let left_out = stream.left_out.clone();
    let mut begun = String::new();
    writer.begin(&mut begun);
    let news = unfold(Some((stream, writer)), |remaining| async move {
        let (stream, writer) = remaining?;
        let mut out = String::new();
        let remaining = next(stream, writer, &mut out).await;
        Some((out, remaining))
    });
    let chunk = |out: String| Ok::<Bytes, std::convert::Infallible>(escaped(out).into());
    let chunks = iter([begun]).chain(news).map(chunk);
    let headers = [(CONTENT_TYPE, W::CONTENT_TYPE), (CACHE_CONTROL, "no-cache")];
    json_request::with_left_out((headers, Body::from_stream(chunks)).into_response(), &left_out)
}

/// Waits for news, and writes all that is there. Returns what writes the rest, if there is any.
async fn next<W: EventWriter>(
    mut stream: ChatStream,
    mut writer: W,
    out: &mut String,
) -> Option<(ChatStream, W)> {
    let silent_until = Instant::now() + SILENCE;
    // An empty chunk would end the response.
    while out.is_empty() {
        let Ok(mut news) = tokio::time::timeout_at(silent_until, stream.next()).await else {
            writer.waiting(out);
            break;
        };
        loop {
            match news {
                Some(Ok(event)) => writer.event(event, out),
                Some(Err(problem)) => {
                    stream.record.problem(&problem);
                    writer.problem(&problem, out);
                    return None;
                }
                None => {
                    stream.record.note(|told| told.whole = true);
                    writer.end(&stream.usage, out);
                    return None;
                }
            }
            match stream.next().now_or_never() {
                Some(more) => news = more,
                None => break,
            }
        }
    }
    Some((stream, writer))
}
