//! Compiles the graphs of a program and loads their weights, on all devices in parallel. A device
//! gets all its graphs in one call. Graphs of one shape share their code.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use troika_device::{
    Clock, CompileRequest, Device, DeviceError, Executable, WeightSource, Weights,
};
use troika_graph::Subgraph;
use troika_plan::Refusal;
use troika_program::{GraphList, ListedGraph};

use crate::error::EngineError;

/// Called from any thread with (finished steps, all steps), the first time before any step. A step
/// makes the code for all graphs of one shape, or loads the weights of one graph.
pub type OnCompiled = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How to watch and stop compiling.
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

/// What compiling needs besides graphs and devices.
pub(crate) struct CompileWith<'a> {
    pub weights: &'a dyn WeightSource,
    pub control: &'a CompileControl,
    /// Graphs whose weights come and go.
    pub cached: &'a HashSet<usize>,
    pub clock: &'a dyn Clock,
}

/// Compiles all graphs of a list, and loads their weights. The result is in the list's order,
/// whichever was ready first. After a failure nothing is kept. The error is about the first graph,
/// in the list's order, whose code failed, else about the first whose weights failed. If devices
/// share a clock, only the first one that fails is asked.
///
/// # Errors
/// The device's error, or why compiling was stopped.
pub(crate) fn compile(
    list: &GraphList,
    devices: &[Arc<dyn Device>],
    with: &CompileWith<'_>,
) -> Result<Vec<CompiledGraph>, EngineError> {
    let compiling = Compiling {
        list,
        devices,
        with,
        steps: list.codes() + list.graphs().len(),
        until: with.control.limit.map(|limit| with.clock.now().saturating_add(limit)),
        done: Mutex::new(0),
        failed: AtomicUsize::new(usize::MAX),
    };
    if let Some(progress) = &with.control.progress {
        progress(0, compiling.steps);
    }
    let mut results: Vec<Compiled> = Vec::new();
    let shares = shares(list, devices);
    std::thread::scope(|scope| {
        let mut own: Vec<&ThreadShare> = Vec::new();
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
            thread.join().unwrap_or_else(|_| Err(compiling.panicked(share)))
        }));
    });
    let (made, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    if let Some((_, e)) = failed.into_iter().filter_map(Result::err).min_by_key(|e| e.0) {
        return Err(e);
    }
    let mut all: Vec<_> = made.into_iter().flatten().flatten().collect();
    all.sort_unstable_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

#[derive(Clone)]
pub(crate) struct CompiledGraph {
    /// Its code; `None` if the device takes the graph, and makes the code when it loads it.
    pub code: Option<Arc<Executable>>,
    /// Its weights; `None` if they come and go.
    pub weights: Option<Arc<Weights>>,
}

/// The graphs that a thread loaded, or the number of the step that failed: for code the number of
/// the graph, for weights that number plus the number of graphs.
type Compiled = Result<Vec<(usize, CompiledGraph)>, (usize, EngineError)>;

/// The devices that a thread compiles for, and their graphs.
#[derive(Clone, Default)]
struct ThreadShare {
    devices: Vec<usize>,
    graphs: Vec<usize>,
}

/// The shares of all threads. One thread compiles for all devices that share a virtual clock, so
/// that time passes in the same order in every run.
fn shares(list: &GraphList, devices: &[Arc<dyn Device>]) -> Vec<ThreadShare> {
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
    let mut shares = vec![ThreadShare::default(); devices.len()];
    for (i, listed) in list.graphs().iter().enumerate() {
        let share = &mut shares[thread_of(listed.device)];
        share.graphs.push(i);
        if !share.devices.contains(&listed.device) {
            share.devices.push(listed.device);
        }
    }
    shares.retain(|share| !share.graphs.is_empty());
    shares
}

struct Compiling<'a> {
    list: &'a GraphList,
    devices: &'a [Arc<dyn Device>],
    with: &'a CompileWith<'a>,
    /// Codes to make plus graphs to load.
    steps: usize,
    until: Option<Duration>,
    /// Finished steps.
    done: Mutex<usize>,
    /// The first step that failed so far: steps behind it are skipped.
    failed: AtomicUsize,
}

/// How far a device's call is.
#[derive(Default)]
struct Told {
    /// Graphs made or refused.
    done: usize,
    /// Why the call was stopped, and at which graph.
    stopped: Option<(usize, EngineError)>,
}

