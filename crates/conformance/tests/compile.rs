//! Compiling a model: on all devices in parallel, watched, cancelled, and failing at any weight.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use setup::engines::{self, EngineOptions};
use setup::{
    cpu, described, feed, golden_dir, in_f32, odd_text, on, plan_of, processors, written_spec,
};
use troika::device::{
    Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceKind,
    Executable, PackFn, PackLayout, Packed, Queue, WeightBytes, WeightData, WeightSource, Weights,
};
use troika::engine::{CompileControl, Engine, EngineError};
use troika::graph::Subgraph;
use troika::plan::{Plan, PlanError, PlanRequest, Strategy};
use troika::{BoundModel, Described, Error, Model, OpenObserver, OpenOptions};
use troika_sim::VirtualClock;

/// A virtual device from a file's text, with its own clock.
fn virtual_device(name: &str, more: &str) -> Arc<dyn Device> {
    virtual_device_on(&Arc::new(VirtualClock::new()), name, more)
}

fn virtual_device_on(clock: &Arc<VirtualClock>, name: &str, more: &str) -> Arc<dyn Device> {
    let text = format!(
        "name = \"s\"\n[[processor]]\nname = \"{name}\"\nkind = \"npu\"\npeak_gops = 100.0\n\
         bandwidth_gb_s = 10.0\nlaunch_us = 50.0\n{more}\n"
    );
    processors(&text, clock).remove(0)
}

/// A step of a device with a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Compile,
    Load,
}

/// Called before a device compiles a graph or loads its weights.
type Before = Box<dyn Fn(Step, &str, &Subgraph) -> Result<(), DeviceError> + Send + Sync>;

/// A device that counts the executables and weights still held.
struct Watched {
    device: Arc<dyn Device>,
    /// The number of graphs of each request.
    requests: Mutex<Vec<usize>>,
    /// Whether its compiler never ends with a second graph.
    hangs: AtomicBool,
    codes: Mutex<Vec<Weak<Executable>>>,
    loaded: Mutex<Vec<Weak<Weights>>>,
    before: Before,
}

impl Watched {
    fn new(device: Arc<dyn Device>, before: Before) -> Arc<Watched> {
        Arc::new(Watched {
            device,
            requests: Mutex::default(),
            hangs: AtomicBool::default(),
            codes: Mutex::default(),
            loaded: Mutex::default(),
            before,
        })
    }

    fn plain(device: Arc<dyn Device>) -> Arc<Watched> {
        Watched::new(device, Box::new(|_, _, _| Ok(())))
    }

    /// How many executables and weights were made, and how many still exist.
    fn made(&self) -> (usize, usize) {
        let (codes, loaded) = (self.codes.lock().unwrap(), self.loaded.lock().unwrap());
        let alive = codes.iter().filter(|e| e.upgrade().is_some()).count()
            + loaded.iter().filter(|w| w.upgrade().is_some()).count();
        (codes.len() + loaded.len(), alive)
    }
}

impl Device for Watched {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        self.device.clock()
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        self.requests.lock().unwrap().push(request.graphs.len());
        if self.hangs.load(Ordering::Acquire) {
            let (ended, end) = channel::<()>();
            std::thread::spawn(move || {
                let _ended = ended;
                loop {
                    std::thread::park();
                }
            });
            while (request.report_progress)(1) {
                end.recv_timeout(Duration::from_millis(5)).unwrap_err();
            }
            return request.graphs.iter().map(|_| Err(DeviceError::Cancelled)).collect();
        }
        request.each(|graph| {
            (self.before)(Step::Compile, self.name(), graph)?;
            if self.caps().bakes_weights {
                graph.weights.iter().try_for_each(|w| request.weights.weight(&w.name).map(drop))?;
            }
            let executable = Executable::compiled(&*self.device, graph, request.weights)?;
            self.codes.lock().unwrap().push(Arc::downgrade(&executable));
            Ok(executable)
        })
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        source: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        (self.before)(Step::Load, self.name(), graph)?;
        let weights = self.device.load(executable, graph, source)?;
        self.loaded.lock().unwrap().push(Arc::downgrade(&weights));
        Ok(weights)
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        self.device.queue(number, clock, done)
    }
}

