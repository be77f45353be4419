//! The HTTP server: OpenAI's, Anthropic's and Ollama's interfaces over sessions of models, and a page.
//!
//! The path of a request: `guard` checks who asks, a file of `api` turns the client's form into
//! one of ours (`chat`), `turn` waits in the queues for what is to be computed, and `completion` starts sessions. The
//! model's answer format splits the text into content, reasoning and calls of tools. The client's
//! form is written as tokens come (`stream`).

mod api;
mod chat;
mod completion;
mod cross_origin;
mod fields;
mod grammar;
mod guard;
mod ids;
mod json_request;
mod known;
mod limits;
mod line_limit;
mod metrics;
mod models;
mod open_model;
mod options;
mod page;
mod power;
mod problem;
mod queue;
mod record;
mod sampling;
mod serve;
mod state;
mod stream;
mod thinking;
mod turn;

pub use options::{Log, ModelOffer, ServerOptions};
pub use serve::{Ended, serve};
