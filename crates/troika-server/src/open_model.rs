//! An open model with the thread that computes for all of its sessions.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use troika::device::lock;
use troika::engine::PageCount;
use troika::trace::{Span, Tracer};
use troika::{HostMemory, MemoryLimits, Model, OpenOptions};

use crate::grammar::{Constrain, Grammar, KeptGrammars, Vocabulary};
use crate::metrics::{Metrics, OfModel};
use crate::options::ModelOffer;
use crate::problem::Problem;
use troika::model::answer::Format;

/// How long the thread sleeps at most before it looks whether it shall end.
const NAP: Duration = Duration::from_millis(50);

/// How often figures are made anew.
const FIGURES: Duration = Duration::from_millis(200);

/// Spans that are kept for those who look at the timeline.
const SPANS: usize = 20_000;

/// What a model is doing.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub sequences: usize,
    /// Pages of the KV cache.
    pub pages: PageCount,
    /// Bytes of the KV cache in use, kept prefixes included.
    pub kv_used: u64,
    /// Bytes besides the weights.
    pub bytes: u64,
    /// Prompt tokens a second.
    pub prefill_rate: f64,
    /// Generated tokens a second.
    pub decode_rate: f64,
    /// The part of the chosen experts that was in memory, where not all are.
    pub expert_hits: Option<f64>,
    /// The part of the time that each device computed.
    pub busy: BTreeMap<String, f64>,
}

/// Spans of late, numbered.
#[derive(Debug, Default)]
struct Recent {
    first: u64,
    spans: VecDeque<Span>,
}

/// What the thread and those who ask share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    figures: Mutex<Figures>,
    recent: Mutex<Recent>,
    watchers: AtomicUsize,
    generated: AtomicU64,
}

/// An open model. Dropping it ends its thread and closes the model.
pub struct OpenModel {
    pub name: String,
    pub model: Model,
    /// How it writes reasoning and calls of tools.
    pub format: Format,
    /// The same in conversations without tools.
    pub plain_format: Format,
    /// The time of the server at which the model's clock began.
    pub clock_began: Duration,
    pub grammars: KeptGrammars,
    /// How long it stays open when nobody uses it, if a client has said so; `None`: for ever.
    kept: Mutex<Option<Option<Duration>>>,
    vocabulary: OnceLock<Result<Vocabulary, String>>,
    shared: Arc<Shared>,
    /// Why its engine failed, if it has.
    pub failed: watch::Receiver<Option<String>>,
    users: AtomicUsize,
    used: Mutex<Instant>,
    thread: Option<JoinHandle<()>>,
}

/// A model in use: it is not closed meanwhile.
pub struct InUse(Arc<OpenModel>);

impl std::ops::Deref for InUse {
    type Target = OpenModel;

    fn deref(&self) -> &OpenModel {
        &self.0
    }
}

impl Clone for InUse {
    fn clone(&self) -> InUse {
        InUse::new(self.0.clone())
    }
}

