//! The GPU device.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Buffer, Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceId,
    DeviceKind, Executable, OutOfMemory, Queue, WeightSource, Weights,
};
use troika_graph::{ActivationFormat, DType, Subgraph, verify};

use crate::adapter::{Adapter, GpuSpec, choose};
use crate::cache::PipelineStore;
use crate::code::Code;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::{MOST_TOP_K, WeightFormat};
use crate::prefetch::{PipelinePrefetch, failure};
use crate::queue::{self, QUEUE_DEPTH};
use crate::weights::{LoadedGraph, load};

/// How to open a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The device's name.
    pub name: String,
    /// Which adapter.
    pub spec: GpuSpec,
    /// The most bytes of weights; `None`: what the adapter has.
    pub memory: Option<u64>,
    /// A limit of bindings below the adapter's, in bytes.
    pub binding_limit: Option<u64>,
    /// Whether values and caches lie in memory of the device's own even where the host's is the
    /// same, so that other devices need copies.
    pub own_memory: bool,
    /// Where compiled kernels are kept.
    pub kept: Option<Arc<dyn PipelineStore>>,
}

/// A GPU.
pub struct GpuDevice {
    gpu: Arc<Gpu>,
    caps: Caps,
    id: DeviceId,
    memory: Option<u64>,
}

/// Code of this device.
struct Compiled {
    device: DeviceId,
    code: Arc<Code>,
}

impl GpuDevice {
    /// Opens a GPU.
    ///
    /// # Errors
    /// The step on the way to it that failed.
    pub fn open(options: GpuOptions) -> Result<GpuDevice, GpuError> {
        let adapter = choose(&options.spec)?;
        let mut gpu = Gpu::open(&options.name, &adapter, options.kept, options.own_memory)?;
        let limit = &mut gpu.limits.max_storage_buffer_binding_size;
        *limit = options.binding_limit.unwrap_or(u64::MAX).min(*limit);
        let memory = options.memory.into_iter().chain(adapter.usable()).min();
        let caps = caps(&adapter, &gpu, memory);
        let id = DeviceId::unique();
        Ok(GpuDevice { gpu: Arc::new(gpu), caps, id, memory })
    }

    /// Bytes of the device's memory that are in use.
    pub fn held_bytes(&self) -> u64 {
        self.gpu.held()
    }

    /// Loses the device, as a driver does that was reset: all that is under way fails.
    pub fn lose(&self) {
        self.gpu.device.destroy();
    }

    fn binding_limit(&self) -> u64 {
        self.gpu.limits.max_storage_buffer_binding_size
    }

    fn code(&self, graph: &Subgraph) -> Result<Arc<Code>, DeviceError> {
        verify(graph)?;
        let code = Code::new(graph, self.binding_limit());
        let mut code = code.map_err(|(op, why)| self.refused(graph, op, why))?;
        code.matrix_units = self.gpu.matrix_units;
        Ok(Arc::new(code))
    }

    /// The refusal of an op.
    fn refused(&self, graph: &Subgraph, op: usize, why: String) -> DeviceError {
        let op = graph.nodes.get(op).map_or("none", |n| n.op.name()).into();
        let (device, graph) = (self.gpu.name.clone(), graph.name.clone());
        DeviceError::Unsupported { device, op, graph, why }
    }

    /// Code whose kernels are compiled, unless one of them failed.
    fn executable(
        &self,
        code: Arc<Code>,
        failure: Option<(usize, &DeviceError)>,
    ) -> Result<Arc<Executable>, DeviceError> {
        match failure {
            Some((op, DeviceError::System { why, .. })) if !self.gpu.is_lost() => {
                return Err(self.refused(&code.graph, op, why.clone()));
            }
            Some((_, e)) => return Err(e.clone()),
            None => {}
        }
        let rows = code.graph.max_rows();
        let scratch = code.scratch.iter().map(|each| each.saturating_mul(rows) as u64).sum();
        Ok(Arc::new(Executable::new(Compiled { device: self.id, code }, scratch)))
    }
}

fn caps(adapter: &Adapter, gpu: &Gpu, memory: Option<u64>) -> Caps {
    let mut facts = adapter.facts();
    let place = if gpu.host.is_some() { "the host's memory" } else { "memory of its own" };
    facts.push(("values and caches".into(), place.into()));
    if let Some(bytes) = memory {
        facts.push(("most bytes of weights".into(), bytes.to_string()));
    }
    // Of 256 weights of each type, in rows of 4096: rows consist of units of 16 bytes.
    let bytes = |format: WeightFormat| format.row_bytes(4096) as u64 / 16;
    let known = DType::WEIGHTS.iter().filter_map(|&d| Some((d, bytes(WeightFormat::of(d)?))));
    Caps {
        spaces: vec![gpu.space],
        numerics: format!("gpu {} {}", adapter.name(), adapter.driver()),
        max_binding_bytes: Some(gpu.limits.max_storage_buffer_binding_size),
        weight_dtypes: DType::WEIGHTS.to_vec(),
        weight_bytes: known.collect(),
        activation_formats: vec![ActivationFormat::INT8],
        max_resident_bytes: memory,
        queue_depth: QUEUE_DEPTH,
        host_tasks: false,
        // The host reads whole rows where they are.
        top_k: if gpu.host.is_some() { 0 } else { MOST_TOP_K as usize },
        offset_alignment: 4,
        facts,
        ..Caps::default()
    }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        match verify(graph) {
            Ok(()) => Code::examine(graph, self.binding_limit()).1,
            Err(e) => vec![Some(e.to_string()); graph.nodes.len()],
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.gpu.allocate(bytes)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        let codes: Vec<_> = request.graphs.iter().map(|graph| self.code(graph)).collect();
        let mut ahead = PipelinePrefetch::new(&self.gpu);
        for (i, code) in codes.iter().enumerate() {
            code.iter().for_each(|code| ahead.add(i, code));
        }
        if let Some(last) = codes.len().checked_sub(1) {
            ahead.add_top_k(last);
        }
        let (failed, done) = ahead.compile(codes.len(), request.report_progress);
        self.gpu.pipelines.keep();
        let mut made = Vec::with_capacity(codes.len());
        for (i, code) in codes.into_iter().enumerate() {
            made.push(match code {
                Ok(_) if i >= done => Err(DeviceError::Cancelled),
                Ok(code) => self.executable(code.clone(), failure(&code, &failed)),
                Err(e) => Err(e),
            });
        }
        (request.report_progress)(made.len());
        made
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        let refuse = |why: String| {
            let why = format!("{why} on device {}", self.gpu.name);
            Err(DeviceError::Submission { task: graph.name.clone(), why })
        };
        let Some(Compiled { code, .. }) =
            executable.made::<Compiled>().filter(|c| c.device == self.id)
        else {
            return refuse(format!("{executable:?} was not compiled"));
        };
        if !graph.same_code(&code.graph) {
            let of = &code.graph.name;
            return refuse(format!("its weights are not of the shape of {of}, which was compiled"));
        }
        let loaded = load(&self.gpu, code, graph, weights, self.memory)?;
        let (device, name, code) = (self.id, graph.name.clone(), code.clone());
        let loaded = LoadedGraph { device, name, code, weights: loaded };
        Ok(Arc::new(Weights::new(executable, loaded)))
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        queue::start(&self.gpu, self.id, number, clock, done)
    }
}
