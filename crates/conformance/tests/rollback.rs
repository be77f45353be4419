//! Sequences that are cut back, continued, or interrupted by a failing device: later results are
//! bit-identical to a fresh model's. The device is the CPU behind one that observes it.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, Weak};

use setup::engines::{self, EngineOptions};
use setup::{best, feed, golden, golden_dir, in_f32, some_tokens};
use troika::describe;
use troika::device::{
    Caps, Clock, CommandList, CompileRequest, CompileResults, Completion, Device, DeviceError,
    DeviceKind, Executable, Queue, WeightSource, Weights, Work,
};
use troika::engine::{Engine, EngineError, KvError, SequenceInput, WantedLogits};
use troika::graph::Subgraph;
use troika::plan::{PlanDevice, Strategy, make};
use troika::weights::FloatType;
use troika_cpu::{CpuDevice, CpuOptions};

/// The observations and orders of a [`Probe`].
#[derive(Default)]
struct Seen {
    /// Tasks until it fails once; `None`: never.
    left: Option<usize>,
    /// Tasks run.
    tasks: usize,
    /// What was compiled and loaded, and how much more until it refuses; `None`: never.
    made: Vec<Weak<dyn Any + Send + Sync>>,
    accepts: Option<usize>,
    /// By group and page of memory: the sequence's pages that were there.
    pages: HashMap<(usize, u32), HashSet<usize>>,
}

/// Passes everything to another device, and fails when told to.
struct Probe {
    inner: CpuDevice,
    seen: Arc<Mutex<Seen>>,
}

struct ProbeQueue {
    inner: Box<dyn Queue>,
    seen: Arc<Mutex<Seen>>,
}

impl Probe {
    fn open() -> (Arc<dyn Device>, Arc<Mutex<Seen>>) {
        let options = CpuOptions { name: "probe".into(), threads: 1, ..Default::default() };
        let seen = Arc::new(Mutex::new(Seen::default()));
        let probe = Probe { inner: CpuDevice::new(options).unwrap(), seen: seen.clone() };
        (Arc::new(probe), seen)
    }

    fn make<T: Any + Send + Sync>(
        &self,
        make: impl Fn() -> Result<Arc<T>, DeviceError>,
    ) -> Result<Arc<T>, DeviceError> {
        let mut seen = self.seen.lock().unwrap();
        if seen.accepts == Some(seen.made.len()) {
            let (device, why) = ("probe".into(), "it was told to refuse".into());
            return Err(DeviceError::System { device, why });
        }
        let made = make()?;
        let weak = Arc::downgrade(&made);
        seen.made.push(weak);
        Ok(made)
    }
}

impl Device for Probe {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn compile(&self, r: &CompileRequest<'_>) -> CompileResults {
        r.each(|g| self.make(|| Executable::compiled(&self.inner, g, r.weights)))
    }
    fn load(
        &self,
        e: &Arc<Executable>,
        g: &Subgraph,
        w: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        self.make(|| self.inner.load(e, g, w))
    }
    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        let inner = self.inner.queue(number, clock, done)?;
        Ok(Box::new(ProbeQueue { inner, seen: self.seen.clone() }))
    }
}

impl Queue for ProbeQueue {
    fn submit(&mut self, _: CommandList) -> Result<(), DeviceError> {
        panic!("a plan's only device runs its batches on the waiting thread");
    }

    fn run_here(&mut self, mut list: CommandList) -> Result<Completion, CommandList> {
        let mut seen = self.seen.lock().unwrap();
        let mut fails = false;
        if let Some(left) = seen.left {
            fails = left < list.tasks.len();
            list.tasks.truncate(left);
            seen.left = (!fails).then(|| left - list.tasks.len());
        }
        seen.tasks += list.tasks.len();
        let runs = list.tasks.iter().filter_map(|t| match &t.work {
            Work::Run(run) => Some(run),
            _ => None,
        });
        for s in runs.flat_map(|run| &run.forward.seqs) {
            for (group, table) in s.tables.iter().enumerate() {
                for (i, &page) in table.pages.iter().enumerate() {
                    seen.pages.entry((group, page)).or_default().insert(table.first + i);
                }
            }
        }
        let mut completion = self.inner.run_here(list)?;
        if fails {
            let (device, why) = ("probe".into(), "it was told to fail".into());
            completion.outcome = Err(DeviceError::System { device, why });
        }
        Ok(completion)
    }
}