impl InUse {
    /// Marks a model as used.
    pub fn new(host: Arc<OpenModel>) -> InUse {
        host.users.fetch_add(1, Ordering::Relaxed);
        InUse(host)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        *lock(&self.0.used) = Instant::now();
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks at a model's timeline from its making on.
pub struct Watcher {
    pub host: Arc<OpenModel>,
    next: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.host.shared.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watcher {
    pub fn new(host: &Arc<OpenModel>) -> Watcher {
        let before = host.shared.watchers.fetch_add(1, Ordering::Relaxed);
        let mut recent = lock(&host.shared.recent);
        if before == 0 {
            // What was kept for earlier watchers is old.
            recent.first += recent.spans.len() as u64;
            recent.spans.clear();
        }
        Watcher { host: host.clone(), next: recent.first + recent.spans.len() as u64 }
    }

    /// The spans since the last call, with times of the server's clock.
    pub fn spans(&mut self) -> Vec<Span> {
        let recent = lock(&self.host.shared.recent);
        let from = self.next.saturating_sub(recent.first) as usize;
        self.next = recent.first + recent.spans.len() as u64;
        let began = self.host.clock_began;
        let moved = |s: &Span| Span { start: s.start + began, end: s.end + began, ..s.clone() };
        recent.spans.iter().skip(from).map(moved).collect()
    }
}

impl OpenModel {
    /// Opens a model and starts its thread. It takes as long as opening does. `room` is the most
    /// memory that it may take, if there is a limit.
    ///
    /// # Errors
    /// The model cannot be opened, or there is no thread: a sentence.
    pub fn open(
        offer: &ModelOffer,
        room: Option<u64>,
        metrics: &Arc<Metrics>,
        server_began: Instant,
    ) -> Result<OpenModel, String> {
        let tracer = Tracer::on();
        let mut options = OpenOptions { tracer: tracer.clone(), ..offer.options.clone() };
        options.memory.host = options.memory.host.or(room);
        let model = Model::open_with_helper(&offer.source, &options, offer.chat_helper.clone());
        let model = model.map_err(|e| e.to_string())?;
        let clock_began = server_began.elapsed().saturating_sub(model.clock().now());
        let shared: Arc<Shared> = Arc::default();
        let (tell, failed) = watch::channel(None);
        let mut engine = EngineThread {
            name: offer.name.clone(),
            model: model.clone(),
            tracer,
            shared: shared.clone(),
            metrics: metrics.clone(),
            busy: BTreeMap::new(),
            made: Instant::now(),
            counted: (0, 0),
        };
        engine.figures();
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| engine.run()));
            let why = match ended {
                Ok(Ok(())) => return,
                Ok(Err(e)) => e.to_string(),
                Err(_) => "the engine gave up; please report it".into(),
            };
            tell.send_replace(Some(why));
        };
        let thread = std::thread::Builder::new().name("troika-engine".into()).spawn(run);
        let thread = thread.map_err(|e| format!("the engine has no thread: {e}"))?;
        Ok(OpenModel {
            name: offer.name.clone(),
            format: Format::detect(model.template(true)),
            plain_format: Format::detect(model.template(false)),
            model,
            clock_began,
            grammars: KeptGrammars::default(),
            kept: Mutex::default(),
            vocabulary: OnceLock::new(),
            shared,
            failed,
            users: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
            thread: Some(thread),
        })
    }

    /// A grammar for the model's vocabulary, if it can be honoured. `place` is held as long as
    /// anything is compiled.
    pub fn compile(
        &self,
        constrain: &Constrain,
        place: impl Send + 'static,
    ) -> Result<Grammar, Problem> {
        // Made when first asked for: that takes a while.
        let made = self.vocabulary.get_or_init(|| make_vocabulary(&self.model));
        let vocabulary = made.as_ref().map_err(Problem::bad)?;
        vocabulary.compile_holding(constrain, place).map_err(Problem::bad)
    }

    pub fn figures(&self) -> Figures {
        lock(&self.shared.figures).clone()
    }

    pub fn count_generated(&self) {
        self.shared.generated.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives memory of the KV cache that no sequence uses back to the system, kept prefixes too.
    pub fn give_back(&self) {
        if self.model.give_back(true).is_ok()
            && let Ok(engine) = self.model.engine()
        {
            let memory = engine.memory();
            lock(&self.shared.figures).bytes =
                memory.kv_written + memory.activations + memory.scratch;
        }
    }

    /// Whether its template has thoughts.
    pub fn thinks(&self) -> bool {
        let of = |format: &Format| format.thought_ends(false).is_some();
        of(&self.format) || of(&self.plain_format)
    }

    /// Keeps it open for so long from now on when nobody uses it; `None`: for ever.
    pub fn keep(&self, time: Option<Duration>) {
        *lock(&self.kept) = Some(time);
    }

    /// How long it stays open yet if nobody uses it; `None`: for ever. `or` holds where no client
    /// has said how long.
    pub fn left(&self, or: Option<Duration>) -> Option<Duration> {
        let kept = lock(&self.kept).unwrap_or(or)?;
        Some(kept.saturating_sub(self.idle().unwrap_or_default()))
    }

    /// How long nobody has used it; `None` while somebody does.
    pub fn idle(&self) -> Option<Duration> {
        let idle = self.users.load(Ordering::Relaxed) == 0;
        idle.then(|| lock(&self.used).elapsed())
    }

    /// Bytes of its weights as they are used.
    pub fn weight_bytes(&self) -> u64 {
        let report = self.model.store().report();
        report.mapped + report.owned + report.packed.values().sum::<u64>()
    }
}

impl Drop for OpenModel {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
    }
}

