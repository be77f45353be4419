//! The page: static files that are part of the program.

use axum::Router;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::http::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The page runs its own scripts, asks its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Debug)]
struct PageFile {
    path: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(PageFile {
            path: concat!("/", $name),
            bytes: include_bytes!(concat!("page/", $name)),
        }),*]
    };
}

const FILES: &[PageFile] = files!(
    "answer.js" "api.js" "app.js" "chat.js" "chathead.js" "chats.js" "controls.js" "devices.js"
    "dom.js" "highlight.js" "icon.svg" "index.html" "inline.js" "markdown.js" "message.js" "plan.js"
    "server.js" "settings.js" "spans.js" "store.js" "style.css" "theme.js" "timeline.js" "views.css"
);

pub fn is_page(path: &str) -> bool {
    path == "/" || FILES.iter().any(|file| file.path == path)
}

pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let mut routes = Router::new();
    for file in FILES {
        let serve = || async { respond(file) };
        routes = routes.route(file.path, get(serve));
        if file.path == "/index.html" {
            routes = routes.route("/", get(serve));
        }
    }
    routes
}

fn respond(file: &'static PageFile) -> Response {
    let kind = match file.path.rsplit_once('.') {
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    };
    let headers: [(HeaderName, &str); 6] = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, file.bytes).into_response()
}
