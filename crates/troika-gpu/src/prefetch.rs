//! Compiles the kernels that graphs will need before they run, in as many threads as there are
//! cores.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use troika_device::DeviceError;

use crate::adapter::now;
use crate::bound::{MultiplyCount, Ready};
use crate::code::{Code, Shape};
use crate::emit::Emitter;
use crate::error::{locked, one_line};
use crate::gpu::Gpu;
use crate::kernels::{Binding, Dispatch, top_k_kernels};
use crate::pipelines::{PipelineKey, key};

/// Numbers of rows for which kernels differ, besides one row and the most.
const ROWS: [usize; 3] = [2, 4, 8];

/// More positions than one workgroup attends to alone.
const LONG: usize = 4096;

/// Kernels that are not compiled yet, in the order of the graphs that need them.
pub(crate) struct PipelinePrefetch<'a> {
    gpu: &'a Gpu,
    known: HashSet<PipelineKey>,
    wanted: Vec<WantedPipeline>,
}

/// A kernel, and the first graph that needs it.
struct WantedPipeline {
    graph: usize,
    /// Whether it is used once.
    is_used: bool,
    dispatch: Dispatch,
}

/// A kernel that failed.
pub(crate) struct Failed {
    pub key: PipelineKey,
    pub error: DeviceError,
}

/// How far compiling is.
struct Progress {
    /// The next kernel to compile.
    next: usize,
    /// For each graph, how many of its kernels are not done.
    left: Vec<usize>,
    /// Graphs that are done, and all before them.
    done: usize,
    stopped: bool,
    failed: Vec<Failed>,
}

