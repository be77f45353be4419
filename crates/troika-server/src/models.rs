//! The models on offer: opened when they are asked for, closed when nobody uses them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::http::StatusCode;
use troika::Source;
use troika::device::lock;

use crate::ids;
use crate::metrics::Metrics;
use crate::open_model::{InUse, OpenModel};
use crate::options::{Log, ModelOffer, ServerOptions};
use crate::power::PowerSource;
use crate::problem::Problem;

/// The longest wait for room, so that any time may be given.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// How often a request that waits for room looks for it.
const ROOM_EVERY: Duration = Duration::from_millis(20);

/// What is known of a model on offer.
#[derive(Clone, Default)]
pub enum ModelState {
    #[default]
    Closed,
    Loading,
    Open(Arc<OpenModel>),
    /// It could not be opened, or its engine failed. The next request tries to open it.
    Failed(String),
}

impl ModelState {
    pub fn host(&self) -> Option<&Arc<OpenModel>> {
        if let ModelState::Open(host) = self { Some(host) } else { None }
    }
}

/// A model on offer.
struct OfferedModel {
    offer: ModelOffer,
    /// When its files were changed, since 1970; of others when the server began.
    modified: Duration,
    state: Mutex<ModelState>,
    /// Whether it was last opened by its plan for batteries.
    on_battery: AtomicBool,
}

impl OfferedModel {
    /// The open model. One whose engine failed is not.
    fn open(&self) -> Option<InUse> {
        let mut state = lock(&self.state);
        let ModelState::Open(host) = &*state else { return None };
        let failed = host.failed.borrow().clone();
        // In use before the lock is given back, so that it is not closed meanwhile.
        let Some(why) = failed else { return Some(InUse::new(host.clone())) };
        *state = ModelState::Failed(why);
        None
    }

    fn has_failed(&self) -> bool {
        matches!(*lock(&self.state), ModelState::Failed(_))
    }

    fn bytes(&self) -> u64 {
        lock(&self.state).host().map_or(0, |host| host.weight_bytes() + host.figures().bytes)
    }

    /// Closes it if nobody uses it. Returns the model, to be dropped elsewhere,
    /// since that waits for its thread.
    fn close(&self) -> Option<Arc<OpenModel>> {
        let mut state = lock(&self.state);
        let ModelState::Open(host) = &*state else { return None };
        host.idle()?;
        match std::mem::take(&mut *state) {
            ModelState::Open(host) => Some(host),
            _ => None,
        }
    }
}

/// A model on offer, for a list.
pub struct ListedModel {
    pub name: String,
    pub names: Vec<String>,
    pub bytes: u64,
    /// When they were changed, since 1970.
    pub modified: Duration,
    pub state: ModelState,
}

pub struct Models {
    offered: Vec<Arc<OfferedModel>>,
    memory: Option<u64>,
    metrics: Arc<Metrics>,
    began: Instant,
    note: Log,
    power: PowerSource,
    /// Held while one is opened: two must not count on the same memory.
    making_room: Arc<tokio::sync::Mutex<()>>,
    /// Held by requests that wait until models in use leave room: others come after them.
    waiting: Arc<()>,
    /// How long they wait.
    patience: Duration,
}

impl Models {
    /// The models on offer: the first one about to be opened, the others closed.
    pub fn new(options: &ServerOptions, metrics: Arc<Metrics>) -> Models {
        let model = |(index, offer): (usize, &ModelOffer)| {
            let changed = match &offer.source {
                Source::Path(path) => std::fs::metadata(path).and_then(|m| m.modified()).ok(),
                Source::BuiltIn => None,
            };
            let modified = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let modified = modified.unwrap_or_else(ids::since_1970);
            // The first one is opened at once.
            let state = if index == 0 { ModelState::Loading } else { ModelState::Closed };
            let (offer, state) = (offer.clone(), Mutex::new(state));
            Arc::new(OfferedModel { offer, modified, state, on_battery: AtomicBool::default() })
        };
        Models {
            offered: options.models.iter().enumerate().map(model).collect(),
            memory: options.memory,
            metrics,
            began: Instant::now(),
            note: options.note.clone(),
            power: PowerSource::new(options.sys.clone()),
            making_room: Arc::default(),
            waiting: Arc::default(),
            patience: options.timeout,
        }
    }

