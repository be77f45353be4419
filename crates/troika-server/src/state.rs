//! What all requests share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use troika::device::lock;
use troika::{EnergyMeter, PowerMeter};

use crate::limits;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::options::ServerOptions;
use crate::problem::Problem;
use crate::queue::FairQueue;

pub struct Server {
    pub options: ServerOptions,
    pub models: Arc<Models>,
    /// Who generates next, or reads a text for its probabilities or its embedding.
    pub queue: FairQueue,
    /// Whose texts are rendered and tokenized next.
    pub texts: FairQueue,
    /// The same for long texts.
    pub long_texts: FairQueue,
    /// Whose grammar is compiled next.
    pub grammars: FairQueue,
    pub metrics: Arc<Metrics>,
    pub connections: AtomicUsize,
    /// Tells that the server ends.
    pub closing: watch::Sender<bool>,
    /// Tells that answers are cut off.
    pub cutting: watch::Sender<bool>,
    /// The highest priority that counts among clients; those without keys are one.
    pub most_urgent: i32,
    power: Mutex<Option<PowerMeter>>,
}

impl Server {
    /// A server that does not listen yet.
    pub fn new(options: ServerOptions) -> Server {
        let metrics: Arc<Metrics> = Arc::default();
        let models = Models::new(&options, metrics.clone());
        let meter = options.sys.as_deref().and_then(|sys| EnergyMeter::find(sys).ok());
        let most_urgent = if options.keys.len() > 1 { options.most_urgent } else { i32::MAX };
        let queue = |places| FairQueue::new(places, options.queue, most_urgent);
        Server {
            models: Arc::new(models),
            queue: queue(options.parallel),
            texts: queue(limits::TEXTS_AT_ONCE),
            long_texts: queue(limits::LONG_TEXTS_AT_ONCE),
            grammars: queue(limits::GRAMMARS_AT_ONCE),
            metrics,
            most_urgent,
            connections: AtomicUsize::new(0),
            closing: watch::channel(false).0,
            cutting: watch::channel(false).0,
            power: Mutex::new(meter.map(|m| m.power())),
            options,
        }
    }

    /// Watts since the last call, where they can be read.
    pub fn watts(&self) -> Option<f64> {
        lock(&self.power).as_mut()?.watts()
    }
}

/// Runs what takes a while apart from the threads that serve connections.
///
/// # Errors
/// Those of the work; it gave up.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Problem::fault("the request was given up; please report it"))?
}