fn engine(dir: &Path, chunk: usize) -> (Engine, Arc<Mutex<Seen>>) {
    engine_with(dir, chunk, PAGE)
}

fn engine_with(dir: &Path, chunk: usize, page_len: usize) -> (Engine, Arc<Mutex<Seen>>) {
    let (device, seen) = Probe::open();
    (engine_on(device, dir, chunk, page_len).unwrap(), seen)
}

fn engine_on(
    device: Arc<dyn Device>,
    dir: &Path,
    chunk: usize,
    page_len: usize,
) -> Result<Engine, EngineError> {
    let d = describe(dir, FloatType::F32).unwrap();
    let mut facts = PlanDevice::of(&device);
    facts.caps.activation_formats = Vec::new();
    let mut plan = make(&d.spec, &[facts], &in_f32(Strategy::OneDevice, chunk)).unwrap();
    assert_eq!(plan.page_len, PAGE);
    plan.page_len = page_len;
    engines::engine(&d, &[device], plan, EngineOptions::default())
}

/// A copy of a checkpoint with another sliding window.
fn with_window(name: &str, window: usize, to: &Path) {
    let from = golden_dir(name);
    std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(config["sliding_window"].is_u64(), "{name}");
    config["sliding_window"] = window.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

/// Windows of less than a page of the cache and of more.
const WINDOWS: [usize; 2] = [8, 40];
const PAGE: usize = 32;
/// Tokens before a sequence is cut back, and at the end.
const CUT: usize = 150;
const END: usize = 170;

#[test]
fn windowed_sequences_go_on_where_they_are_cut_back_to() {
    for name in ["mistral", "gemma-3", "gpt-oss", "exaone-4"] {
        let prompt = &golden(name).input_ids[..20];
        for window in WINDOWS {
            let dir = tempfile::tempdir().unwrap();
            with_window(name, window, dir.path());
            let mut expected: Option<(Vec<u32>, Vec<Vec<f32>>)> = None;
            for chunk in [512, 7, 1] {
                let what = format!("{name}, window {window}, chunk {chunk}");
                let (mut e, seen) = engine(dir.path(), chunk);
                let (tokens, fresh) = expected.get_or_insert_with(|| generate(&mut e, prompt));
                let seq = e.open();
                e.truncate(seq, 5).unwrap();
                assert!(e.is_empty(seq), "an empty sequence stays empty");
                seen.lock().unwrap().pages.clear();
                let mut rows = feed(&mut e, seq, prompt).unwrap();
                for t in &tokens[prompt.len()..CUT] {
                    rows.extend(feed(&mut e, seq, &[*t]).unwrap());
                }
                assert!(rows == fresh[..CUT], "{what}: token by token");
                let again = seen.lock().unwrap().pages.values().any(|lay| lay.len() > 1);
                assert!(again, "{what}: no page of the cache was used twice");
                for to in [CUT - 1, 120, 60] {
                    // Tokens that the windows dropped are computed again.
                    e.truncate(seq, to).unwrap();
                    assert_eq!(e.len(seq), to, "{what}");
                    let rows = feed(&mut e, seq, &tokens[to..CUT]).unwrap();
                    assert!(rows == fresh[to..CUT], "{what}: cut back to {to}");
                }
                for (t, fresh) in tokens[CUT..].iter().zip(&fresh[CUT..]) {
                    assert!(feed(&mut e, seq, &[*t]).unwrap()[0] == *fresh, "{what}: at the end");
                }
            }
        }
    }
}

/// Tokens that greedy decoding appends to a prompt, and their logits computed at once, in a single
/// forward batch in which no page is dropped.
fn generate(e: &mut Engine, prompt: &[u32]) -> (Vec<u32>, Vec<Vec<f32>>) {
    let seq = e.open();
    let mut tokens = prompt.to_vec();
    let mut next = best(feed(e, seq, prompt).unwrap().last().unwrap());
    while tokens.len() < END {
        tokens.push(next);
        next = best(&feed(e, seq, &[next]).unwrap()[0]);
    }
    e.truncate(seq, 0).unwrap();
    let fresh = feed(e, seq, &tokens).unwrap();
    e.close(seq);
    (tokens, fresh)
}

/// A checkpoint whose keys use other rotations beyond 32 tokens: a sequence that grows past that is
/// computed again.
const LONGROPE: &str = "../variants/phi-3-variant1";

#[test]
fn a_device_that_fails_leaves_only_what_was_computed() {
    let ids = some_tokens(48, 0);
    for (dir, before) in [(LONGROPE, 20), (LONGROPE, 40), ("gpt-oss", 20)] {
        let (mut e, seen) = engine(&golden_dir(dir), 7);
        let seq = e.open();
        let fresh = feed(&mut e, seq, &ids).unwrap();
        e.close(seq);
        let start = seen.lock().unwrap().tasks;
        let seq = e.open();
        feed(&mut e, seq, &ids[..before]).unwrap();
        let middle = seen.lock().unwrap().tasks;
        feed(&mut e, seq, &ids[before..]).unwrap();
        let tasks = seen.lock().unwrap().tasks - middle;
        assert!(middle > start && tasks > 10);
        e.close(seq);
        for fails in (0..tasks).step_by(tasks / 9) {
            let what = format!("{dir}, failing after {fails} of {tasks} tasks");
            let seq = e.open();
            feed(&mut e, seq, &ids[..before]).unwrap();
            seen.lock().unwrap().left = Some(fails);
            let error = feed(&mut e, seq, &ids[before..]).unwrap_err();
            assert!(error.to_string().contains("told to fail"), "{what}: {error}");
            assert_eq!(e.len(seq), before, "{what}");
            let rows = feed(&mut e, seq, &ids[before..]).unwrap();
            assert!(rows == fresh[before..], "{what}");
            e.audit().unwrap();
            e.close(seq);
        }
    }
}

/// A waiting sequence gives its pages to one that is computed, and is computed again when it
/// continues.
#[test]
fn sequences_that_wait_leave_their_pages_to_others() {
    let ids = some_tokens(48, 0);
    let (mut e, _) = engine_with(&golden_dir(LONGROPE), 7, 4);
    let context = e.plan().context;
    let others = some_tokens(context - 24, 0);
    let seq = e.open();
    let fresh = feed(&mut e, seq, &ids[..30]).unwrap();
    e.close(seq);
    let seq = e.open();
    let fresh_others = feed(&mut e, seq, &others).unwrap();
    e.close(seq);
    let (a, b) = (e.open(), e.open());
    feed(&mut e, a, &ids[..20]).unwrap();
    let early = context - 25;
    feed(&mut e, b, &others[..early]).unwrap();
    let before = e.preemptions();
    // They do not both fit; the longer one gives way, although it stays open.
    assert!(feed(&mut e, a, &ids[20..30]).unwrap() == fresh[20..]);
    e.audit().unwrap();
    assert!(feed(&mut e, b, &others[early..]).unwrap() == fresh_others[early..]);
    assert!(e.preemptions() > before);
    e.audit().unwrap();
    // One that outgrows the context is refused before any work.
    let error = feed(&mut e, b, &some_tokens(25, 0)).unwrap_err();
    assert!(matches!(error, EngineError::Kv(KvError::Context { .. })), "{error}");
    assert_eq!(e.len(b), others.len());
}

#[test]
fn a_sequence_is_fed_once_per_call() {
    let (mut e, _) = engine(&golden_dir("qwen3"), 7);
    let seq = e.open();
    let feed = SequenceInput::prompt(seq, &[1, 2], WantedLogits::Last);
    let error = e.run(&[feed, feed], &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(error, EngineError::Twice(s) if s == seq), "{error}");
    assert!(e.is_empty(seq));
}

/// Executables and weights are freed with their engine, and with an engine that failed to open.
#[test]
fn nothing_is_left_of_an_engine() {
    let dir = golden_dir("qwen3");
    let alive = |seen: &Arc<Mutex<Seen>>| {
        let seen = seen.lock().unwrap();
        (seen.made.len(), seen.made.iter().filter(|w| w.strong_count() > 0).count())
    };
    let (mut e, seen) = engine(&dir, 7);
    let seq = e.open();
    feed(&mut e, seq, &some_tokens(20, 0)).unwrap();
    let (all, held) = alive(&seen);
    assert!(all > 5 && held == all, "{held} of {all}");
    drop(e);
    assert_eq!(alive(&seen), (all, 0));
    for accepts in [0, 1, all - 1] {
        let (device, seen) = Probe::open();
        seen.lock().unwrap().accepts = Some(accepts);
        let refused = engine_on(device, &dir, 7, PAGE).err().unwrap();
        assert!(refused.to_string().contains("told to refuse"), "{refused}");
        assert_eq!(alive(&seen), (accepts, 0));
    }
}
