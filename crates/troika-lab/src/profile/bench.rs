//! Measures one device: loads graphs on it and times their runs.

use std::sync::Arc;

use troika::program::graph_bytes;
use troika_check::Bench;
use troika_device::{
    Clock, CodeWeights, CommandList, Device, DeviceError, Executable, Run, Submission, TaskTime,
    Weights, Work,
};
use troika_graph::{Subgraph, WeightDecl, bind_static};
use troika_model::lower::Lowered;
use troika_solve::{ProfiledGraph, SegmentPart};
use troika_weights::WeightStore;

use super::inputs::{RowsAt, bindings, forward, page_len};

/// The most measurements of each point, until it is known; spread over the whole time, so that a
/// temporary slowdown does not affect all of them.
pub(super) const VISITS: usize = 3;
/// Layers run in turn until their weights exceed the caches, as in a model.
const MOST_WEIGHTS: usize = 256 << 20;
/// Rounds through the layers with the rest of the model's weights between them.
const MOST_ROUNDS: usize = 4;
/// How long a point is measured, in nanoseconds, and the fewest and most runs.
const MEASURED_NS: f64 = 25e6;
const FEWEST: usize = 3;
const MOST: usize = 400;

/// A device with its queue, and what its profile is made from.
pub(super) struct DeviceProfiler<'a> {
    pub device: Arc<dyn Device>,
    pub clock: Arc<dyn Clock>,
    pub bench: Bench,
    lowered: &'a Lowered,
    /// Compile times in nanoseconds.
    pub compiled_ns: Vec<f64>,
    /// What loading graphs of experts again took, by their bytes.
    pub loads: Vec<(u64, f64)>,
    /// As many bytes as the model's weights, up to [`MOST_WEIGHTS`].
    others: Vec<u64>,
}

/// A graph with the weights of several layers, loaded on a device.
pub(super) struct LoadedGraph {
    layers: Vec<Subgraph>,
    /// The only number of rows, if there is one.
    rows: Option<usize>,
    /// By the rows of the shape; key 0: any number of rows.
    codes: Vec<(usize, Vec<Arc<Weights>>)>,
}