/// Weights that fail after a number of requests, and count the holders of their bytes.
struct Failing<'a> {
    weights: &'a dyn WeightSource,
    left: AtomicUsize,
    held: Arc<()>,
}

struct Bytes {
    bytes: WeightBytes,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Failing<'_> {
    fn count(&self, name: &str) -> Result<(), DeviceError> {
        let less = |n: usize| n.checked_sub(1);
        let left = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        let why = || "is the one that fails".to_string();
        left.map(|_| ()).map_err(|_| DeviceError::Weight { name: name.into(), why: why() })
    }

    fn held(&self, bytes: WeightBytes) -> WeightBytes {
        WeightBytes::whole(Arc::new(Bytes { bytes, _held: self.held.clone() }))
    }
}

impl WeightSource for Failing<'_> {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        self.count(name)?;
        let data = self.weights.weight(name)?;
        Ok(WeightData { bytes: self.held(data.bytes.clone()), ..data })
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        self.count(name)?;
        Ok(Packed {
            bytes: self.held(self.weights.packed(name, layout, pack)?.bytes),
            stored: false,
        })
    }
}

fn engine(
    d: &Described,
    devices: &[Arc<Watched>],
    weights: &dyn WeightSource,
    control: &CompileControl,
) -> Result<Engine, EngineError> {
    let devices: Vec<Arc<dyn Device>> =
        devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let strategy = if devices.len() == 1 { Strategy::OneDevice } else { Strategy::Alternate };
    let plan = plan_of(d, &devices, &in_f32(strategy, 8));
    let (weights, control) = (Some(weights), Some(control));
    engines::engine(d, &devices, plan, EngineOptions { weights, control, ..Default::default() })
}

/// The bytes of all weights resident on a virtual device: a limit at which the model just fits.
fn just_enough(d: &Described) -> u64 {
    let fits = |most: u64| {
        let device = virtual_device("v", &format!("max_resident_bytes = {most}"));
        engine(d, &[Watched::plain(device)], &d.store, &CompileControl::default()).is_ok()
    };
    let (mut low, mut high) = (1, 1 << 30);
    assert!(fits(high) && !fits(low));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}

#[test]
fn whichever_weight_fails_nothing_is_left() {
    let d = described("qwen3");
    let most = just_enough(&d);
    let none = CompileControl::default();
    let tight = |most: u64| virtual_device("v", &format!("max_resident_bytes = {most}"));
    for devices in [vec![cpu("a", 1)], vec![cpu("a", 1), cpu("b", 1)], vec![tight(most)]] {
        let devices: Vec<Arc<Watched>> = devices.into_iter().map(Watched::plain).collect();
        let (mut failures, mut partly) = (0, 0);
        loop {
            let left = AtomicUsize::new(failures);
            let weights = Failing { weights: &d.store, left, held: Arc::default() };
            let made = engine(&d, &devices, &weights, &none);
            let made = made.map(drop).map_err(|e| e.to_string());
            for device in &devices {
                let (made, alive) = device.made();
                assert_eq!(alive, 0, "after weight {failures}");
                partly += usize::from(made > 0);
                device.codes.lock().unwrap().clear();
                device.loaded.lock().unwrap().clear();
            }
            assert_eq!(Arc::strong_count(&weights.held), 1, "after weight {failures}");
            match made {
                Err(e) => assert!(e.contains("is the one that fails"), "{e}"),
                // Also on a device with just enough room: failures must not have used any.
                Ok(()) => break,
            }
            failures += 1;
        }
        assert!(failures > 20 && partly > 20, "{failures} {partly}");
    }
    // A device that is full before the end.
    let full = [Watched::plain(tight(most - 1))];
    let e = engine(&d, &full, &d.store, &none).err().unwrap().to_string();
    assert!(e.contains("device v cannot run op") && e.contains("max_resident_bytes"), "{e}");
    let (made, alive) = full[0].made();
    assert!(made > 5 && alive == 0, "{made} {alive}");
}