    /// The server's clock.
    pub fn clock(&self) -> Duration {
        self.began.elapsed()
    }

    /// The name of the model that requests without one get.
    pub fn default_name(&self) -> &str {
        let good = self.offered.iter().find(|p| !p.has_failed());
        good.or(self.offered.first()).map_or("", |p| &p.offer.name)
    }

    /// The model of a name, opened if need be; without a name the first one that can be opened.
    ///
    /// # Errors
    /// There is no such model, it cannot be opened, or there is no room for it.
    pub async fn get(self: &Arc<Self>, name: Option<&str>) -> Result<InUse, Problem> {
        if let Some(name) = name {
            return self.get_open(self.find(name).ok_or_else(|| self.unknown(name))?).await;
        }
        // Those that failed before are tried last.
        let (bad, good): (Vec<_>, Vec<_>) = self.offered.iter().partition(|p| p.has_failed());
        let mut first = None;
        for model in good.into_iter().chain(bad) {
            match self.get_open(model).await {
                Err(problem) if model.has_failed() => first = first.or(Some(problem)),
                done => return done,
            }
        }
        Err(first.unwrap_or_else(|| self.unknown("")))
    }

    async fn get_open(self: &Arc<Self>, model: &Arc<OfferedModel>) -> Result<InUse, Problem> {
        let by = Instant::now() + self.patience.min(LONGEST_WAIT);
        if Arc::strong_count(&self.waiting) == 1
            && !self.is_outdated(model)
            && let Some(open) = model.open()
        {
            return Ok(open);
        }
        let making = self.making_room.clone().lock_owned().await;
        if self.is_outdated(model) {
            self.close_silently(model).await;
        }
        // Somebody else may have opened it meanwhile, or still use it by the plan before.
        if let Some(open) = model.open() {
            return Ok(open);
        }
        let room = self.make_room(model, by).await?;
        // On a task of its own: who stops waiting does not stop it from being opened.
        let (models, model) = (self.clone(), model.clone());
        let opened = tokio::spawn(async move {
            let _making = making;
            models.open(&model, room).await
        });
        opened.await.map_err(|_| Problem::fault("opening the model gave up; please report it"))?
    }

    /// The model that a request for this name gets.
    fn find(&self, name: &str) -> Option<&Arc<OfferedModel>> {
        // Ollama's names end in a tag.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let is = |known: &String| *known == plain || *known == name;
        let named = |p: &&Arc<OfferedModel>| is(&p.offer.name) || p.offer.aliases.iter().any(is);
        let mut offered = self.offered.iter();
        offered.clone().find(named).or_else(|| offered.find(|p| p.offer.any_name))
    }

    /// The problem that there is no model of a name.
    pub fn unknown(&self, name: &str) -> Problem {
        let known: Vec<&str> = self.offered.iter().map(|p| &*p.offer.name).collect();
        let message =
            format!("there is no model {name:?} here; the models are {}", known.join(", "));
        let problem = Problem::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
        Problem { param: Some("model".into()), ..problem }
    }

