//! A request on its way: everything that it has computed waits here for the client's turn.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::Instant;
use troika::SessionOptions;

use crate::grammar::{Constrain, Grammar};
use crate::ids;
use crate::json_request::JsonRequest;
use crate::limits;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::queue::{Asked, Client, FairQueue, Permit};
use crate::record::Record;
use crate::state::{Server, apart};

/// How long a grammar waits for others to be compiled.
const COMPILE_WAIT: Duration = Duration::from_secs(30);

/// A request of a client to a model, with the time by which it has to be done.
#[derive(Clone)]
pub struct Turn {
    pub server: Arc<Server>,
    pub host: InUse,
    client: Client,
    by: Instant,
    request: u64,
    further: bool,
}

impl Turn {
    /// A request whose time begins now.
    pub fn new(call: &JsonRequest, host: &InUse) -> Turn {
        let JsonRequest { server, client, .. } = call;
        let by = Instant::now() + server.options.timeout;
        Record::current().note(|told| told.model.clone_from(&host.name));
        let (server, host, request) = (server.clone(), host.clone(), ids::random());
        Turn { server, host, client: *client, by, request, further: false }
    }

    /// A part of the request. The first one may be refused for want of room in the queue, and lets
    /// the others in.
    pub fn part(&self, index: usize) -> Turn {
        Turn { further: self.further || index > 0, ..self.clone() }
    }

    /// What its sessions are in the engine, which all clients share.
    pub fn session_options(&self) -> SessionOptions {
        let priority = self.client.priority.min(self.server.most_urgent);
        SessionOptions { priority, client: self.client.id, fresh: false }
    }

    /// Waits for work until the request's time is over.
    ///
    /// # Errors
    /// It is, or the server ends.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Problem> {
        let late = |_| {
            let seconds = self.server.options.timeout.as_secs_f64();
            let message = format!(
                "the answer was not complete after {seconds} s; ask for less, or start the server \
                 with a longer --timeout"
            );
            Problem::new(StatusCode::GATEWAY_TIMEOUT, message)
        };
        let mut cutting = self.server.cutting.subscribe();
        tokio::select! {
            done = tokio::time::timeout_at(self.by, work) => done.map_err(late),
            _ = cutting.wait_for(|cutting| *cutting) => {
                let message = "the server was stopped before the answer was complete";
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message))
            }
        }
    }

    /// Waits for places.
    ///
    /// # Errors
    /// The queue is full or closed, or the request's time is over.
    pub async fn enter(&self, queue: &FairQueue, places: usize) -> Result<Permit, Problem> {
        let Client { id: client, priority } = self.client;
        let asked =
            Asked { client, priority, places, request: self.request, further: self.further };
        Ok(self.in_time(queue.enter(asked)).await??)
    }

    /// Renders or tokenizes texts of `bytes` together, a few requests at a time. Long texts have a
    /// queue of their own, so that short ones do not wait for them.
    ///
    /// # Errors
    /// Those of the work, and those of [`Turn::enter`].
    pub async fn prepare<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&InUse) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let queue = match bytes > limits::SHORT_TEXT {
            true => &self.server.long_texts,
            false => &self.server.texts,
        };
        let permit = self.enter(queue, 1).await?;
        let host = self.host.clone();
        self.in_time(apart(move || {
            // Held until the work is done, even if nobody waits for it any longer.
            let _permit = permit;
            work(&host)
        }))
        .await?
    }

    /// The compiled grammar of what an answer must follow, if it must follow anything.
    ///
    /// # Errors
    /// Those of [`Turn::compile`].
    pub async fn grammar(&self, of: Option<Constrain>) -> Result<Option<Arc<Grammar>>, Problem> {
        let Some(constrain) = of else { return Ok(None) };
        self.compile(constrain).await.map(Some)
    }

    /// The compiled grammar of a constraint, which is kept for the next request with the same one.
    ///
    /// # Errors
    /// It cannot be honoured, or others take too long to compile.
    pub async fn compile(&self, constrain: Constrain) -> Result<Arc<Grammar>, Problem> {
        let key = format!("{constrain:?}");
        if let Some(kept) = self.host.grammars.get(&key) {
            return Ok(kept);
        }
        let turn = tokio::time::timeout(COMPILE_WAIT, self.enter(&self.server.grammars, 1)).await;
        let permit = turn.map_err(|_| {
            let message = "many grammars wait to be compiled; try again later";
            let retry_after = Some(5);
            Problem { retry_after, ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, message) }
        })??;
        // Another request may have had the same one.
        if let Some(kept) = self.host.grammars.get(&key) {
            return Ok(kept);
        }
        let host = self.host.clone();
        let compiled = apart(move || {
            let grammar = Arc::new(host.compile(&constrain, permit)?);
            host.grammars.keep(key, &grammar);
            Ok(grammar)
        });
        self.in_time(compiled).await?
    }
}
