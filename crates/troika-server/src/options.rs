//! How the server is set up.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use troika::model::chat::HelperCommand;
use troika::{OpenOptions, PlanSource, Pooling, Source};

/// A model on offer.
#[derive(Clone, Debug)]
pub struct ModelOffer {
    /// The name by which clients ask for it.
    pub name: String,
    /// Other names by which they may.
    pub aliases: Vec<String>,
    /// Whether it gets the requests that name a model which is not on offer.
    pub any_name: bool,
    /// Where it is.
    pub source: Source,
    /// How to open it.
    pub options: OpenOptions,
    /// The plan in place of theirs while a battery feeds the machine; `None`: theirs always.
    pub battery_plan: Option<PlanSource>,
    /// How to start a process that renders its chat template; `None`: this process does.
    pub chat_helper: Option<HelperCommand>,
    /// Bytes of its files: what it is expected to need before it is open.
    pub bytes: u64,
}

/// Receives sentences for the terminal.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// How the server is set up.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address to listen at.
    pub address: SocketAddr,
    /// Keys; a client has to give one of them. Empty: none is asked for.
    pub keys: Vec<String>,
    /// Names of this server besides `localhost` and its address, in `Host` headers.
    pub hosts: Vec<String>,
    /// Pages of other sites that may call it, as in `Origin` headers.
    pub origins: Vec<String>,
    /// The models; the first is the one that requests without a model get.
    pub models: Vec<ModelOffer>,
    /// Answers that are computed at once.
    pub parallel: usize,
    /// How embeddings are pooled; `None`: as the model says.
    pub pooling: Option<Pooling>,
    /// Requests that may wait.
    pub queue: usize,
    /// The highest priority with which a client comes before others.
    pub most_urgent: i32,
    /// The longest body of a request in bytes.
    pub body_bytes: usize,
    /// The most tokens of an answer; `None`: what the context holds.
    pub max_tokens: Option<usize>,
    /// The most time for an answer, waiting included.
    pub timeout: Duration,
    /// How long a model stays open that nobody uses; `None`: for ever.
    pub keep_alive: Option<Duration>,
    /// Bytes of all open models; `None`: no limit.
    pub memory: Option<u64>,
    /// How long answers may take to end when the server is stopped.
    pub grace: Duration,
    /// The folder with the machine's energy counters and batteries, such as `/sys`.
    pub sys: Option<PathBuf>,
    /// Tells what the server does.
    pub note: Log,
    /// Tells of each request; `None`: nothing of requests is told.
    pub requests: Option<Log>,
}