#[test]
fn devices_compile_at_the_same_time() {
    let d = described("qwen3");
    // Each device begins only when the other one has begun.
    type Ends = (Sender<()>, Mutex<Receiver<()>>);
    let ((to_a, inbox_a), (to_b, inbox_b)) = (channel(), channel());
    let meet = |(to, inbox): Ends| -> Before {
        Box::new(move |_, _, _| {
            let _ = to.send(());
            // The other device may have fewer graphs, but it has begun in any case.
            let met = inbox.lock().unwrap().recv_timeout(Duration::from_secs(60));
            match met {
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    Err(DeviceError::Gone("the other one did not begin".into()))
                }
                _ => Ok(()),
            }
        })
    };
    let once = |before: Before| -> Before {
        let first = AtomicBool::new(true);
        Box::new(move |step, name, graph| match first.swap(false, Ordering::AcqRel) {
            true => before(step, name, graph),
            false => Ok(()),
        })
    };
    let devices = [
        Watched::new(cpu("a", 1), once(meet((to_b, Mutex::new(inbox_a))))),
        Watched::new(cpu("b", 1), once(meet((to_a, Mutex::new(inbox_b))))),
    ];
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let progress = move |done, all| telling.lock().unwrap().push((done, all));
    let control =
        CompileControl { progress: Some(Arc::new(progress)), ..CompileControl::default() };
    let engine = engine(&d, &devices, &d.store, &control).unwrap();
    let alive: Vec<usize> = devices.iter().map(|d| d.made().1).collect();
    let all: usize = alive.iter().sum();
    assert!(alive.iter().all(|n| *n > 3), "{alive:?}");
    assert_eq!(*told.lock().unwrap(), (0..=all).map(|n| (n, all)).collect::<Vec<_>>());
    drop(engine);
    assert!(devices.iter().all(|d| d.made().1 == 0));
}

/// Time on a shared clock passes in program order, whatever the threads do.
#[test]
fn devices_of_one_clock_compile_one_after_another() {
    let d = described("qwen3");
    let clock = Arc::new(VirtualClock::new());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let device = |name: &str| {
        let (seen, time) = (seen.clone(), clock.clone());
        let before = move |step: Step, _: &str, graph: &Subgraph| {
            let thread = std::thread::current().id();
            let now = time.now().as_millis();
            seen.lock().unwrap().push((thread, graph.name.clone(), now, step));
            Ok(())
        };
        Watched::new(virtual_device_on(&clock, name, "compile_us = 1000"), Box::new(before))
    };
    let devices = ["a", "b"].map(device);
    engine(&d, &devices, &d.store, &CompileControl::default()).unwrap();
    assert!(devices.iter().all(|d| d.made().0 > 3));
    let seen = seen.lock().unwrap();
    let compiled = |n: usize| seen[..n].iter().filter(|s| s.3 == Step::Compile).count() as u128;
    let in_order = |(i, s): (usize, &(_, _, u128, _))| s.0 == seen[0].0 && s.2 == compiled(i);
    assert!(seen.iter().enumerate().all(in_order) && compiled(seen.len()) > 6, "{seen:?}");
    let loaded = seen.iter().filter(|s| s.3 == Step::Load);
    let layers = loaded.filter_map(|s| s.1.strip_prefix("layer "));
    let layers: Vec<&str> = layers.map(|s| s.split(' ').next().unwrap()).collect();
    assert!(layers.is_sorted() && layers[0] != layers[layers.len() - 1], "{layers:?}");
}

#[test]
fn the_error_is_that_of_the_first_graph_whoever_is_faster() {
    let d = described("qwen3");
    let fails = |slow: &'static str, at: Step| -> [Arc<Watched>; 2] {
        ["a", "b"].map(|name| {
            let before = move |step: Step, name: &str, graph: &Subgraph| {
                if name == slow {
                    std::thread::sleep(Duration::from_millis(30));
                }
                let fails = step == at && graph.name.starts_with("layer");
                let error = DeviceError::Gone(graph.name.clone());
                if fails { Err(error) } else { Ok(()) }
            };
            Watched::new(cpu(name, 1), Box::new(before))
        })
    };
    for (slow, at) in
        [("a", Step::Compile), ("b", Step::Compile), ("a", Step::Load), ("b", Step::Load)]
    {
        let e = engine(&d, &fails(slow, at), &d.store, &CompileControl::default()).err().unwrap();
        assert!(
            matches!(&e, EngineError::Device(DeviceError::Gone(at)) if at.starts_with("layer 0 ")),
            "{e}"
        );
    }
}