fn make_vocabulary(model: &Model) -> Result<Vocabulary, String> {
    let Some(tokenizer) = model.tokenizer() else {
        return Err("the model has no tokenizer, so its answers cannot follow a grammar".into());
    };
    // Rows of the head may outnumber the tokenizer's tokens.
    let ids = 0..model.spec().vocab as u32;
    let tokens = ids.clone().map(|id| tokenizer.token_bytes(id).unwrap_or_default()).collect();
    let special = ids.map(|id| tokenizer.is_control(id)).collect();
    let encoder = model.clone();
    let encode = move |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let ids = encoder.tokenizer().and_then(|t| t.encode(&text, false, false).ok());
        ids.unwrap_or_default()
    };
    let ends = model.defaults().stop_tokens.clone();
    Vocabulary::new(tokens, special, ends, Arc::new(encode))
}

struct EngineThread {
    name: String,
    model: Model,
    tracer: Tracer,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    /// Computing time of devices since the last figures.
    busy: BTreeMap<String, Duration>,
    made: Instant,
    /// Tokens at the last figures, of prompts and generated.
    counted: (u64, u64),
}

impl EngineThread {
    fn run(&mut self) -> Result<(), troika::Error> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.model.wait_for_work(NAP) {
                self.model.step()?;
                self.take_spans();
            }
            if self.made.elapsed() >= FIGURES {
                self.figures();
            }
        }
        Ok(())
    }

    fn take_spans(&mut self) {
        let spans = self.tracer.take();
        let devices = &self.model.plan().devices;
        for span in &spans {
            if devices.iter().any(|d| **d == *span.lane) {
                let time = span.end.saturating_sub(span.start);
                match self.busy.get_mut(&*span.lane) {
                    Some(sum) => *sum += time,
                    None => drop(self.busy.insert(span.lane.to_string(), time)),
                }
            }
        }
        if self.shared.watchers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = lock(&self.shared.recent);
        recent.spans.extend(spans);
        let over = recent.spans.len().saturating_sub(SPANS);
        recent.spans.drain(..over);
        recent.first += over as u64;
    }

    fn figures(&mut self) {
        // Pages that nobody holds are of use as long as sequences may take them.
        let short = HostMemory::now(MemoryLimits::default()).is_some_and(HostMemory::is_short);
        if short || lock(&self.shared.figures).sequences == 0 {
            let _ = self.model.give_back(short);
        }
        // Between steps the engine is free: nobody else steps it for long.
        let Ok(engine) = self.model.engine() else { return };
        let (memory, sequences) = (engine.memory(), engine.handle().open_sequences());
        let read = engine.read_tokens();
        drop(engine);
        let seconds = std::mem::replace(&mut self.made, Instant::now()).elapsed().as_secs_f64();
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let counted = (read, self.shared.generated.load(Ordering::Relaxed));
        let before = std::mem::replace(&mut self.counted, counted);
        let share = |time: &Duration| (time.as_secs_f64() / seconds.max(1e-9)).min(1.0);
        let hits = self.model.expert_stats().filter(|s| s.chosen > 0);
        let busy = std::mem::take(&mut self.busy);
        for (device, time) in &busy {
            self.metrics.computed(&self.name, device, *time);
        }
        let plan = self.model.plan();
        let idle = plan.devices.iter().map(|d| (d.clone(), 0.0));
        let figures = Figures {
            sequences,
            pages: memory.pages,
            kv_used: memory.kv_used,
            bytes: memory.kv_written + memory.activations + memory.scratch,
            prefill_rate: rate(counted.0 - before.0),
            decode_rate: rate(counted.1 - before.1),
            expert_hits: hits.map(|s| s.hits as f64 / s.chosen as f64),
            busy: idle.chain(busy.iter().map(|(d, t)| (d.clone(), share(t)))).collect(),
        };
        let (metrics, of) = (&self.metrics, OfModel { model: self.name.clone() });
        metrics.kv_used.get_or_create(&of).set(figures.kv_used as i64);
        metrics.kv_budget.get_or_create(&of).set(memory.kv_cache as i64);
        metrics.pages.get_or_create(&of).set(figures.pages.held as i64);
        metrics.sequences.get_or_create(&of).set(figures.sequences as i64);
        if let Some(hits) = figures.expert_hits {
            metrics.expert_hits.get_or_create(&of).set(hits);
        }
        *lock(&self.shared.figures) = figures;
    }
}
