//! Compiling the graphs of a program: on each device one after another, on all devices at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use troika_device::{Clock, Device, DeviceError, Executable, WeightSource};
use troika_graph::Subgraph;

use crate::error::EngineError;

/// Called with (graphs that are compiled, graphs to compile), the first time before the first of
/// them, from any thread.
pub type OnCompiled = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How compiling is watched and ended. A graph that a device has begun is compiled to its end.
#[derive(Clone, Default)]
pub struct CompileControl {
    /// Told how far it has come.
    pub progress: Option<OnCompiled>,
    /// Set from any thread to end it with [`EngineError::CompileCancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
    /// The longest that it may take, by the engine's clock.
    pub limit: Option<Duration>,
}

impl fmt::Debug for CompileControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileControl").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// The graphs that a program consists of, with the devices that compile them, each once.
#[derive(Default)]
pub(crate) struct CompileList {
    graphs: Vec<(usize, Subgraph)>,
    /// The first graph of the segment at hand.
    segment: usize,
}

impl CompileList {
    /// Graphs of other segments have other weights: those before are not looked through any more.
    pub fn begin_segment(&mut self) {
        self.segment = self.graphs.len();
    }

    /// The number of a device's graph, which is added if it is not there.
    pub fn add(&mut self, device: usize, graph: Subgraph) -> usize {
        let of_segment = &self.graphs[self.segment..];
        let known = of_segment.iter().position(|(d, g)| (*d, g) == (device, &graph));
        known.map_or_else(
            || {
                self.graphs.push((device, graph));
                self.graphs.len() - 1
            },
            |at| self.segment + at,
        )
    }
}

/// What compiling needs besides graphs and devices.
pub(crate) struct CompileWith<'a> {
    pub weights: &'a dyn WeightSource,
    pub control: &'a CompileControl,
    pub clock: &'a dyn Clock,
}

/// Compiles all graphs of a list. Executables have their graphs' numbers, whichever was ready
/// first. A failure leaves nothing behind, and is the one of the first graph in the list's order
/// that fails.
///
/// # Errors
/// What a device reports, or why compiling was ended.
pub(crate) fn compile(
    list: &CompileList,
    devices: &[Arc<dyn Device>],
    with: &CompileWith<'_>,
) -> Result<Vec<Arc<Executable>>, EngineError> {
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
            // The last share is this thread's, and so are those for which there is no thread.
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
    let mut executables = vec![None; list.graphs.len()];
    let mut failure: Option<(usize, EngineError)> = None;
    for result in results {
        match result {
            Ok(made) => made.into_iter().for_each(|(at, e)| executables[at] = Some(e)),
            Err(e) if failure.as_ref().is_none_or(|known| e.0 < known.0) => failure = Some(e),
            Err(_) => {}
        }
    }
    match failure {
        Some((_, e)) => Err(e),
        // Without a failure every graph was compiled.
        None => Ok(executables.into_iter().flatten().collect()),
    }
}

/// Graphs that a thread compiled, or the one at which it ended.
type Compiled = Result<Vec<(usize, Arc<Executable>)>, (usize, EngineError)>;

/// The graphs of a device, for each; those of devices that share a virtual clock are compiled
/// by one thread, so that time passes in the same order in every run.
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
    for (i, (device, _)) in list.graphs.iter().enumerate() {
        shares[thread_of(*device)].push(i);
    }
    shares.retain(|share| !share.is_empty());
    shares
}

struct Compiling<'a> {
    list: &'a CompileList,
    devices: &'a [Arc<dyn Device>],
    with: &'a CompileWith<'a>,
    /// When the time is up.
    until: Option<Duration>,
    /// Graphs that are compiled.
    done: Mutex<usize>,
    /// The first graph that failed so far: those behind it are left out.
    failed: AtomicUsize,
}

impl Compiling<'_> {
    fn run(&self, share: &[usize]) -> Compiled {
        let mut made = Vec::new();
        for &at in share {
            if self.failed.load(Ordering::Acquire) < at {
                break;
            }
            match self.one(at) {
                Ok(executable) => made.push((at, executable)),
                Err(e) => {
                    self.failed.fetch_min(at, Ordering::AcqRel);
                    return Err((at, e));
                }
            }
        }
        Ok(made)
    }

    fn one(&self, at: usize) -> Result<Arc<Executable>, EngineError> {
        let (device, graph) = &self.list.graphs[at];
        let (device, all) = (&self.devices[*device], self.list.graphs.len());
        let cancel = self.with.control.cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(EngineError::CompileCancelled { done: self.done(), all });
        }
        let executable = device.compile(graph, self.with.weights)?;
        let done = self.report(1);
        // With all of them compiled there is nothing to end.
        if done < all && self.until.is_some_and(|until| self.with.clock.now() > until) {
            let (device, segment) = (device.name().to_string(), graph.name.clone());
            let limit = self.with.control.limit.unwrap_or_default();
            return Err(EngineError::CompileTime { device, segment, limit, done, all });
        }
        Ok(executable)
    }

    fn done(&self) -> usize {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts graphs that are compiled and tells of it, one thread after another.
    fn report(&self, more: usize) -> usize {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += more;
        if let Some(progress) = &self.with.control.progress {
            progress(*done, self.list.graphs.len());
        }
        *done
    }

    fn panicked(&self, at: usize) -> EngineError {
        self.failed.fetch_min(at, Ordering::AcqRel);
        let device = self.devices[self.list.graphs[at].0].name().to_string();
        DeviceError::System { device, why: "its compiler panicked".into() }.into()
    }
}