#[test]
fn compiling_is_cancelled_between_graphs() {
    let d = described("qwen3");
    for wanted in [0, 1, 5] {
        let cancel = Arc::new(AtomicBool::new(false));
        let set = cancel.clone();
        let progress = move |done, _| set.store(done >= wanted, Ordering::Relaxed);
        let control = CompileControl {
            progress: Some(Arc::new(progress)),
            cancel: Some(cancel),
            ..CompileControl::default()
        };
        let device = Watched::plain(cpu("a", 1));
        match engine(&d, std::slice::from_ref(&device), &d.store, &control) {
            Err(EngineError::CompileCancelled { done, all }) => {
                assert!(done == wanted && all > 5, "{done} {all}");
            }
            other => panic!("{:?}", other.map(drop)),
        }
        assert_eq!(device.made(), (wanted, 0));
    }
}

/// The caller gets its answer although the compiler never gives one.
#[test]
fn a_compiler_that_hangs_is_given_up() {
    let d = described("qwen3");
    let device = Watched::plain(cpu("a", 1));
    device.hangs.store(true, Ordering::Release);
    let open =
        |control: &CompileControl| engine(&d, std::slice::from_ref(&device), &d.store, control);
    let (cancel, limit) = (Some(Arc::new(AtomicBool::new(false))), Duration::from_millis(200));
    let late = CompileControl { limit: Some(limit), ..CompileControl::default() };
    let e = open(&late).err().unwrap();
    let EngineError::CompileTime { segment, done: 1, .. } = e else { panic!("{e}") };
    assert_eq!(segment, "layer 0 qkv");
    std::thread::scope(|scope| {
        let set = cancel.clone().unwrap();
        scope.spawn(move || {
            std::thread::sleep(limit);
            set.store(true, Ordering::Relaxed);
        });
        let e = open(&CompileControl { cancel, ..CompileControl::default() }).err().unwrap();
        assert!(matches!(e, EngineError::CompileCancelled { done: 1, .. }), "{e}");
    });
}

/// Opens a model on a device whose compiler refuses an op of the feed-forward graphs, and on another
/// one.
fn refusing(op: fn(&Subgraph) -> &str, options: &OpenOptions) -> Result<Model, Error> {
    let refuses = move |step, device: &str, graph: &Subgraph| {
        if step != Step::Compile || !graph.name.contains("ffn") {
            return Ok(());
        }
        let (device, op, graph) = (device.into(), op(graph).into(), graph.name.clone());
        Err(DeviceError::Unsupported { device, op, graph, why: "its compiler says so".into() })
    };
    let Described { spec, store, .. } = described("qwen3");
    let devices =
        vec![Watched::new(cpu("a", 1), Box::new(refuses)) as Arc<dyn Device>, cpu("b", 1)];
    Model::open_bound("m", BoundModel { spec, store, devices }, options)
}

#[test]
fn what_is_refused_only_while_compiling_is_planned_around() {
    let open = |options: &OpenOptions| refusing(|graph| graph.nodes[0].op.name(), options);
    let model = open(&OpenOptions::default()).unwrap();
    let plan = model.engine().unwrap().plan().clone();
    assert_eq!(plan.devices, ["a", "b"]);
    let ffn = |plan: &Plan| plan.prefill.rules.iter().any(|r| !r.refused.is_empty());
    assert!(ffn(&plan) && model.warnings().iter().any(|w| w.contains("its compiler says so")));
    // A given plan fails by name.
    let devices = [cpu("a", 1), cpu("b", 1)];
    let given = plan_of(&described("qwen3"), &devices, &PlanRequest::default());
    let options = OpenOptions { plan: given.into(), ..OpenOptions::default() };
    let e = open(&options).err().unwrap().to_string();
    assert!(e.contains("device a") && e.contains("its compiler says so"), "{e}");
    assert!(open(&OpenOptions { fallback: true, ..options }).is_ok());
}

