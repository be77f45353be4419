//! Equivalent shapes of products on NPUs (llm.npu, section 4): whether `[rows, k]` is faster as
//! `[groups, rows of a group, k]`.

use std::sync::Arc;

use troika::npu::Rewrite;
use troika::{DeviceOptions, DeviceSpec, OpenOptions, open_devices};
use troika_device::{
    Bindings, Buffer, Clock, CommandList, Device, DeviceError, RealClock, Run, Submission, View,
    Weights, Work,
};
use troika_graph::{
    ActivationFormat, DType, Op, Subgraph, SubgraphBuilder, WeightDecl, bind_static,
};
use troika_model::lower::{Lowered, SegmentKind};
use troika_weights::WeightStore;

use crate::bench::Bench;
use crate::error::LabError;
use crate::profile::nanoseconds;
use crate::subject::Subject;

/// Rows of a group; llm.npu gained with 32.
const GROUPS: [usize; 5] = [1, 8, 16, 32, 64];
/// Chunks of fewer rows are not measured.
const FEWEST_ROWS: usize = 32;
/// Rounds through all ways to write a product, and runs of each in a round.
const ROUNDS: usize = 5;
const RUNS: usize = 4;

/// A product of a model on an NPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedProduct {
    /// The device.
    pub device: String,
    /// Rows and columns of the weight matrix.
    pub weight: (usize, usize),
    /// Rows of the activations.
    pub rows: usize,
    /// Nanoseconds of the fastest run with all rows together.
    pub plain_ns: f64,
    /// The same, measured again: they differ by the error of measuring.
    pub again_ns: f64,
    /// Rows of a group, and nanoseconds of the fastest run in such groups.
    pub grouped_ns: Vec<(usize, f64)>,
}

impl GroupedProduct {
    /// The fastest grouping, and what it gains as a share of the time with all rows together.
    pub fn best(&self) -> Option<(usize, f64)> {
        let best = self.grouped_ns.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((best.0, 1.0 - best.1 / self.plain_ns.min(self.again_ns)))
    }

    /// By how much the two times with all rows together differ, as a share of the shorter one.
    pub fn noise(&self) -> f64 {
        let (a, b) = (self.plain_ns, self.again_ns);
        a.max(b) / a.min(b) - 1.0
    }
}

