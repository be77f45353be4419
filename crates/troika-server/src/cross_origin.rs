//! Pages of other sites that may call this server: what browsers ask for them (the Fetch standard).

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

/// Whether pages of an origin may call: `*` is all, and a `*` at an end any port, or any extension
/// of a browser.
pub fn is_allowed(allowed: &[String], origin: &str) -> bool {
    allowed.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some("") => true,
        Some(start) => start.ends_with([':', '/']) && origin.starts_with(start),
        None => allowed == origin,
    })
}

/// The page of another site that asks, if it may.
pub fn allowed_page(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    is_allowed(allowed, origin.to_str().ok()?).then(|| origin.clone())
}

/// The answer to a browser's question whether a page may call, which comes before the call.
pub fn preflight(method: &Method, asked: &HeaderMap) -> Option<Response> {
    if method != Method::OPTIONS || !asked.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut answer = StatusCode::NO_CONTENT.into_response();
    let headers = answer.headers_mut();
    let wanted = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.extend(wanted.map(|wanted| (ACCESS_CONTROL_ALLOW_HEADERS, wanted)));
    let methods = HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if asked.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        headers.insert(name, HeaderValue::from_static("true"));
    }
    Some(answer)
}

pub fn let_read(page: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
    let names = HeaderValue::from_static("x-troika-ignored, x-troika-left-out, retry-after");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, names);
    headers.append(VARY, HeaderValue::from_static("Origin"));
}