/// A compiler that takes each op of a graph alone, but not the graph: all ops go elsewhere.
#[test]
fn a_refused_graph_whose_ops_are_taken_is_planned_around() {
    let model = refusing(|_| DeviceError::ALL_OPS, &OpenOptions::default()).unwrap();
    let ops: Vec<&str> = model.refusals().iter().map(|r| r.op.as_str()).collect();
    assert!(ops.len() > 2 && ["linear", "rms_norm"].iter().all(|op| ops.contains(op)), "{ops:?}");
    let plan = model.engine().unwrap().plan().clone();
    let rules = plan.prefill.rules.iter().flat_map(|rule| &rule.refused);
    assert!(rules.clone().count() > 0 && rules.clone().all(|r| r.by == "b"));
}

/// Ends compiling after a time.
#[derive(Debug)]
struct Limited(Duration);

impl OpenObserver for Limited {
    fn limit(&self) -> Option<Duration> {
        Some(self.0)
    }
}

#[test]
fn a_time_limit_names_the_segment_and_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let slow = odd_text("static-shapes") + "compile_us = 1e6\n";
    let slow = written_spec(dir.path(), "slow", &slow);
    let open = |seconds: f64| {
        let observer = Some(Arc::new(Limited(Duration::from_secs_f64(seconds))) as _);
        let options = OpenOptions { devices: on(&[&slow]), observer, ..OpenOptions::default() };
        Model::open(&golden_dir("qwen3"), &options)
    };
    // Each code takes a second of virtual time. There are three per kind of segment, shared by all
    // layers.
    let Err(Error::Engine(e)) = open(4.5) else { panic!() };
    let said = e.to_string();
    let EngineError::CompileTime { device, segment, done, all, .. } = e else { panic!("{e}") };
    assert_eq!((&*device, &*segment, done), ("slow", "layer 0 qkv", 5));
    assert!(all > 18 * 2 && said.contains("longer than 4.5s") && !said.contains("--"), "{said}");
    assert!(open(18.0).is_ok());
    assert!(open(17.5).is_err());
}

/// Logits of a prompt and of some tokens after it.
fn logits(mut engine: Engine) -> Vec<f32> {
    let seq = engine.open();
    let prompt: Vec<u32> = (1..40).collect();
    [&prompt[..], &[7], &[8]]
        .map(|tokens| feed(&mut engine, seq, tokens).unwrap().concat())
        .concat()
}

/// Has a plan state for how many rows device `a` compiles.
fn state(plan: &mut Plan, prefill: &[usize], decode: &[usize]) {
    for (rules, rows) in [(&mut plan.prefill.rules, prefill), (&mut plan.decode.rules, decode)] {
        let own = rules.iter_mut().filter(|r| r.device == "a");
        own.for_each(|r| r.row_buckets = Some(rows.to_vec()));
    }
}

#[test]
fn graphs_are_compiled_for_the_rows_that_a_plan_states() {
    let d = described("qwen3");
    let more = "static_shapes = true\nrow_buckets = [3, 9]";
    let run = |other: Option<&str>, change: fn(&mut Plan)| {
        let rows = Arc::new(Mutex::new(Vec::new()));
        let seen = rows.clone();
        let before = move |_: Step, _: &str, graph: &Subgraph| {
            seen.lock().unwrap().push((graph.name.starts_with("layer"), graph.max_rows()));
            Ok(())
        };
        let odd = Watched::new(virtual_device("a", more), Box::new(before)) as Arc<dyn Device>;
        let devices: Vec<_> =
            [Some(odd), other.map(|name| cpu(name, 1))].into_iter().flatten().collect();
        let strategy = if other.is_some() { Strategy::Alternate } else { Strategy::OneDevice };
        let mut plan = plan_of(&d, &devices, &in_f32(strategy, 12));
        change(&mut plan);
        let made = engines::engine(&d, &devices, plan, EngineOptions::default())?;
        let mut rows: Vec<(bool, usize)> = rows.lock().unwrap().clone();
        let graphs = rows.len();
        rows.sort_unstable();
        rows.dedup();
        Ok::<_, EngineError>((logits(made), rows, graphs))
    };
    let of_layers = |rows: &[(bool, usize)]| -> Vec<usize> {
        rows.iter().filter(|r| r.0).map(|r| r.1).collect()
    };
    for other in [None, Some("b")] {
        let (own, rows, graphs) = run(other, |_| {}).unwrap();
        assert_eq!(of_layers(&rows), [3, 9]);
        let (stated, rows, _) = run(other, |plan| state(plan, &[2, 5, 16], &[1])).unwrap();
        assert_eq!(of_layers(&rows), [1, 2, 5, 16]);
        assert!(own == stated && own.iter().any(|x| *x != 0.0), "other bits");
        // Graphs of both phases are compiled once: three per segment, where the device's own rows
        // give two.
        let (shared, rows, more) = run(other, |plan| state(plan, &[1, 4], &[1, 8])).unwrap();
        assert_eq!((of_layers(&rows), 2 * more), (vec![1, 4, 8], 3 * graphs));
        assert!(own == shared, "other bits");
    }
    // The CPU has no use for numbers of rows.
    let e = run(Some("b"), |plan| {
        for rule in plan.prefill.rules.iter_mut().chain(&mut plan.decode.rules) {
            rule.row_buckets = Some(vec![4]);
        }
    });
    let EngineError::Plan(e @ PlanError::Rule { .. }) = e.map(drop).unwrap_err() else { panic!() };
    let said = e.to_string();
    assert!(said.contains("of prefill has row buckets, but b takes any number of rows"), "{said}");
}

