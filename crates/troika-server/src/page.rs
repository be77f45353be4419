//! The page: static files that are part of the program.

use axum::Router;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::http::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The page runs its own scripts, asks its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Debug)]
struct PageFile {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! file {
    ($name:literal, $kind:expr) => {
        PageFile {
            path: concat!("/", $name),
            kind: $kind,
            bytes: include_bytes!(concat!("page/", $name)),
        }
    };
}

const FILES: &[PageFile] = &[
    file!("answer.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("app.js", SCRIPT),
    file!("chat.js", SCRIPT),
    file!("chathead.js", SCRIPT),
    file!("chats.js", SCRIPT),
    file!("controls.js", SCRIPT),
    file!("devices.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("highlight.js", SCRIPT),
    file!("icon.svg", IMAGE),
    file!("index.html", HTML),
    file!("inline.js", SCRIPT),
    file!("markdown.js", SCRIPT),
    file!("message.js", SCRIPT),
    file!("plan.js", SCRIPT),
    file!("server.js", SCRIPT),
    file!("settings.js", SCRIPT),
    file!("spans.js", SCRIPT),
    file!("store.js", SCRIPT),
    file!("style.css", CSS),
    file!("theme.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("views.css", CSS),
];

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
    let headers: [(HeaderName, &str); 6] = [
        (CONTENT_TYPE, file.kind),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, file.bytes).into_response()
}