impl<'a> PipelinePrefetch<'a> {
    pub fn new(gpu: &'a Gpu) -> PipelinePrefetch<'a> {
        PipelinePrefetch { gpu, known: HashSet::new(), wanted: Vec::new() }
    }

    /// Adds the kernels of a graph. Where the host's cores stand in for a GPU, compiling takes its
    /// time from them: there only what is sure to run is compiled ahead.
    pub fn add(&mut self, graph: usize, code: &Code) {
        for GraphDispatch { dispatch, is_used, .. } in dispatches(code) {
            if is_used || !self.gpu.is_software {
                self.want(WantedPipeline { graph, is_used, dispatch });
            }
        }
    }

    /// Adds the kernels that pick the largest numbers of rows, with those of a graph.
    pub fn add_top_k(&mut self, graph: usize) {
        for dispatch in top_k_kernels().into_iter().filter(|_| !self.gpu.is_software) {
            self.want(WantedPipeline { graph, is_used: true, dispatch });
        }
    }

    fn want(&mut self, wanted: WantedPipeline) {
        let key = key(&wanted.dispatch);
        if !self.gpu.pipelines.has(&key) && self.known.insert(key) {
            self.wanted.push(wanted);
        }
    }

    /// Compiles all of them. `go_on` hears how many of the `graphs` have all that they need, and
    /// says whether to go on. Returns what failed, and the number of graphs that were done.
    pub fn compile(
        self,
        graphs: usize,
        go_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> (Vec<Failed>, usize) {
        let mut left = vec![0; graphs];
        self.wanted.iter().for_each(|w| left[w.graph] += 1);
        let done = left.iter().take_while(|left| **left == 0).count();
        let stopped = !go_on(done);
        let progress = Mutex::new(Progress { next: 0, left, done, stopped, failed: Vec::new() });
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        thread::scope(|scope| {
            for _ in 1..cores.min(self.wanted.len()) {
                let builder = thread::Builder::new().name("troika-compile".into());
                // Where no thread is left, this one does it all.
                let _ = builder.spawn_scoped(scope, || self.work(&progress, go_on));
            }
            self.work(&progress, go_on);
        });
        let progress = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let done = if progress.stopped { progress.done } else { graphs };
        (progress.failed, done)
    }

    /// Compiles one kernel after another.
    fn work(&self, progress: &Mutex<Progress>, go_on: &(dyn Fn(usize) -> bool + Sync)) {
        loop {
            let mut at = locked(progress);
            let Some(wanted) = self.wanted.get(at.next).filter(|_| !at.stopped) else { return };
            at.next += 1;
            drop(at);
            let made = self.gpu.pipeline(&wanted.dispatch);
            let made = made.and_then(|_| match wanted.is_used {
                true => use_once(self.gpu, &wanted.dispatch),
                false => Ok(()),
            });
            let mut at = locked(progress);
            if let Err(error) = made {
                at.failed.push(Failed { key: key(&wanted.dispatch), error });
            }
            at.left[wanted.graph] -= 1;
            let before = at.done;
            while at.left.get(at.done) == Some(&0) {
                at.done += 1;
            }
            if at.done > before && at.done < at.left.len() && !at.stopped {
                at.stopped = !go_on(at.done);
            }
        }
    }
}

/// The first of a graph's kernels that failed: a node that it computes, and why.
pub(crate) fn failure<'f>(code: &Code, failed: &'f [Failed]) -> Option<(usize, &'f DeviceError)> {
    if failed.is_empty() {
        return None;
    }
    dispatches(code).into_iter().find_map(|step| {
        let key = key(&step.dispatch);
        failed.iter().find(|f| f.key == key).map(|f| (step.node, &f.error))
    })
}

/// A dispatch of a graph.
struct GraphDispatch {
    /// The first node that it computes.
    node: usize,
    dispatch: Dispatch,
    /// Whether it is one for a single row or for as many as there may be: those are sure to run.
    is_used: bool,
}

/// What a graph dispatches, for all numbers of rows and with few and many positions. A shape that has
/// no kernel is refused when it comes.
fn dispatches(code: &Code) -> Vec<GraphDispatch> {
    let most = code.graph.max_rows().max(1);
    let locs = code.plain_locs();
    let between = ROWS.into_iter().filter(|rows| (2..most).contains(rows));
    let mut all = Vec::new();
    // Those that are used come first.
    for rows in [1, most].into_iter().chain(between) {
        for (longest, one_row_each) in
            [(rows, rows == 1), (rows, rows > 1), (LONG, false), (LONG, true)]
        {
            let shape = Shape { longest, one_row_each, ..code.plain_shape(rows) };
            let is_used =
                (rows == 1 || rows == most) && longest == rows && one_row_each == (rows == 1);
            let mut emitter = Emitter::new(code, &shape, &locs);
            for at in 0..=code.units.len() {
                let (node, emitted) = match code.units.get(at) {
                    Some(unit) => (unit.nodes[0], emitter.unit(at)),
                    None => (0, emitter.repeats()),
                };
                let placed = std::mem::take(&mut emitter.out);
                if emitted.is_ok() {
                    let of_unit = placed.into_iter().map(|placed| placed.dispatch);
                    all.extend(of_unit.map(|dispatch| GraphDispatch { node, dispatch, is_used }));
                }
            }
        }
    }
    all
}

/// Dispatches a kernel without a workgroup: some drivers translate kernels when they are first
/// used.
fn use_once(gpu: &Gpu, of: &Dispatch) -> Result<(), DeviceError> {
    let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
    let part = |binding: &Binding| {
        let buffer = if *binding == Binding::Weight { &gpu.spare } else { &gpu.unread };
        (buffer, 0..buffer.size())
    };
    let parts: Vec<_> = of.spec.bindings.iter().map(part).collect();
    let empty = Dispatch { grid: [0; 3], ..of.clone() };
    let ready = Ready::new(gpu, empty, &parts, MultiplyCount::default())?;
    let submitted = ready.submit(gpu, 1);
    match now(scope.pop()) {
        Some(e) => Err(gpu.error(one_line(&e.to_string()))),
        None => gpu.wait(Some(submitted)),
    }
}