/// Devices refuse values that begin elsewhere; the numbers are those of devices that take them
/// anywhere.
#[test]
fn values_begin_where_devices_can_bind_them() {
    let d = described("qwen3");
    let run = |strategy, more: String| {
        let devices = ["a", "b"].map(|name| virtual_device(name, &more));
        let plan = plan_of(&d, &devices, &in_f32(strategy, 12));
        logits(engines::engine(&d, &devices, plan, EngineOptions::default()).unwrap())
    };
    for strategy in ["alternate", "split-columns"].map(|s| Strategy::parse(s).unwrap()) {
        for more in ["static_shapes = true\nrow_buckets = [3, 9]", "", "own_memory = true"] {
            let anywhere = run(strategy.clone(), more.into());
            for align in [64, 4096] {
                let aligned = run(strategy.clone(), format!("{more}\noffset_alignment = {align}"));
                assert!(anywhere == aligned, "{strategy}, {more}, {align}");
            }
        }
    }
}

/// Code is made per shape and not per layer, unless the device bakes weights into it. Attention has
/// none.
#[test]
fn layers_of_one_shape_share_code_and_have_their_own_weights() {
    let d = described("qwen3");
    let run = |device: Arc<dyn Device>| {
        let device = Watched::plain(device);
        let told = Arc::new(Mutex::new((0, 0)));
        let telling = told.clone();
        let progress = move |done, all| *telling.lock().unwrap() = (done, all);
        let control =
            CompileControl { progress: Some(Arc::new(progress)), ..CompileControl::default() };
        let engine = engine(&d, std::slice::from_ref(&device), &d.store, &control).unwrap();
        let codes = device.codes.lock().unwrap().len();
        assert_eq!(*device.requests.lock().unwrap(), [codes], "all in one call");
        let loaded: Vec<Arc<Weights>> =
            device.loaded.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        assert_eq!(*told.lock().unwrap(), (codes + loaded.len(), codes + loaded.len()));
        let mut used: Vec<_> = loaded.iter().map(|w| format!("{:?}", w.executable())).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), codes);
        (codes, loaded.len(), logits(engine))
    };
    // Embedding and head; for each layer products, attention, its output and the feed-forward.
    let (kinds, graphs) = (2 + 4, 2 + 4 * d.spec.layers.len());
    assert!(graphs > kinds);
    let own = run(cpu("a", 1));
    assert_eq!((own.0, own.1), (kinds, graphs));
    let shared = run(virtual_device("v", ""));
    assert_eq!((shared.0, shared.1), (kinds, graphs));
    let baked = run(virtual_device("v", "bakes_weights = true"));
    assert_eq!((baked.0, baked.1), (graphs - (d.spec.layers.len() - 1), graphs));
    assert!(own.2 == shared.2 && own.2 == baked.2 && own.2.iter().any(|x| *x != 0.0), "other bits");
}
