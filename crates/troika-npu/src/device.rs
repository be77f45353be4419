//! The NPU device.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceKind,
    Executable, Queue, SpaceId, WeightSource, Weights,
};
use troika_graph::{DType, Subgraph, verify};

use crate::emit::{emit, refusal, rows_of};
use crate::error::NpuError;
use crate::provider::NpuSpec;
use crate::queue::{self, QUEUE_DEPTH};
use crate::runtime::{Chosen, Runtime, RuntimePlaces};
use crate::session::CompiledModel;

/// The numbers of rows to compile for: padding up to the next is cheaper than one row past it.
const ROW_BUCKETS: [usize; 7] = [1, 16, 32, 64, 128, 256, 512];

/// How to open an NPU.
#[derive(Clone, Debug)]
pub struct NpuOptions {
    /// The device's name.
    pub name: String,
    /// Which one.
    pub spec: NpuSpec,
    /// Where to look for ONNX Runtime.
    pub places: RuntimePlaces,
    /// Threads, where the CPU stands in for an NPU.
    pub threads: usize,
}

/// A device that runs graphs of fixed shape, compiled by a provider of ONNX Runtime.
pub struct NpuDevice {
    name: String,
    runtime: Arc<Runtime>,
    chosen: Chosen,
    threads: usize,
    caps: Caps,
}

/// A compiled graph with its weights.
pub(crate) struct LoadedModel {
    /// The name of the device that compiled it.
    pub device: String,
    /// The graph's name.
    pub graph: String,
    pub model: Arc<CompiledModel>,
}

/// Code: the weights are part of it.
struct Code {
    device: String,
    graph: Subgraph,
    model: Arc<CompiledModel>,
}

impl NpuDevice {
    /// Opens an NPU.
    ///
    /// # Errors
    /// The step on the way to it that failed.
    pub fn open(options: NpuOptions) -> Result<NpuDevice, NpuError> {
        let runtime = Runtime::load(&options.places)?;
        let chosen = runtime.choose(options.spec)?;
        let NpuOptions { name, threads, .. } = options;
        let caps = caps(&runtime, chosen);
        Ok(NpuDevice { name, runtime, chosen, threads: threads.max(1), caps })
    }

    fn unsupported(&self, graph: &Subgraph, op: usize, why: String) -> DeviceError {
        DeviceError::Unsupported {
            device: self.name.clone(),
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
        verify(graph)?;
        let refused = graph.nodes.iter().map(|n| refusal(&n.op, self.chosen.provider)).enumerate();
        if let Some((op, why)) = refused.filter_map(|(op, why)| Some((op, why?))).next() {
            return Err(self.unsupported(graph, op, why.into()));
        }
        rows_of(graph).map_err(|why| {
            let why = format!("it takes static shapes only, and {why}: bind rows to a bucket");
            self.unsupported(graph, 0, why)
        })?;
        let emitted = emit(graph, weights)?;
        let session = self
            .runtime
            .compile(self.chosen, self.threads, &emitted.bytes)
            .map_err(|why| self.unsupported(graph, 0, why))?;
        let model = Arc::new(CompiledModel::new(session, emitted));
        let code = Code { device: self.name.clone(), graph: graph.clone(), model };
        Ok(Arc::new(Executable::new(code, 0)))
    }
}

fn caps(runtime: &Runtime, chosen: Chosen) -> Caps {
    let Chosen { provider, hardware, .. } = chosen;
    Caps {
        static_shapes: true,
        row_buckets: ROW_BUCKETS.to_vec(),
        spaces: vec![SpaceId::HOST],
        numerics: format!("{}-{}-f32", provider.name(), hardware.name()),
        max_binding_bytes: None,
        weight_dtypes: DType::WEIGHTS.to_vec(),
        activation_formats: Vec::new(),
        // What a protobuf file holds at most.
        max_graph_bytes: Some(i32::MAX as u64),
        max_resident_bytes: None,
        queue_depth: QUEUE_DEPTH,
        queue_waits: true,
        host_tasks: false,
        strided_rows: true,
        offset_alignment: 1,
        bakes_weights: true,
        facts: vec![
            ("provider".into(), format!("{} on {}", provider.ep(), hardware.name())),
            ("runtime".into(), runtime.library.display().to_string()),
            (
                "static shapes".into(),
                format!("rows {}", ROW_BUCKETS.map(|n| n.to_string()).join(", ")),
            ),
        ],
    }
}

impl Device for NpuDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Npu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        match verify(graph) {
            Ok(()) => graph
                .nodes
                .iter()
                .map(|n| refusal(&n.op, self.chosen.provider).map(String::from))
                .collect(),
            Err(e) => vec![Some(e.to_string()); graph.nodes.len()],
        }
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        request.each(|graph| self.compile_one(graph, request.weights))
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        let refuse = |why: String| DeviceError::Submission { task: graph.name.clone(), why };
        let code = executable.made::<Code>().filter(|code| code.device == self.name);
        let code = code.ok_or_else(|| {
            refuse(format!("{executable:?} was not compiled on device {}", self.name))
        })?;
        if !graph.same_code(&code.graph) || graph.weights != code.graph.weights {
            let of = &code.graph.name;
            return Err(refuse(format!("its weights are not those in the code of {of}")));
        }
        let (device, graph, model) = (self.name.clone(), graph.name.clone(), code.model.clone());
        Ok(Arc::new(Weights::new(executable, LoadedModel { device, graph, model })))
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        queue::start(&self.name, number, clock, done)
    }
}