/// Measures each product of a model's prompts on the NPUs of the options.
///
/// # Errors
/// No NPU among the devices, an unusable model, or a failing device.
pub fn measure_row_groups(
    subject: &Subject,
    options: &OpenOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<GroupedProduct>, LabError> {
    let npus = options.devices.devices.iter().filter(|spec| spec.npu.is_some());
    let npus: Vec<&DeviceSpec> = npus.collect();
    if npus.is_empty() {
        return Err(LabError::NoNpu);
    }
    let model = subject.bind(options, true)?;
    let lowered = model.lowered(&model.one_device_plan(options)?)?;
    let products = products(&lowered);
    let mut all = Vec::new();
    for spec in npus {
        let plain = open_with(options, spec, None)?;
        let buckets = plain.caps().row_buckets.iter().filter(|n| **n >= FEWEST_ROWS);
        let points = buckets.flat_map(|rows| products.iter().map(move |p| (*rows, p)));
        let points: Vec<(usize, &WeightDecl)> = points.collect();
        for (done, (rows, product)) in points.iter().enumerate() {
            progress(done, points.len());
            all.push(measured(options, spec, (product, *rows), &model.store)?);
        }
        progress(points.len(), points.len());
    }
    Ok(all)
}

/// The device, perhaps with its rows in groups.
fn open_with(
    options: &OpenOptions,
    spec: &DeviceSpec,
    rows: Option<usize>,
) -> Result<Arc<dyn Device>, DeviceError> {
    let mut devices = DeviceOptions { devices: vec![spec.clone()], ..options.devices.clone() };
    devices.npu.rewrites.0.retain(|r| !matches!(r, Rewrite::GroupRows { .. }));
    devices.npu.rewrites.0.extend(rows.map(|rows| Rewrite::GroupRows { rows }));
    let opened = open_devices(&devices)?.into_iter().next();
    opened.ok_or_else(|| DeviceError::Gone("npu".into()))
}

/// A weight of each shape that a prompt's rows are multiplied with.
fn products(lowered: &Lowered) -> Vec<WeightDecl> {
    let mut found: Vec<WeightDecl> = Vec::new();
    for segment in lowered.segments.iter().filter(|s| s.kind != SegmentKind::Head) {
        for node in &segment.graph.nodes {
            let Op::Linear { weight, .. } = node.op else { continue };
            let decl = segment.graph.weight(weight);
            let same =
                |w: &WeightDecl| (w.rows, w.cols, w.dtype) == (decl.rows, decl.cols, decl.dtype);
            if !found.iter().any(same) {
                found.push(decl.clone());
            }
        }
    }
    found
}

fn graph(weight: &WeightDecl, rows: usize) -> Result<Subgraph, DeviceError> {
    let mut b = SubgraphBuilder::new("product", rows);
    let (outs, terms) = (weight.rows, weight.cols);
    let weight = b.weight(weight.clone());
    let x = b.input("x", terms, DType::F32);
    let op = Op::Linear { weight, bias: None, activations: ActivationFormat::F32 };
    let y = b.op("y", op, &[x], outs);
    b.output(y);
    Ok(bind_static(&b.finish()?, rows))
}

/// A product that is ready to run on a device.
struct Ready {
    bench: Bench,
    run: Run,
}

impl Ready {
    fn new(
        device: &Arc<dyn Device>,
        number: usize,
        (weight, rows): (&WeightDecl, usize),
        store: &WeightStore,
    ) -> Result<Ready, DeviceError> {
        let weights = Weights::compiled(&**device, &graph(weight, rows)?, store)?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let memory = |cols: usize| {
            let lost = |why: String| DeviceError::System { device: device.name().into(), why };
            let buffer = Buffer::zeroed(rows * cols * size_of::<f32>());
            buffer.map(|b| View::whole(&b)).map_err(|e| lost(e.to_string()))
        };
        let (inputs, outputs) = (vec![memory(weight.cols)?], vec![memory(weight.rows)?]);
        let bindings = Arc::new(Bindings { inputs, states: Vec::new(), outputs });
        let run = Run { weights, bindings, rows, forward: Arc::default() };
        Ok(Ready { bench: Bench::open(&**device, number, clock)?, run })
    }

    /// Nanoseconds of the fastest of some runs.
    fn fastest(&mut self) -> Result<f64, DeviceError> {
        let task = |tag: usize| Submission { tag: tag as u32, work: Work::Run(self.run.clone()) };
        let tasks = (0..RUNS).map(task).collect();
        let times = self.bench.run(CommandList { tasks, timed: true, ..CommandList::default() })?;
        Ok(times.iter().map(nanoseconds).fold(f64::INFINITY, f64::min))
    }
}

fn measured(
    options: &OpenOptions,
    spec: &DeviceSpec,
    (weight, rows): (&WeightDecl, usize),
    store: &WeightStore,
) -> Result<GroupedProduct, LabError> {
    let groups = GROUPS.into_iter().filter(|n| *n < rows).map(Some);
    let ways: Vec<Option<usize>> = [None, None].into_iter().chain(groups).collect();
    let mut ready = Vec::new();
    let mut device = String::new();
    for (number, way) in ways.iter().enumerate() {
        let opened = open_with(options, spec, *way)?;
        device = opened.name().to_string();
        ready.push(Ready::new(&opened, number, (weight, rows), store)?);
    }
    let mut fastest = vec![f64::INFINITY; ways.len()];
    // In turns, so that a disturbance meets all of them.
    for _ in 0..ROUNDS {
        for (ready, fastest) in ready.iter_mut().zip(&mut fastest) {
            *fastest = ready.fastest()?.min(*fastest);
        }
    }
    let grouped = ways.iter().zip(&fastest).filter_map(|(way, ns)| Some(((*way)?, *ns)));
    Ok(GroupedProduct {
        device,
        weight: (weight.rows, weight.cols),
        rows,
        plain_ns: fastest[0],
        again_ns: fastest[1],
        grouped_ns: grouped.collect(),
    })
}
