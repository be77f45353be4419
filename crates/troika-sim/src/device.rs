//! The virtual device.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use troika_cpu::{CpuDevice, CpuOptions};
use troika_device::{
    Buffer, Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceId,
    DeviceKind, Executable, LOADER_DEPTH, OutOfMemory, Queue, SpaceId, WeightSource, Weights,
    loader_name,
};
use troika_graph::{ActivationFormat, DType, Subgraph, verify};

use crate::board::Board;
use crate::bucket::{bucket_of, with_symbols};
use crate::cost::Rates;
use crate::lane::Lane;
use crate::limits::Limits;
use crate::loaded::{Code, Compiled, Loaded};
use crate::queue::{VirtualQueue, in_real_time};
use crate::resident::Resident;
use crate::soc::{HandOver, LoadRates, Processor, ProcessorKind, ProductTraits, Soc};
use crate::worker::Worker;

/// A processor described by a file.
pub struct VirtualDevice {
    caps: Caps,
    rates: Rates,
    limits: Arc<Limits>,
    /// Computes the values; `None` with numerics off.
    cpu: Option<CpuDevice>,
    board: Arc<Board>,
    /// The processor's index in the SoC.
    place: usize,
    id: DeviceId,
    resident: Resident,
}

impl VirtualDevice {
    /// A processor of the board's SoC, as a device with the given name. Devices of a board share
    /// memory, those of several with the same clock share time.
    ///
    /// # Errors
    /// The CPU kernels that compute its values cannot be set up.
    pub fn on(
        board: &Arc<Board>,
        name: &str,
        processor: &Processor,
    ) -> Result<VirtualDevice, DeviceError> {
        let soc = board.soc();
        let place = soc.processors.iter().position(|p| p.name == processor.name).unwrap_or(0);
        let space = if processor.own_memory { SpaceId::unique() } else { SpaceId::HOST };
        // One thread is enough: results do not depend on it.
        let spaces = processor.own_memory.then_some(space).into_iter().collect();
        let options = CpuOptions { name: name.into(), threads: 1, spaces, ..CpuOptions::default() };
        let cpu = CpuDevice::new(options)?;
        let caps = caps(soc, processor, space, cpu.caps());
        Ok(VirtualDevice {
            caps,
            rates: Rates::new(soc, processor),
            limits: Arc::new(Limits { device: name.into(), processor: processor.clone(), space }),
            cpu: soc.numerics.then_some(cpu),
            board: board.clone(),
            place,
            id: DeviceId::unique(),
            resident: Resident::default(),
        })
    }

    /// Opens a queue by some limits and rates, of a processor told by its place.
    fn open(
        &self,
        (limits, rates, place): (Arc<Limits>, Rates, usize),
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        // Its lists run on the calling thread, so the channel stays empty.
        let inner = |cpu: &CpuDevice| cpu.queue(number, clock.clone(), sync_channel(0).0);
        let inner = self.cpu.as_ref().map(inner).transpose()?;
        let loads = limits.device != self.limits.device;
        let worker = Worker { limits, rates, id: self.id, loads, inner };
        if std::ptr::addr_eq(Arc::as_ptr(&clock), Arc::as_ptr(self.board.clock())) {
            let (board, limits) = (self.board.clone(), worker.limits.clone());
            let lane = board.open(place, Lane { number, done, worker });
            return Ok(Box::new(VirtualQueue { board, lane, limits }));
        }
        in_real_time(worker, number, clock, done)
    }

    /// Checks that no op of a graph is refused.
    fn check_ops(&self, graph: &Subgraph) -> Result<(), DeviceError> {
        verify(graph)?;
        let refused = self.limits.examine(graph, &self.resident).into_iter().enumerate();
        let first = refused.filter_map(|(op, why)| Some((op, why?))).next();
        first.map_or(Ok(()), |(op, why)| Err(self.unsupported(graph, op, why)))
    }

    fn unsupported(&self, graph: &Subgraph, op: usize, why: String) -> DeviceError {
        DeviceError::Unsupported {
            device: self.limits.device.clone(),
            op: graph.nodes.get(op).map_or("none", |n| n.op.name()).into(),
            graph: graph.name.clone(),
            why,
        }
    }

