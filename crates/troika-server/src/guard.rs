//! Who may ask: keys, names of the server, pages of other sites.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Body;

use crate::cross_origin::{allowed_page, is_allowed, let_read, preflight};
use crate::json_request::{IGNORED, LEFT_OUT, read_off};
use crate::metrics::OfStatus;
use crate::problem::{Dialect, Problem};
use crate::queue::Client;
use crate::record::{RECORD, Record};
use crate::state::Server;

/// The header with which a client says how urgent its request is.
const PRIORITY: &str = "x-priority";

/// The most urgent priority, and with a minus the least.
const MOST_URGENT: i32 = 10;

impl IntoResponse for Problem {
    /// The problem itself, for [`check`], which knows in whose form it is to be said.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Whose forms a path speaks.
fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") {
        Dialect::Anthropic
    } else if path.starts_with("/api/") {
        Dialect::Ollama
    } else {
        Dialect::OpenAi
    }
}

/// Paths that need no key: they tell nothing of models or of what they are asked.
fn is_public(path: &str) -> bool {
    matches!(path, "/health" | "/v1/health") || crate::page::is_page(path)
}

/// Checks who asks, answers, and says problems in the client's form.
pub async fn check(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_string();
    let asked = format!("{} {path}", request.method());
    let record = Record::new(server.options.requests.clone(), asked);
    let page = allowed_page(&server.options.origins, request.headers());
    let preflight = page.as_ref().and_then(|_| preflight(request.method(), request.headers()));
    let response = match (admit(&server, &path, &request, preflight.is_some()), preflight) {
        (Ok(_), Some(preflight)) => preflight,
        (Ok(client), None) => {
            request.extensions_mut().insert(client);
            // Whatever happens, the client gets an answer.
            let answered = RECORD
                .scope(record.clone(), AssertUnwindSafe(next.run(request)).catch_unwind())
                .await;
            let why = "the server gave up on this request; please report it";
            answered.unwrap_or_else(|_| Problem::fault(why).into_response())
        }
        (Err(problem), _) => {
            read_off(request).await;
            problem.into_response()
        }
    };
    let mut response = said(response, dialect(&path), &record);
    let headers = response.headers_mut();
    let ignored = record.note(|told| told.ignored.join(", "));
    let ignored = HeaderValue::from_str(&ignored).ok().filter(|names| !names.is_empty());
    headers.extend(ignored.map(|names| (HeaderName::from_static(IGNORED), names)));
    if let Some(page) = page {
        let_read(page, headers);
    }
    if let Some(names) = headers.get(LEFT_OUT).and_then(|names| names.to_str().ok()) {
        record.note(|told| told.why.insert(format!("left out: {names}")));
    }
    let code = response.status().as_u16();
    server.metrics.requests.get_or_create(&OfStatus { code }).inc();
    // A stream goes on after this.
    let whole = response.body().size_hint().exact().is_some();
    record.note(|told| {
        told.asked += &format!(" {code}");
        told.whole = whole;
    });
    response
}

/// A problem as the client's interface says it.
fn said(mut response: Response, dialect: Dialect, record: &Record) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    record.problem(&problem);
    let mut said = (problem.status, problem.body(dialect).to_string()).into_response();
    said.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = problem.retry_after {
        said.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    said
}

fn admit(
    server: &Server,
    path: &str,
    request: &Request,
    preflight: bool,
) -> Result<Client, Problem> {
    let headers = request.headers();
    check_host(server, headers)?;
    check_origin(server, path, headers)?;
    // A browser sends no key with a preflight.
    let id = match server.options.keys.is_empty() || is_public(path) || preflight {
        true => 0,
        false => key(&server.options.keys, headers)?,
    };
    Ok(Client { id, priority: priority(headers)? })
}

fn priority(headers: &HeaderMap) -> Result<i32, Problem> {
    let Some(given) = headers.get(PRIORITY) else { return Ok(0) };
    let number = given.to_str().ok().and_then(|n| n.trim().parse::<i32>().ok());
    let number = number.filter(|n| (-MOST_URGENT..=MOST_URGENT).contains(n));
    let must =
        format!("the header X-Priority has to be a number from -{MOST_URGENT} to {MOST_URGENT}");
    number.ok_or_else(|| Problem::bad(must))
}

/// A page of another site could name itself as this address by its DNS, and so read answers. It
/// cannot change the `Host` that the browser sends.
fn check_host(server: &Server, headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(HOST).and_then(|h| h.to_str().ok());
    // With keys such a page learns nothing: it has none.
    if !server.options.keys.is_empty() || host.is_some_and(|host| is_own_name(server, host)) {
        return Ok(());
    }
    let message = "this server is not known by the name in the Host header; use localhost, or start \
                   it with --allowed-host";
    Err(Problem::new(StatusCode::FORBIDDEN, message))
}

fn is_own_name(server: &Server, host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip == server.options.address.ip())
        || server.options.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Pages of other sites may not ask, unless they are allowed to. A page that only loads an address,
/// as a picture or in a frame, names no origin, but the browser says that it is of another site.
fn check_origin(server: &Server, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|h| h.to_str().unwrap_or("null"));
    let host = text(HOST).unwrap_or_default();
    let good = match text(ORIGIN) {
        Some(origin) => {
            let own = ["http://", "https://"].iter().any(|scheme| {
                origin.strip_prefix(scheme).is_some_and(|name| name.eq_ignore_ascii_case(host))
            });
            own || is_allowed(&server.options.origins, origin)
        }
        None => {
            let site = text(HeaderName::from_static("sec-fetch-site"));
            is_public(path) || !matches!(site, Some("cross-site" | "same-site"))
        }
    };
    let message = "pages of other sites may not call this server; start it with --allowed-origin";
    if good { Ok(()) } else { Err(Problem::new(StatusCode::FORBIDDEN, message)) }
}

/// The number of the client's key, from 1 on. The time that it takes does not tell how much of a
/// wrong key is right, since hashes are compared, all of them and as a whole.
fn key(keys: &[String], headers: &HeaderMap) -> Result<u64, Problem> {
    let bearer = headers.get(AUTHORIZATION).and_then(|h| h.to_str().ok());
    let bearer = bearer
        .and_then(|h| h.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let given = bearer.map(|(_, key)| key.trim());
    // Anthropic's clients have a header of their own.
    let given = given.or(headers.get("x-api-key").and_then(|h| h.to_str().ok()));
    let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let given = hash(given.unwrap_or_default());
    let differs = |a: &[u8], b: &[u8]| a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b)) != 0;
    let mut found = 0;
    for (number, key) in (1..).zip(keys) {
        if !differs(hash(key).as_ref(), given.as_ref()) {
            found = number;
        }
    }
    if found > 0 {
        return Ok(found);
    }
    let message = "this server asks for a key; give one that it was started with, as \
                   \"Authorization: Bearer KEY\"";
    Err(Problem::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key"))
}