    async fn open(&self, model: &Arc<OfferedModel>, room: Option<u64>) -> Result<InUse, Problem> {
        let before = std::mem::replace(&mut *lock(&model.state), ModelState::Loading);
        let (of, metrics, began) = (self.offer_now(model), self.metrics.clone(), self.began);
        let opened =
            tokio::task::spawn_blocking(move || OpenModel::open(&of, room, &metrics, began));
        let opened = opened.await.unwrap_or_else(|_| Err("opening it gave up".into()));
        match opened {
            Ok(host) => {
                let host = Arc::new(host);
                for warning in host.model.warnings() {
                    (self.note)(&format!("warning: {}: {warning}", host.name));
                }
                let in_use = InUse::new(host.clone());
                *lock(&model.state) = ModelState::Open(host);
                let (bytes, mib) = (self.bytes(), |bytes: u64| bytes.div_ceil(1 << 20));
                if let Some(most) = self.memory.filter(|most| bytes > *most) {
                    let (needed, most) = (mib(bytes), mib(most));
                    (self.note)(&format!(
                        "warning: the open models need {needed} MiB, more than --memory {most}"
                    ));
                }
                Ok(in_use)
            }
            Err(why) => {
                *lock(&model.state) = ModelState::Failed(why.clone());
                let message = format!("the model {} cannot be opened: {why}", model.offer.name);
                if !matches!(before, ModelState::Failed(known) if known == why) {
                    (self.note)(&message);
                }
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message))
            }
        }
    }

    /// Whether a model's plan for batteries counts now.
    fn on_battery(&self, model: &OfferedModel) -> bool {
        model.offer.battery_plan.is_some() && self.power.on_battery()
    }

    /// Whether a model that nobody uses is open by a plan that no longer counts.
    fn is_outdated(&self, model: &OfferedModel) -> bool {
        let is_idle =
            matches!(&*lock(&model.state), ModelState::Open(host) if host.idle().is_some());
        is_idle && self.on_battery(model) != model.on_battery.load(Ordering::Relaxed)
    }

    /// The offer with the plan that counts now. One other than before is told.
    fn offer_now(&self, model: &OfferedModel) -> ModelOffer {
        let (mut offer, on_battery) = (model.offer.clone(), self.on_battery(model));
        if let Some(plan) = offer.battery_plan.take().filter(|_| on_battery) {
            offer.options.plan = plan;
        }
        if model.on_battery.swap(on_battery, Ordering::Relaxed) != on_battery {
            let fed = if on_battery { "battery" } else { "mains" };
            let file = offer.options.plan.file().unwrap_or(Path::new("of its options"));
            (self.note)(&format!("on {fed}: plan {}", file.display()));
        }
        offer
    }

    /// Makes room: open models give back what they keep for later, then those are closed that nobody
    /// uses, those first that were used longest ago. Where all are in use, it waits. Returns the
    /// room, where memory has a limit; a model larger than that alone has none.
    async fn make_room(&self, model: &OfferedModel, by: Instant) -> Result<Option<u64>, Problem> {
        let Some(memory) = self.memory else { return Ok(None) };
        let mut given_back = false;
        let mut _waiting = None;
        loop {
            let used = self.bytes();
            if used + model.offer.bytes <= memory {
                return Ok(Some(memory - used));
            }
            if used == 0 {
                return Ok(None);
            }
            if !std::mem::replace(&mut given_back, true) {
                self.give_back().await;
                continue;
            }
            let idle = |p: &Arc<OfferedModel>| lock(&p.state).host()?.idle();
            let longest = self.offered.iter().filter_map(|p| Some((idle(p)?, p)));
            let longest = longest.max_by_key(|(idle, _)| *idle);
            let Some((_, other)) = longest else {
                if Instant::now() < by {
                    _waiting = Some(self.waiting.clone());
                    tokio::time::sleep(ROOM_EVERY).await;
                    continue;
                }
                let name = &model.offer.name;
                let message = format!(
                    "there is no room for the model {name} beside those in use; try again later, \
                     or start the server with more --memory"
                );
                let retry_after = Some(5);
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, message);
                return Err(Problem { retry_after, ..problem });
            };
            self.close(other).await;
        }
    }

    /// Has all open models give back what they keep for later.
    async fn give_back(&self) {
        for model in &self.offered {
            let ModelState::Open(host) = lock(&model.state).clone() else { continue };
            // It waits for a step to end.
            let _ = tokio::task::spawn_blocking(move || host.give_back()).await;
        }
    }

    async fn close(&self, model: &OfferedModel) {
        if self.close_silently(model).await {
            (self.note)(&format!("closed {}: nobody uses it", model.offer.name));
        }
    }

    /// Closes a model if nobody uses it, and returns whether it did.
    async fn close_silently(&self, model: &OfferedModel) -> bool {
        let Some(host) = model.close() else { return false };
        self.metrics.closed(&host.name);
        // It waits for the model's thread.
        let _ = tokio::task::spawn_blocking(move || drop(host)).await;
        true
    }

    /// Closes the models that nobody has used for so long, or for as long as a client has said.
    pub async fn close_idle(&self, keep_alive: Option<Duration>) {
        for model in &self.offered {
            let ModelState::Open(host) = lock(&model.state).clone() else { continue };
            if host.left(keep_alive) == Some(Duration::ZERO) {
                drop(host);
                self.close(model).await;
            }
        }
    }

    /// Closes a model now, if nobody uses it.
    pub async fn unload(&self, name: &str) {
        if let Some(model) = self.find(name) {
            self.close(model).await;
        }
    }

    /// The model that a request for this name gets, for a list.
    pub fn listed(&self, name: &str) -> Option<ListedModel> {
        let found = &self.find(name)?.offer.name;
        self.list().into_iter().find(|listed| listed.name == *found)
    }

    pub fn list(&self) -> Vec<ListedModel> {
        let list = |p: &Arc<OfferedModel>| ListedModel {
            name: p.offer.name.clone(),
            names: [std::slice::from_ref(&p.offer.name), &p.offer.aliases].concat(),
            bytes: p.offer.bytes,
            modified: p.modified,
            state: lock(&p.state).clone(),
        };
        self.offered.iter().map(list).collect()
    }

    /// The bytes of all open models.
    pub fn bytes(&self) -> u64 {
        self.offered.iter().map(|p| p.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use troika::{OpenOptions, PlanSource, Source, make_plan};

    use super::Models;
    use crate::options::{Log, ModelOffer, ServerOptions};

    /// A plan of the built-in model for a context of its own, by which it is known.
    fn plan(context: usize, file: &str) -> PlanSource {
        let options = OpenOptions { context: Some(context), ..OpenOptions::default() };
        let plan = Box::new(make_plan(Source::BuiltIn, &options).unwrap().plan);
        PlanSource::Given { plan, file: Some(file.into()) }
    }

    fn options(sys: PathBuf, note: Log) -> ServerOptions {
        let offer = ModelOffer {
            name: "built-in".into(),
            aliases: Vec::new(),
            any_name: true,
            source: Source::BuiltIn,
            options: OpenOptions { plan: plan(64, "gpu.json"), ..OpenOptions::default() },
            battery_plan: Some(plan(128, "npu.json")),
            chat_helper: None,
            bytes: 0,
        };
        ServerOptions {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            models: vec![offer],
            parallel: 1,
            pooling: None,
            queue: 1,
            most_urgent: 0,
            body_bytes: 1,
            max_tokens: None,
            timeout: Duration::from_secs(60),
            keep_alive: None,
            memory: None,
            grace: Duration::ZERO,
            sys: Some(sys),
            note,
            requests: None,
        }
    }

    #[tokio::test]
    async fn an_idle_model_follows_what_feeds_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let battery = dir.path().join("class/power_supply/BAT0");
        std::fs::create_dir_all(&battery).unwrap();
        std::fs::write(battery.join("type"), "Battery\n").unwrap();
        let is = |status| std::fs::write(battery.join("status"), status).unwrap();
        is("Full\n");
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let tell = told.clone();
        let note = move |text: &str| tell.lock().unwrap().push(text.into());
        let options = options(dir.path().into(), Arc::new(note));
        let mut models = Models::new(&options, Arc::default());
        models.power.every = Duration::ZERO;
        let models = Arc::new(models);
        let first = models.get(None).await.unwrap();
        assert_eq!(first.model.context(), 64);
        is("Discharging\n");
        // As long as one is under way, others go on with it.
        let beside = models.get(None).await.unwrap();
        assert!(std::ptr::eq(&*beside, &*first));
        drop((first, beside));
        assert_eq!(models.get(None).await.unwrap().model.context(), 128);
        assert_eq!(models.get(None).await.unwrap().model.context(), 128);
        is("Charging\n");
        assert_eq!(models.get(None).await.unwrap().model.context(), 64);
        let mut told = std::mem::take(&mut *told.lock().unwrap());
        told.retain(|line| !line.starts_with("warning"));
        assert_eq!(told, ["on battery: plan npu.json", "on mains: plan gpu.json"]);
    }
}