    fn compile_one(
        &self,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Executable>, DeviceError> {
        self.check_ops(graph)?;
        let static_shapes = self.limits.processor.static_shapes;
        let bucket = static_shapes.then(|| bucket_of(graph)).transpose().map_err(|what| {
            let why = format!("it takes static shapes only, and {what}: bind rows to a bucket");
            self.unsupported(graph, 0, why)
        })?;
        let compiled =
            |cpu: &CpuDevice| Executable::compiled(cpu, &computed(graph, bucket), weights);
        let inner = self.cpu.as_ref().map(compiled).transpose()?;
        let compiling = compile_ns(&self.limits.processor, graph);
        self.board.clock().wait(Duration::from_nanos(compiling));
        self.board.compiled(self.place, compiling);
        let scratch = inner.as_ref().map_or(0, |e| e.scratch_bytes());
        let code = Arc::new(Code::new(graph, bucket, inner));
        Ok(Arc::new(Executable::new(Compiled { device: self.id, code }, scratch)))
    }
}

fn caps(soc: &Soc, p: &Processor, space: SpaceId, cpu: &Caps) -> Caps {
    // Also the formats of the CPU that computes the values, so that the results equal the CPU's.
    let mut formats = vec![ActivationFormat::INT8, ActivationFormat::Bf16];
    let more = cpu.activation_formats.iter().filter(|f| soc.numerics && !formats.contains(f));
    formats.extend(more.copied().collect::<Vec<_>>());
    if p.kind == ProcessorKind::Npu {
        formats.extend(ActivationFormat::calibrated(8));
    }
    formats.retain(|format| p.peak_gops.own(*format).is_some_and(|rate| rate > p.peak_gops.f32));
    Caps {
        static_shapes: p.static_shapes,
        row_buckets: p.row_buckets.clone(),
        spaces: vec![space],
        numerics: if soc.numerics { cpu.numerics.clone() } else { Caps::NO_NUMERICS.into() },
        max_binding_bytes: p.max_binding_bytes,
        weight_dtypes: cpu.weight_dtypes.iter().copied().filter(|d| *d != DType::I32).collect(),
        activation_formats: formats,
        max_graph_bytes: p.max_graph_bytes,
        max_graphs: p.max_graphs,
        max_resident_bytes: p.max_resident_bytes,
        queue_depth: p.queue_depth,
        queue_waits: p.queue_waits,
        // A driver cannot run host functions on its processor.
        host_tasks: p.kind == ProcessorKind::Cpu,
        strided_rows: p.strided_rows,
        offset_alignment: p.offset_alignment,
        bakes_weights: p.bakes_weights,
        forms: p.products.forms().collect(),
        facts: facts(soc, p),
        ..Caps::default()
    }
}

/// A hash of all figures of a processor and its memory, by which a profile for other figures is
/// recognised.
fn figures(soc: &Soc, p: &Processor) -> String {
    let all = format!("{p:?} {:?} {:?}", soc.bandwidth_gb_s, soc.memory_power);
    // FNV-1a, so that names are the same in all builds.
    let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", all.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Facts for people.
fn facts(soc: &Soc, p: &Processor) -> Vec<(String, String)> {
    let peak = p.peak_gops;
    let rate = |name: &str, rate: Option<f64>| rate.map(|r| format!(", {r} in {name}"));
    let peaks = [rate("int8", peak.int8), rate("bf16", peak.bf16)].into_iter().flatten();
    let bandwidth = p.bandwidth_gb_s.min(soc.bandwidth_gb_s.unwrap_or(f64::INFINITY));
    let mut facts = vec![
        (
            "virtual".to_string(),
            format!("{} {} of {} ({})", p.kind.name(), p.name, soc.name, soc.file),
        ),
        ("numerics".into(), if soc.numerics { "on" } else { "off" }.into()),
        ("peak".into(), format!("{} GOP/s in f32{}", peak.f32, peaks.collect::<String>())),
        ("bandwidth".into(), format!("{bandwidth} GB/s")),
        ("launch".into(), format!("{} us", p.launch_ns as f64 / 1e3)),
        ("tile".into(), format!("{} rows, {} columns", p.tile.rows, p.tile.cols)),
        ("memory".into(), if p.own_memory { "its own" } else { "the host's" }.into()),
    ];
    let mut add = |name: &str, value: String| facts.push((name.into(), value));
    if p.static_shapes {
        let list: Vec<String> = p.row_buckets.iter().map(usize::to_string).collect();
        let buckets = if list.is_empty() { "any".into() } else { list.join(", ") };
        add("static shapes", format!("rows {buckets}"));
    }
    if !p.refused.is_empty() {
        add("refuses", p.refused.join(", "));
    }
    for (name, most) in [
        ("most bytes of a binding", p.max_binding_bytes),
        ("most bytes of a graph", p.max_graph_bytes),
        ("most graphs", p.max_graphs.map(|n| n as u64)),
        ("most bytes resident", p.max_resident_bytes),
    ] {
        most.into_iter().for_each(|n| add(name, n.to_string()));
    }
    add("queue depth", p.queue_depth.to_string());
    add("checksum of these and all other figures", figures(soc, p));
    if p.offset_alignment > 1 {
        add("offsets", format!("multiples of {}", p.offset_alignment));
    }
    if !p.strided_rows {
        add("rows", "dense only".into());
    }
    facts
}

/// The time to compile a graph; with static shapes it depends on the number of elements.
pub(crate) fn compile_ns(processor: &Processor, graph: &Subgraph) -> u64 {
    let values = graph.inputs.iter().chain(&graph.outputs).map(|id| &graph.value(*id).shape);
    let elements = values.map(|s| s.max_rows().saturating_mul(s.row_len())).sum::<usize>();
    let each = if processor.static_shapes { processor.compile_ns_per_element } else { 0.0 };
    processor.compile_ns.saturating_add((elements as f64 * each).ceil() as u64)
}

/// A processor that loads the weights of another one.
pub(crate) fn loading(of: &Processor) -> Processor {
    let LoadRates { ns, gb_s } = of.load;
    Processor {
        kind: ProcessorKind::Cpu,
        bandwidth_gb_s: gb_s.unwrap_or(of.bandwidth_gb_s),
        launch_ns: ns,
        hand_over: HandOver::default(),
        own_memory: false,
        queue_waits: false,
        queue_depth: LOADER_DEPTH,
        measured: Vec::new(),
        products: ProductTraits::default(),
        ..of.clone()
    }
}

/// The graph as the kernels compile it.
fn computed(graph: &Subgraph, bucket: Option<usize>) -> Cow<'_, Subgraph> {
    bucket.map_or(Cow::Borrowed(graph), |_| Cow::Owned(with_symbols(graph)))
}

impl Device for VirtualDevice {
    fn name(&self) -> &str {
        &self.limits.device
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Virtual
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(self.board.clock().clone())
    }

    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        match verify(graph) {
            Ok(()) => self.limits.examine(graph, &self.resident),
            Err(e) => vec![Some(e.to_string()); graph.nodes.len()],
        }
    }

