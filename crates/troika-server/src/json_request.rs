//! A request with a JSON body, which a client may compress.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use serde_json::{Map, Value};

use crate::fields::{self, Fields};
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::queue::Client;
use crate::record::Record;
use crate::state::{Server, apart};
use crate::{known, limits};

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);

/// How long, and how much of it, a body that nobody wants is read and dropped.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const DRAIN_BYTES: usize = 64 << 20;

/// Reads and drops the body of a request that is refused. Without it, a client that is still sending
/// does not see the refusal, and its next request meets a closed connection.
pub async fn read_off(request: Request) {
    let mut body = Limited::new(request.into_body(), DRAIN_BYTES);
    let drained = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIME, drained).await;
}

/// A request with the fields of its body.
pub struct JsonRequest {
    body: Map<String, Value>,
    pub server: Arc<Server>,
    pub client: Client,
    /// After the body, so that its memory is free when this is dropped.
    _long: Option<LongBody>,
}

/// Is dropped with a long body: what its texts took in the heap goes back to the system.
struct LongBody;

impl Drop for LongBody {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(troika::device::trim_heap);
        }
    }
}

impl JsonRequest {
    pub fn fields(&self) -> Fields<'_> {
        Fields::of(&self.body)
    }

    /// The name of the model, if it gives one.
    pub fn model(&self) -> Result<Option<String>, Problem> {
        Ok(self.fields().get::<String>("model")?.filter(|name| !name.is_empty()))
    }

    /// The model, opened if need be.
    pub async fn host(&self) -> Result<InUse, Problem> {
        self.server.models.get(self.model()?.as_deref()).await
    }
}

impl FromRequest<Arc<Server>> for JsonRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<JsonRequest, Problem> {
        let client = request.extensions().get().copied();
        let client = client.unwrap_or(Client { id: 0, priority: 0 });
        let path = request.uri().path().to_string();
        let codings = match codings(request.headers()) {
            Ok(codings) => codings,
            Err(problem) => {
                read_off(request).await;
                return Err(problem);
            }
        };
        let most = server.options.body_bytes;
        let too_long = move || {
            let why = format!(
                "the body has more than {most} bytes; send less, or start the server with a larger \
                 --max-body"
            );
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why)
        };
        if request.body().size_hint().lower() > most as u64 {
            read_off(request).await;
            return Err(too_long());
        }
        let body = Limited::new(request.into_body(), most).collect();
        let body = tokio::time::timeout(BODY_TIME, body).await.map_err(|_| {
            Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
        })?;
        let body = body.map_err(|e| match e.is::<LengthLimitError>() {
            true => too_long(),
            false => Problem::bad("the body cannot be read to its end"),
        })?;
        let body = body.to_bytes();
        let apart_from = if codings.is_empty() { limits::SHORT_BODY } else { 0 };
        let bytes = body.len();
        let parse = move || {
            let mut body = body;
            for coding in codings {
                let wrong = |e: io::Error| {
                    Problem::bad(format!("the body is not of its Content-Encoding: {e}"))
                };
                body = unpack(&coding, &body, most).map_err(wrong)?.ok_or_else(too_long)?.into();
            }
            let long = (body.len() > limits::LONG_BODY).then_some(LongBody);
            let body = fields::parse(&body)?;
            limits::check(&body)?;
            let unknown = known::check(&path, &body)?;
            Ok((body, unknown, long))
        };
        let parsed = if bytes > apart_from { apart(parse).await? } else { parse()? };
        let (body, unknown, _long) = parsed;
        Record::current().note(|told| told.ignored = unknown);
        Ok(JsonRequest { body, server: server.clone(), client, _long })
    }
}

/// The codings of a body, the last one first.
///
/// # Errors
/// One of them is not read.
fn codings(headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let given = headers.get_all(CONTENT_ENCODING).iter().map(|h| h.to_str().unwrap_or("?"));
    let given = given.collect::<Vec<_>>().join(",").to_ascii_lowercase();
    let names = given.rsplit(',').map(str::trim).filter(|name| !matches!(*name, "" | "identity"));
    let names: Vec<String> = names.map(str::to_string).collect();
    if names.iter().all(|name| matches!(&**name, "gzip" | "x-gzip" | "deflate" | "zstd")) {
        return Ok(names);
    }
    let why =
        "this Content-Encoding is not read; send the body as it is, or in gzip, deflate or zstd";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
}

/// A body without its coding; `None`: it has more than `most` bytes.
///
/// # Errors
/// It is not of that coding.
fn unpack(coding: &str, mut packed: &[u8], most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    let end = most as u64 + 1;
    match coding {
        "deflate" => ZlibDecoder::new(packed).take(end).read_to_end(&mut body)?,
        "zstd" => loop {
            // There may be several frames.
            let frame = match StreamingDecoder::new(&mut packed) {
                Ok(frame) => frame,
                // It holds as much as it looks back.
                Err(FrameDecoderError::WindowSizeTooBig { .. }) => return Ok(None),
                Err(e) => return Err(io::Error::other(e)),
            };
            frame.take(end - body.len() as u64).read_to_end(&mut body)?;
            if packed.is_empty() || body.len() > most {
                break body.len();
            }
        },
        _ => MultiGzDecoder::new(packed).take(end).read_to_end(&mut body)?,
    };
    Ok((body.len() <= most).then_some(body))
}

/// The header that names fields that nobody knows.
pub const IGNORED: &str = "x-troika-ignored";

/// The header that names what of a request is not honoured.
pub const LEFT_OUT: &str = "x-troika-left-out";

/// An answer with that header, where there is something to name.
pub fn with_left_out(mut answer: Response, names: &BTreeSet<String>) -> Response {
    let names = Vec::from_iter(names.clone()).join(", ");
    let names = names.replace(|c: char| !matches!(c, ' '..='~'), "?");
    let value = HeaderValue::from_str(&names).ok().filter(|value| !value.is_empty());
    answer.headers_mut().extend(value.map(|value| (HeaderName::from_static(LEFT_OUT), value)));
    answer
}

pub fn json(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], escaped(value.to_string())).into_response()
}

/// JSON without the characters that some clients take for ends of lines: they can be in texts only.
pub fn escaped(json: String) -> String {
    let ends = ['\u{85}', '\u{2028}', '\u{2029}'];
    if !json.contains(ends) {
        return json;
    }
    ends.iter().fold(json, |json, end| json.replace(*end, &format!("\\u{:04x}", *end as u32)))
}
