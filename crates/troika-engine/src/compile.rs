//! Compiles the graphs of a program and loads their weights: one after another on each device, on
//! all devices in parallel. Graphs of one shape share their code.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use troika_device::{Clock, Device, DeviceError, Executable, WeightSource, Weights};
use troika_graph::Subgraph;

use crate::error::EngineError;

/// Called from any thread with (finished steps, all steps), the first time before any step. A step
/// makes the code for all graphs of one shape, or loads the weights of one graph.
pub type OnCompiled = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How to watch and stop compiling. A step that has begun on a device is finished.
#[derive(Clone, Default)]
pub struct CompileControl {
    /// Receives the progress.
    pub progress: Option<OnCompiled>,
    /// Set from any thread to stop with [`EngineError::CompileCancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
    /// The longest compiling may take, by the engine's clock.
    pub limit: Option<Duration>,
}

impl fmt::Debug for CompileControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileControl").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// All graphs of a program with the devices that compile them, without duplicates.
#[derive(Default)]
pub(crate) struct CompileList {
    graphs: Vec<Listed>,
    /// For each code, the first graph that uses it. Each device and shape has a code of its own.
    codes: Vec<usize>,
    /// The first graph of the current segment.
    segment: usize,
}

struct Listed {
    device: usize,
    graph: Subgraph,
    /// Index of its code.
    code: usize,
}

impl CompileList {
    /// Starts the next segment. Its graphs have other weights than those before.
    pub fn begin_segment(&mut self) {
        self.segment = self.graphs.len();
    }

    /// The index of a device's graph, added if it is new. It shares its code with a graph of the
    /// same shape, unless the device bakes weights into code.
    pub fn add(&mut self, device: usize, graph: Subgraph, bakes_weights: bool) -> usize {
        let of_segment = &self.graphs[self.segment..];
        if let Some(at) = of_segment.iter().position(|l| (l.device, &l.graph) == (device, &graph)) {
            return self.segment + at;
        }
        let number = self.graphs.len();
        let same = |first: &usize| {
            let Listed { device: of, graph: other, .. } = &self.graphs[*first];
            *of == device && graph.same_code(other)
        };
        let known = self.codes.iter().position(same).filter(|_| !bakes_weights);
        let code = known.unwrap_or_else(|| {
            self.codes.push(number);
            self.codes.len() - 1
        });
        self.graphs.push(Listed { device, graph, code });
        number
    }

    /// Number of codes to make plus graphs to load.
    fn steps(&self) -> usize {
        self.codes.len() + self.graphs.len()
    }
}

/// What compiling needs besides graphs and devices.
pub(crate) struct CompileWith<'a> {
    pub weights: &'a dyn WeightSource,
    pub control: &'a CompileControl,
    pub clock: &'a dyn Clock,
}

/// Compiles all graphs of a list and loads their weights. The result is in the list's order,
/// whichever was ready first. After a failure nothing is kept; the error is that of the first
/// failing graph in the list's order.
///
/// # Errors
/// The device's error, or why compiling was stopped.
pub(crate) fn compile(
    list: &CompileList,
    devices: &[Arc<dyn Device>],
    with: &CompileWith<'_>,
) -> Result<Vec<Arc<Weights>>, EngineError> {
    let compiling = Compiling {
        list,
        devices,
        with,
        until: with.control.limit.map(|limit| with.clock.now().saturating_add(limit)),
        done: Mutex::new(0),
        failed: AtomicUsize::new(usize::MAX),
    };
    compiling.report(0);
    let mut results: Vec<Compiled> = Vec::new();
    let shares = shares(list, devices);
    std::thread::scope(|scope| {
        let mut own: Vec<&[usize]> = Vec::new();
        let mut threads = Vec::new();
        for (i, share) in shares.iter().enumerate() {
            let compiling = &compiling;
            let run = move || compiling.run(share);
            let thread = std::thread::Builder::new().name("troika-compile".into());
            // This thread does the last share, and all shares for which no thread could be started.
            match (i + 1 < shares.len()).then(|| thread.spawn_scoped(scope, run)) {
                Some(Ok(thread)) => threads.push((thread, share)),
                _ => own.push(share),
            }
        }
        results.extend(own.into_iter().map(|share| compiling.run(share)));
        results.extend(threads.into_iter().map(|(thread, share)| {
            thread.join().unwrap_or_else(|_| Err((share[0], compiling.panicked(share[0]))))
        }));
    });
    let mut all = vec![None; list.graphs.len()];
    let mut failure: Option<(usize, EngineError)> = None;
    for result in results {
        match result {
            Ok(made) => made.into_iter().for_each(|(at, weights)| all[at] = Some(weights)),
            Err(e) if failure.as_ref().is_none_or(|known| e.0 < known.0) => failure = Some(e),
            Err(_) => {}
        }
    }
    match failure {
        Some((_, e)) => Err(e),
        // Without a failure every graph is loaded.
        None => Ok(all.into_iter().flatten().collect()),
    }
}