    /// The device's own memory starts as NaN, so that reads of unwritten values show. This touches
    /// all pages at once: a cache for a long context costs its full size from the start. With
    /// numerics off, memory is not read and no page is touched.
    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        match self.limits.space {
            SpaceId::HOST => Buffer::zeroed(bytes),
            own => Buffer::in_space(own, bytes, if self.cpu.is_some() { 0xff } else { 0 }),
        }
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        request.each(|graph| self.compile_one(graph, request.weights))
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        let refuse = |why: String| {
            let why = format!("{why} on device {}", self.limits.device);
            Err(DeviceError::Submission { task: graph.name.clone(), why })
        };
        let compiled = executable.made::<Compiled>().filter(|c| c.device == self.id);
        let Some(Compiled { code, .. }) = compiled else {
            return refuse(format!("{executable:?} was not compiled"));
        };
        let of = &code.graph.name;
        if !graph.same_code(&code.graph) {
            return refuse(format!("its weights are not of the shape of {of}, which was compiled"));
        }
        if self.caps.bakes_weights && graph.weights != code.graph.weights {
            return refuse(format!("its weights are not those that become part of {of}'s code"));
        }
        self.check_ops(graph)?;
        // Others may have been loaded since the ops were examined.
        let Processor { max_resident_bytes, max_graphs, .. } = self.limits.processor;
        let entered = self.resident.enter(graph, max_resident_bytes, max_graphs);
        let residency = entered.map_err(|why| self.unsupported(graph, 0, why))?;
        let inner = match (&self.cpu, &code.inner) {
            (Some(cpu), Some(inner)) => {
                Some(cpu.load(inner, &computed(graph, code.bucket), weights)?)
            }
            _ => None,
        };
        let (device, code, graph) = (self.id, code.clone(), graph.clone());
        let loaded = Loaded { device, code, graph, inner, _residency: residency };
        Ok(Arc::new(Weights::new(executable, loaded)))
    }

    fn loader(
        &self,
        number: usize,
        clock: &Arc<dyn Clock>,
        done: &SyncSender<Completion>,
    ) -> Result<Option<Box<dyn Queue>>, DeviceError> {
        let soc = self.board.soc();
        let processor = loading(&self.limits.processor);
        let rates = Rates::new(soc, &processor);
        // The CPU prepares what is loaded, as it compiles.
        let cpu = soc.processors.iter().position(|p| p.kind == ProcessorKind::Cpu);
        let (device, space) = (loader_name(&self.limits.device), SpaceId::HOST);
        let limits = Arc::new(Limits { device, processor, space });
        let of = (limits, rates, cpu.unwrap_or(self.place));
        self.open(of, number, clock.clone(), done.clone()).map(Some)
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        self.open((self.limits.clone(), self.rates.clone(), self.place), number, clock, done)
    }
}
