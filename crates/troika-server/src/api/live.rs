//! What the server does now: for the page, `/health` and `/metrics`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::{Value, json};
use troika::engine::PromptProgress;
use troika::trace::{Arg, Span};

use super::Answer;
use crate::json_request;
use crate::models::{ListedModel, ModelState};
use crate::open_model::{OpenModel, Watcher};
use crate::problem::Problem;
use crate::record::Record;
use crate::state::Server;
use crate::stream;

/// How often the timeline is told of.
const EVERY: Duration = Duration::from_millis(250);

/// The most spans of an event: more cannot be seen.
const SPANS: usize = 2_000;

/// Whether requests are served: not while the first model is being opened, or when all have failed.
pub async fn health(State(server): State<Arc<Server>>) -> Answer {
    let states: Vec<ModelState> = server.models.list().into_iter().map(|l| l.state).collect();
    let failed = states.iter().find_map(|state| match state {
        ModelState::Failed(why) => Some(why.clone()),
        _ => None,
    });
    let is = |wanted: fn(&ModelState) -> bool| states.iter().any(wanted);
    let why = match (is(|s| matches!(s, ModelState::Loading)), failed) {
        _ if is(|s| matches!(s, ModelState::Open(_))) => None,
        (true, _) => Some("the model is being opened".into()),
        (false, failed) => failed.filter(|_| !is(|s| matches!(s, ModelState::Closed))),
    };
    let Some(why) = why else { return Ok(json_request::json(&json!({"status": "ok"}))) };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    Err(Problem { retry_after: Some(1), ..problem })
}

pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    server.metrics.queued.set(server.queue.waiting() as i64);
    server.metrics.running.set(server.queue.running() as i64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], server.metrics.text()).into_response()
}

pub async fn status(State(server): State<Arc<Server>>) -> Response {
    json_request::json(&status_of(&server))
}

fn status_of(server: &Server) -> Value {
    let models: Vec<Value> = server.models.list().iter().map(model).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": server.models.clock().as_secs_f64(),
        "clients": server.connections.load(Ordering::Relaxed),
        "queued": server.queue.waiting(),
        "running": server.queue.running(),
        "memory_bytes": server.models.bytes(),
        "memory_budget_bytes": server.options.memory,
        "watts": server.watts(),
        "default_model": server.models.default_name(),
        "models": models,
    })
}

fn model(listed: &ListedModel) -> Value {
    let (state, why) = match &listed.state {
        ModelState::Closed => ("closed", None),
        ModelState::Loading => ("loading", None),
        ModelState::Open(_) => ("open", None),
        ModelState::Failed(why) => ("failed", Some(why)),
    };
    let mut model = json!({"name": listed.name, "state": state, "why": why, "devices": []});
    let ModelState::Open(host) = &listed.state else { return model };
    let figures = host.figures();
    let prompt =
        |p: &PromptProgress| json!({"tokens": p.total, "cached": p.cached, "read": p.done});
    for (name, value) in [
        ("devices", json!(host.model.plan().devices)),
        ("context", host.model.context().into()),
        ("weight_bytes", host.weight_bytes().into()),
        ("sequences", figures.sequences.into()),
        ("pages_used", figures.pages.held.into()),
        ("pages", figures.pages.all.into()),
        ("prompts", host.model.prompts().iter().map(prompt).collect()),
        ("prefill_tok_s", figures.prefill_rate.into()),
        ("decode_tok_s", figures.decode_rate.into()),
        ("expert_hits", json!(figures.expert_hits)),
        ("template", if host.model.has_template() { "own" } else { "default" }.into()),
        ("busy", json!(figures.busy)),
    ] {
        model[name] = value;
    }
    model
}

fn span(span: &Span) -> Value {
    let detail = span.args.iter().map(|(name, arg)| match arg {
        Arg::Int(n) => format!("{name} {n}"),
        Arg::Text(text) => format!("{name} {text}"),
    });
    json!({
        "lane": &*span.lane,
        "name": span.name,
        "start": span.start.as_secs_f64(),
        "end": span.end.as_secs_f64(),
        "detail": detail.collect::<Vec<_>>().join(", "),
    })
}

/// Watches all open models.
struct Live {
    server: Arc<Server>,
    watchers: Vec<Watcher>,
    _record: Arc<Record>,
}

impl Live {
    /// Watches models that were opened, and no more those that were closed.
    fn look(&mut self) {
        let list = self.server.models.list();
        let open: Vec<&Arc<OpenModel>> = list.iter().filter_map(|l| l.state.host()).collect();
        self.watchers.retain(|w| open.iter().any(|host| Arc::ptr_eq(host, &w.host)));
        for host in open {
            if !self.watchers.iter().any(|w| Arc::ptr_eq(host, &w.host)) {
                self.watchers.push(Watcher::new(host));
            }
        }
    }

    fn event(&mut self) -> String {
        self.look();
        let mut spans: Vec<Span> = self.watchers.iter_mut().flat_map(Watcher::spans).collect();
        // The shortest are the ones that nobody sees.
        if spans.len() > SPANS {
            spans.sort_by_key(|s| std::cmp::Reverse(s.end.saturating_sub(s.start)));
            spans.truncate(SPANS);
        }
        spans.sort_by_key(|s| s.start);
        let event = json!({
            "now": self.server.models.clock().as_secs_f64(),
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
            "status": status_of(&self.server),
        });
        let mut out = String::new();
        stream::named("spans", &event, &mut out);
        out
    }
}

/// The timeline as it grows.
pub async fn events(State(server): State<Arc<Server>>) -> Response {
    let closing = server.closing.subscribe();
    let mut live = Live { server, watchers: Vec::new(), _record: Record::current() };
    live.look();
    let events = unfold(live, move |mut live| {
        let mut closing = closing.clone();
        async move {
            let ended = closing.wait_for(|closing| *closing);
            if tokio::time::timeout(EVERY, ended).await.is_ok() {
                return None;
            }
            Some((Ok::<Bytes, std::convert::Infallible>(live.event().into()), live))
        }
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events)).into_response()
}

/// Which model is asked about.
#[derive(Deserialize)]
pub struct OfModel {
    pub model: Option<String>,
}

/// What runs where, and why.
pub async fn plan(State(server): State<Arc<Server>>, Query(of): Query<OfModel>) -> Answer {
    let host = server.models.get(of.model.as_deref()).await?;
    let plan = host.model.plan();
    let reason = match &plan.predicted {
        Some(p) => format!("the best of those predicted by {}", p.source),
        None => format!("the strategy {}", plan.strategy),
    };
    let rules = plan.texts().into_iter().map(|rule| {
        json!({
            "phase": rule.phase,
            "layers": rule.layers,
            "parts": rule.segments,
            "device": rule.device,
            "activations": rule.activations,
            "why": reason,
        })
    });
    let refusals = host.model.refusals().iter().map(|r| {
        format!("{} of {} does not run on {}: {}", r.op, r.segment.name(), r.device, r.why)
    });
    Ok(json_request::json(&json!({
        "model": host.name,
        "rules": rules.collect::<Vec<_>>(),
        "text": plan.explain(),
        "refusals": refusals.collect::<Vec<_>>(),
    })))
}