/// The graphs that a thread loaded, or the one at which it failed.
type Compiled = Result<Vec<(usize, Arc<Weights>)>, (usize, EngineError)>;

/// The graphs of each device. One thread compiles for all devices that share a virtual clock, so
/// that time passes in the same order in every run.
fn shares(list: &CompileList, devices: &[Arc<dyn Device>]) -> Vec<Vec<usize>> {
    let clocks: Vec<Option<Arc<dyn Clock>>> = devices.iter().map(|d| d.clock()).collect();
    let same =
        |a: &Arc<dyn Clock>, b: &Arc<dyn Clock>| std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b));
    let thread_of = |device: usize| {
        let clock = clocks[device].as_ref();
        let shares_it = |other: &Option<Arc<dyn Clock>>| {
            clock.zip(other.as_ref()).is_some_and(|(a, b)| same(a, b))
        };
        clocks.iter().position(shares_it).unwrap_or(device)
    };
    let mut shares = vec![Vec::new(); devices.len()];
    for (i, listed) in list.graphs.iter().enumerate() {
        shares[thread_of(listed.device)].push(i);
    }
    shares.retain(|share| !share.is_empty());
    shares
}

struct Compiling<'a> {
    list: &'a CompileList,
    devices: &'a [Arc<dyn Device>],
    with: &'a CompileWith<'a>,
    /// The deadline.
    until: Option<Duration>,
    /// Finished steps.
    done: Mutex<usize>,
    /// The first graph that failed so far: graphs behind it are skipped.
    failed: AtomicUsize,
}

impl Compiling<'_> {
    fn run(&self, share: &[usize]) -> Compiled {
        let mut made = Vec::new();
        let mut codes = vec![None; self.list.codes.len()];
        for &at in share {
            if self.failed.load(Ordering::Acquire) < at {
                break;
            }
            match self.one(at, &mut codes[self.list.graphs[at].code]) {
                Ok(weights) => made.push((at, weights)),
                Err(e) => {
                    self.failed.fetch_min(at, Ordering::AcqRel);
                    return Err((at, e));
                }
            }
        }
        Ok(made)
    }

    /// Loads a graph. Makes its code first if it is the first of its shape.
    fn one(
        &self,
        at: usize,
        code: &mut Option<Arc<Executable>>,
    ) -> Result<Arc<Weights>, EngineError> {
        let Listed { device, graph, .. } = &self.list.graphs[at];
        let device = &*self.devices[*device];
        let code = match code {
            Some(code) => code,
            None => code.insert(self.step(device, graph, || device.compile(graph))?),
        };
        self.step(device, graph, || device.load(code, graph, self.with.weights))
    }

    fn step<T>(
        &self,
        device: &dyn Device,
        graph: &Subgraph,
        step: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, EngineError> {
        let all = self.list.steps();
        let cancel = self.with.control.cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(EngineError::CompileCancelled { done: self.done(), all });
        }
        let made = step()?;
        let done = self.report(1);
        // Once all are compiled, the deadline no longer matters.
        if done < all && self.until.is_some_and(|until| self.with.clock.now() > until) {
            let (device, segment) = (device.name().to_string(), graph.name.clone());
            let limit = self.with.control.limit.unwrap_or_default();
            return Err(EngineError::CompileTime { device, segment, limit, done, all });
        }
        Ok(made)
    }

    fn done(&self) -> usize {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts finished steps and reports them, one thread at a time.
    fn report(&self, more: usize) -> usize {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += more;
        if let Some(progress) = &self.with.control.progress {
            progress(*done, self.list.steps());
        }
        *done
    }

    fn panicked(&self, at: usize) -> EngineError {
        self.failed.fetch_min(at, Ordering::AcqRel);
        let device = self.devices[self.list.graphs[at].device].name().to_string();
        DeviceError::System { device, why: "its compiler panicked".into() }.into()
    }
}