impl Compiling<'_> {
    fn run(&self, share: &ThreadShare) -> Compiled {
        let mut codes = vec![None; self.list.codes()];
        for device in &share.devices {
            self.make(*device, &mut codes)?;
        }
        let mut made = Vec::new();
        for &at in &share.graphs {
            let step = self.list.graphs().len() + at;
            if self.failed.load(Ordering::Acquire) < step {
                break;
            }
            let code = codes[self.list.graphs()[at].code].clone();
            let weights = match self.with.cached.contains(&at) {
                true => None,
                false => Some(self.load(at, code.as_ref()).map_err(|e| self.failure(step, e))?),
            };
            self.report(1);
            made.push((at, CompiledGraph { code, weights }));
        }
        Ok(made)
    }

    /// Makes all codes of a device in one call.
    fn make(
        &self,
        device: usize,
        codes: &mut [Option<Arc<Executable>>],
    ) -> Result<(), (usize, EngineError)> {
        let held = |at: &usize| !self.is_tried(*at);
        let firsts: Vec<usize> = self.list.firsts(device).filter(held).collect();
        let graphs: Vec<&Subgraph> =
            firsts.iter().map(|at| &self.list.graphs()[*at].graph).collect();
        let told: Mutex<Told> = Mutex::default();
        let report_progress = |done: usize| {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            // The graph that was just done or still takes its time.
            let Some(at) = firsts.get(told.done).filter(|_| told.stopped.is_none()) else {
                return false;
            };
            let more = done.saturating_sub(told.done);
            told.done += more;
            self.report(more);
            told.stopped = self.stopped(*at).map(|e| (*at, e));
            let failed = self.failed.load(Ordering::Acquire);
            told.stopped.is_none() && firsts.get(told.done).is_some_and(|next| *next < failed)
        };
        let request = CompileRequest {
            graphs: &graphs,
            weights: self.with.weights,
            report_progress: &report_progress,
        };
        let made = self.devices[device].compile(&request);
        if let Some((at, e)) = told.into_inner().unwrap_or_else(PoisonError::into_inner).stopped {
            return Err(self.failure(at, e));
        }
        for (at, code) in firsts.iter().zip(made) {
            let code = code.map_err(|e| self.failure(*at, self.refused(*at, e)))?;
            codes[self.list.graphs()[*at].code] = Some(code);
        }
        self.list.firsts(device).filter(|at| self.is_tried(*at)).try_for_each(|at| self.tried(at))
    }

    /// Whether the code of a graph is made when it is loaded: its weights are in it, and come and go.
    /// Memory of devices in modelled time holds all code.
    fn is_tried(&self, at: usize) -> bool {
        let ListedGraph { device, graph, .. } = &self.list.graphs()[at];
        let device = &self.devices[*device];
        self.with.cached.contains(&at)
            && device.clock().is_none()
            && !device.caps().shares_code(graph)
    }

    /// Sees that a device takes a graph, and keeps nothing of it: a device whose code has the weights in
    /// it would else hold all groups of a cache at once.
    fn tried(&self, at: usize) -> Result<(), (usize, EngineError)> {
        if let Some(e) = self.stopped(at) {
            return Err(self.failure(at, e));
        }
        let ListedGraph { device, graph, .. } = &self.list.graphs()[at];
        let (weights, goes_on) = (self.with.weights, |_| self.stopped(at).is_none());
        let request = CompileRequest { graphs: &[graph], weights, report_progress: &goes_on };
        let tried = self.devices[*device].compile(&request).pop();
        let tried = tried.unwrap_or(Err(DeviceError::Cancelled));
        tried.map_err(|e| self.failure(at, self.refused(at, e)))?;
        self.report(1);
        Ok(())
    }

    /// Why a device did not compile a graph: a refused op is something that a planner can avoid.
    fn refused(&self, at: usize, error: DeviceError) -> EngineError {
        let DeviceError::Unsupported { device, op, why, .. } = &error else { return error.into() };
        let ListedGraph { kind, graph, .. } = &self.list.graphs()[at];
        let mut ops: Vec<&str> = match &**op {
            DeviceError::ALL_OPS => graph.nodes.iter().map(|node| node.op.name()).collect(),
            op => vec![op],
        };
        ops.sort_unstable();
        ops.dedup();
        let refusal = |op: &str| {
            let (device, op, why) = (device.clone(), op.into(), why.clone());
            Refusal { device, segment: *kind, op, why }
        };
        EngineError::Refused { refusals: ops.into_iter().map(refusal).collect(), error }
    }

    fn load(&self, at: usize, code: Option<&Arc<Executable>>) -> Result<Arc<Weights>, EngineError> {
        if let Some(e) = self.stopped(at) {
            return Err(e);
        }
        let ListedGraph { device, graph, .. } = &self.list.graphs()[at];
        let device = &*self.devices[*device];
        let code = code.ok_or_else(|| {
            let why = format!("its compiler left out {}", graph.name);
            DeviceError::System { device: device.name().into(), why }
        })?;
        Ok(device.load(code, graph, self.with.weights)?)
    }

    /// Why to stop at a graph.
    fn stopped(&self, at: usize) -> Option<EngineError> {
        let (done, all) = (self.report(0), self.steps);
        let cancel = self.with.control.cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Some(EngineError::CompileCancelled { done, all });
        }
        // Once all are compiled, the deadline no longer matters.
        let late = self.until.is_some_and(|until| self.with.clock.now() > until);
        (late && done < all).then(|| {
            let ListedGraph { device, graph, .. } = &self.list.graphs()[at];
            let (device, segment) = (self.devices[*device].name().to_string(), graph.name.clone());
            let limit = self.with.control.limit.unwrap_or_default();
            EngineError::CompileTime { device, segment, limit, done, all }
        })
    }

    /// Counts finished steps and reports them, one thread at a time.
    fn report(&self, more: usize) -> usize {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += more;
        if let Some(progress) = self.with.control.progress.as_ref().filter(|_| more > 0) {
            progress(*done, self.steps);
        }
        *done
    }

    /// Notes a failed step, so that no thread begins those behind it.
    fn failure(&self, step: usize, e: EngineError) -> (usize, EngineError) {
        self.failed.fetch_min(step, Ordering::AcqRel);
        (step, e)
    }

    fn panicked(&self, share: &ThreadShare) -> (usize, EngineError) {
        let device = self.devices[share.devices[0]].name().to_string();
        let why = "its compiler panicked".into();
        self.failure(share.graphs[0], DeviceError::System { device, why }.into())
    }
}