impl<'a> DeviceProfiler<'a> {
    pub fn new(
        number: usize,
        device: &Arc<dyn Device>,
        lowered: &'a Lowered,
        clock: Arc<dyn Clock>,
    ) -> Result<DeviceProfiler<'a>, DeviceError> {
        let bench = Bench::open(&**device, number, clock.clone())?;
        let bytes = if device.clock().is_some() { 0 } else { weight_bytes(lowered) };
        let others = vec![1; bytes.min(MOST_WEIGHTS) / size_of::<u64>()];
        let (device, compiled_ns, loads) = (device.clone(), Vec::new(), Vec::new());
        Ok(DeviceProfiler { device, clock, bench, lowered, compiled_ns, loads, others })
    }

    /// Measurements of a point wanted after a visit. Modelled times never vary: one is enough. Where
    /// loading means compiling, all are made at once.
    pub fn wanted(&self, visit: usize) -> usize {
        let caps = self.device.caps();
        match self.device.clock() {
            Some(_) => 1,
            None if caps.code_weights.is_some() => VISITS,
            None => visit + 1,
        }
    }

    /// Whether so many rows take what any others do that are padded to as many.
    pub fn pads(&self, rows: usize, room: usize) -> bool {
        self.device.caps().static_shapes && self.device.clock().is_none() && rows < room
    }

    /// The most rows of a run, of so many.
    pub fn most_rows(&self, rows: usize) -> usize {
        let buckets = &self.device.caps().row_buckets;
        buckets.last().map_or(rows, |most| rows.min(*most))
    }

    /// Whether the device takes all ops of a graph.
    pub fn takes(&self, graph: &ProfiledGraph) -> bool {
        let caps = self.device.caps();
        let takes = |g: &Subgraph| {
            let bound = graph.rows.filter(|_| caps.static_shapes).map(|rows| bind_static(g, rows));
            self.device.examine(bound.as_ref().unwrap_or(g)).iter().all(Option::is_none)
        };
        let fits = |g: &Subgraph| {
            let row = |code: CodeWeights, w: &WeightDecl| code.row_bytes(w.dtype, w.cols);
            let of = |code| g.weights.iter().map(|w| w.rows as u64 * row(code, w)).sum();
            let bytes = caps.code_weights.map_or_else(|| bytes_of(g) as u64, of);
            caps.max_graph_bytes.is_none_or(|most| bytes <= most)
        };
        let fits = |g: &Subgraph| graph.part != SegmentPart::Group || fits(g);
        (caps.host_tasks || graph.part != SegmentPart::Choices)
            && graph.layers.first().is_some_and(|g| fits(g) && takes(g))
    }

    /// Rows computed for a number of rows wanted, of a graph that perhaps has one number only.
    pub fn room(&self, rows: usize, only: Option<usize>) -> usize {
        let caps = self.device.caps();
        if !caps.static_shapes || only.is_some() {
            return only.unwrap_or(rows);
        }
        let enough = caps.row_buckets.iter().copied().find(|n| *n >= rows);
        enough.or(caps.row_buckets.last().copied()).unwrap_or(rows)
    }

    /// Loads a graph's weights for as many layers as exceed the caches, for runs of at most so many
    /// rows.
    pub fn load(
        &mut self,
        graph: &ProfiledGraph,
        most: usize,
        store: &WeightStore,
    ) -> Result<LoadedGraph, DeviceError> {
        let one = graph.layers.first().map_or(1, bytes_of).max(1);
        // Each layer's code takes memory of its own where weights are part of it.
        let shares = graph.layers.first().is_none_or(|g| self.device.caps().shares_code(g));
        let count = if shares { (MOST_WEIGHTS / one).clamp(2, 64) } else { 1 };
        let layers: Vec<Subgraph> = graph.layers.iter().take(count).cloned().collect();
        let mut loaded = LoadedGraph { layers, rows: graph.rows, codes: Vec::new() };
        let shapes = match (self.device.caps().static_shapes, graph.rows) {
            (true, Some(rows)) => vec![rows],
            (true, None) => {
                let mut rows = self.device.caps().row_buckets.clone();
                rows.retain(|rows| *rows <= self.room(most, None));
                rows
            }
            (false, _) => vec![0],
        };
        for shape in shapes {
            let mut weights = Vec::new();
            let mut code: Option<Arc<Executable>> = None;
            for layer in &loaded.layers {
                let graph = if shape > 0 { bind_static(layer, shape) } else { layer.clone() };
                let known = code.clone().filter(|_| shares);
                let executable = match known {
                    Some(known) => known,
                    None => self.compile(&graph, store)?,
                };
                weights.push(self.device.load(&executable, &graph, store)?);
                code = Some(executable);
            }
            if let Some(layer) = loaded.layers.last().filter(|_| loaded.rows.is_some()) {
                let graph = if shape > 0 { bind_static(layer, shape) } else { layer.clone() };
                self.load_again(&graph, code.filter(|_| shares), store)?;
            }
            loaded.codes.push((shape, weights));
        }
        Ok(loaded)
    }

    /// Measures what loading a graph takes that was loaded before, with its code where weights are
    /// part of it. Modelled time has it from its file.
    fn load_again(
        &mut self,
        graph: &Subgraph,
        code: Option<Arc<Executable>>,
        store: &WeightStore,
    ) -> Result<(), DeviceError> {
        if self.device.clock().is_some() {
            return Ok(());
        }
        let start = std::time::Instant::now();
        let code = match code {
            Some(code) => code,
            None => Executable::compiled(&*self.device, graph, store)?,
        };
        drop(self.device.load(&code, graph, store)?);
        let bytes = graph_bytes(graph, self.device.caps());
        self.loads.push((bytes, start.elapsed().as_nanos() as f64));
        self.loads.sort_by_key(|(bytes, _)| *bytes);
        Ok(())
    }

    fn compile(
        &mut self,
        graph: &Subgraph,
        store: &WeightStore,
    ) -> Result<Arc<Executable>, DeviceError> {
        let real = std::time::Instant::now();
        let start = self.clock.now();
        let executable = Executable::compiled(&*self.device, graph, store)?;
        // With modelled time, compiling takes modelled time too.
        let took = match self.device.clock() {
            Some(_) => self.clock.now().saturating_sub(start),
            None => real.elapsed(),
        };
        self.compiled_ns.push(took.as_nanos() as f64);
        Ok(executable)
    }

    /// Runs of a graph, layer by layer, in `submissions` lists.
    pub fn submissions(
        &self,
        loaded: &LoadedGraph,
        at: RowsAt,
        count: usize,
    ) -> Result<(Vec<Submission>, Vec<Submission>), DeviceError> {
        let RowsAt { rows, cached } = at;
        let room = self.room(rows, loaded.rows);
        let missing = || lost(self.device.name(), "has no code for so many rows");
        let (_, weights) = loaded
            .codes
            .iter()
            .find(|(shape, _)| *shape == 0 || *shape == room)
            .ok_or_else(missing)?;
        let one = loaded.layers.first().ok_or_else(missing)?;
        let page_len = page_len(&*self.device, self.lowered);
        let (bindings, copies) = bindings(&self.device, one, room, cached, page_len)?;
        let forward = forward(self.lowered, at, page_len);
        let bindings = Arc::new(bindings);
        let submission = |(i, work)| Submission { tag: i as u32, work };
        let runs = (0..count).map(|i| {
            let weights = weights[i % weights.len()].clone();
            let (bindings, forward) = (bindings.clone(), forward.clone());
            Work::Run(Run { weights, bindings, rows, forward })
        });
        let runs = runs.enumerate().map(submission).collect();
        Ok((copies.into_iter().enumerate().map(submission).collect(), runs))
    }

    /// The times of runs at a point as they are in a model, where the caches hold other weights by
    /// the time a layer comes again; given the expected time of one.
    pub fn times_in_model(
        &mut self,
        loaded: &LoadedGraph,
        at: RowsAt,
        expected_ns: f64,
    ) -> Result<Vec<f64>, DeviceError> {
        let warm = self.times(loaded, at, expected_ns)?;
        let own = loaded.layers.iter().map(bytes_of).sum::<usize>() / size_of::<u64>();
        let rest = self.others.len().saturating_sub(own);
        if rest == 0 {
            return Ok(warm);
        }
        let runs = loaded.layers.len().min(warm.len());
        let mut times = Vec::new();
        for _ in 0..(warm.len() / runs).clamp(1, MOST_ROUNDS) {
            std::hint::black_box(self.others[..rest].iter().sum::<u64>());
            times.extend(self.measured(loaded, at, runs)?);
        }
        Ok(times)
    }

    /// The times of runs at a point, layer by layer, given the expected time of one.
    pub fn times(
        &mut self,
        loaded: &LoadedGraph,
        at: RowsAt,
        expected_ns: f64,
    ) -> Result<Vec<f64>, DeviceError> {
        let layers = loaded.layers.len();
        // Modelled times never vary.
        if self.device.clock().is_some() {
            return self.measured(loaded, at, 1);
        }
        let first = if expected_ns > 0.0 { 1 } else { layers.min(FEWEST) };
        let warm = self.measured(loaded, at, first)?;
        let each = warm.iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
        let count = (MEASURED_NS / each) as usize;
        let count = count.clamp(FEWEST, MOST.max(layers));
        self.measured(loaded, at, count)
    }

    fn measured(
        &mut self,
        loaded: &LoadedGraph,
        at: RowsAt,
        count: usize,
    ) -> Result<Vec<f64>, DeviceError> {
        let (copies, runs) = self.submissions(loaded, at, count)?;
        if !copies.is_empty() {
            self.bench.run(CommandList { tasks: copies, ..CommandList::default() })?;
        }
        let times =
            self.bench.run(CommandList { tasks: runs, timed: true, ..CommandList::default() })?;
        Ok(times.iter().map(nanoseconds).collect())
    }
}

/// An error for a device that fails.
pub(super) fn lost(device: &str, why: &str) -> DeviceError {
    DeviceError::System { device: device.into(), why: why.into() }
}

/// The duration of a task, as measured or modelled.
pub(crate) fn nanoseconds(t: &TaskTime) -> f64 {
    t.modelled.unwrap_or(t.end.saturating_sub(t.start)).as_nanos() as f64
}

fn bytes_of(graph: &Subgraph) -> usize {
    graph.weights.iter().map(|w| w.bytes() as usize).sum()
}

/// Bytes of all weights of a model; shared ones count for each reader.
fn weight_bytes(lowered: &Lowered) -> usize {
    lowered.segments.iter().map(|s| bytes_of(&s.graph)).fold(0, usize::saturating_add)
}
