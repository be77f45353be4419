//! Core ML as a device. Its graphs are functions of packages that are made when a model is opened; all
//! that are compiled together share one package, so that weights are in it once.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use troika_device::{
    Caps, Clock, CodeWeights, CompileRequest, CompileResults, Completion, Device, DeviceError,
    DeviceKind, Executable, Queue, RealClock, WeightSource, Weights,
};
use troika_graph::{ActivationFormat, DType, Op, Subgraph, verify};
use troika_trace::Tracer;

use crate::cache::{GraphCache, GraphKey, PackageFolder};
use crate::cached::{self, CachedModel};
use crate::device::{Code, ROW_BUCKETS, loaded};
use crate::emit::{EmitOptions, Emitted, input_name, is_summed, refusal, rows_of, written};
use crate::error::NpuError;
use crate::loaded::GraphCode;
use crate::mil::{
    CoreMlRuntime, MOST_GROUP_BYTES, MilWriter, PackageError, PackageFiles, PackageWeights,
};
use crate::profile::{Lane, Recorder, SessionRecord};
use crate::provider::Provider;
use crate::queue::{self, QUEUE_DEPTH};
use crate::rewrites::{Rewrite, Rewrites};
use crate::session::{AnySession, CompiledModel, OpenSession};

/// How to open Core ML.
pub struct CoreMlDeviceOptions {
    /// The device's name.
    pub name: String,
    /// What opens packages.
    pub runtime: Arc<dyn CoreMlRuntime>,
    /// Keeps packages with their compiled forms for the next start.
    pub cache: Option<Arc<dyn GraphCache>>,
    /// The numbers of rows to compile for; none: the usual ones.
    pub row_buckets: Vec<usize>,
    /// How graphs are written.
    pub rewrites: Rewrites,
    /// Records the host's work around runs.
    pub tracer: Tracer,
    /// The clock of what is recorded.
    pub clock: RealClock,
}

/// A device that runs functions of Core ML packages.
pub struct CoreMlDevice {
    name: String,
    runtime: Arc<dyn CoreMlRuntime>,
    cache: Option<Arc<dyn GraphCache>>,
    rewrites: Rewrites,
    caps: Caps,
    recorder: Arc<Recorder>,
}

/// The models of a graph on their way: for each number of positions, the name of its function.
type Models = Vec<(usize, String, Emitted<()>)>;

impl CoreMlDevice {
    /// Opens the device.
    ///
    /// # Errors
    /// Its profiler does not start.
    pub fn open(options: CoreMlDeviceOptions) -> Result<CoreMlDevice, NpuError> {
        let CoreMlDeviceOptions { name, runtime, cache, mut row_buckets, rewrites, tracer, clock } =
            options;
        if row_buckets.is_empty() {
            row_buckets = ROW_BUCKETS.to_vec();
        }
        let recorder = Recorder::open(&name, Provider::CoreMl, tracer, clock, None)?;
        let rows: Vec<String> = row_buckets.iter().map(usize::to_string).collect();
        let caps = Caps {
            row_buckets,
            static_shapes: true,
            numerics: "coreml-npu-f16".into(),
            weight_dtypes: DType::WEIGHTS.to_vec(),
            activation_formats: vec![ActivationFormat::F16, ActivationFormat::F16Int4],
            queue_depth: QUEUE_DEPTH,
            host_tasks: false,
            bakes_weights: true,
            max_graph_bytes: Some(MOST_GROUP_BYTES),
            code_weights: Some(CodeWeights {
                float_bytes: size_of::<half::f16>(),
                keeps_blocks: false,
                per_shape: false,
                graph_bytes: 0,
            }),
            facts: vec![
                ("provider".into(), "Core ML".into()),
                ("static shapes".into(), format!("rows {}", rows.join(", "))),
            ],
            ..Caps::default()
        };
        Ok(CoreMlDevice { name, runtime, cache, rewrites, caps, recorder: Arc::new(recorder) })
    }

    fn unsupported(&self, graph: &Subgraph, op: &str, why: String) -> DeviceError {
        let (device, op, graph) = (self.name.clone(), op.into(), graph.name.clone());
        DeviceError::Unsupported { device, op, graph, why }
    }

    /// Writes a graph's functions into a package.
    fn write(
        &self,
        graph: &Subgraph,
        weights: &dyn WeightSource,
        files: &mut PackageFiles,
        functions: &mut usize,
    ) -> Result<Models, DeviceError> {
        verify(graph)?;
        for node in &graph.nodes {
            if let Some(why) = refusal(&node.op, graph, Provider::CoreMl) {
                return Err(self.unsupported(graph, node.op.name(), why.into()));
            }
        }
        let first = graph.nodes.first().map_or("none", |n| n.op.name());
        rows_of(graph).map_err(|why| self.unsupported(graph, first, why))?;
        let all = match graph.states.is_empty() {
            true => vec![0],
            false => cached::positions(graph).map_err(|why| self.unsupported(graph, first, why))?,
        };
        let int4 = |n: &troika_graph::Node| match &n.op {
            Op::Linear { activations, .. } => *activations == ActivationFormat::F16Int4,
            _ => false,
        };
        let stored = match graph.nodes.iter().any(int4) {
            true => PackageWeights::Int4(None),
            false => PackageWeights::F16,
        };
        let inputs = graph.inputs.iter().enumerate().filter(|(_, id)| is_summed(graph, **id));
        let inputs = self.rewrites.has(Rewrite::ScaleResidual).then_some(inputs);
        let divided: Option<HashSet<_>> =
            inputs.map(|all| all.map(|(i, _)| input_name(i)).collect());
        let mut models = Vec::new();
        for positions in all {
            let (provider, rewrites) = (Provider::CoreMl, &self.rewrites);
            let options = EmitOptions { provider, rewrites, positions, any_rows: false };
            let mut writer = MilWriter::new(&mut files.blobs, stored);
            writer.divided = divided.clone();
            let made = written(graph, weights, options, writer)?;
            let Emitted { files: writer, inputs, outputs, of, rotations, bound, rows, any_rows } =
                made;
            let (function, results) = writer.finish();
            let name = format!("graph_{functions}");
            *functions += 1;
            files.add(&name, function, &results);
            let emitted =
                Emitted { files: (), inputs, outputs, of, rotations, bound, rows, any_rows };
            models.push((positions, name, emitted));
        }
        Ok(models)
    }

    /// A package's folder in the cache, if that keeps it.
    fn kept(&self, made: TempDir, hash: blake3::Hash) -> PackageFolder {
        let key = GraphKey(*hash.as_bytes());
        match self.cache.as_ref().and_then(|cache| cache.keep_package(&key, made.path())) {
            Some(path) => PackageFolder { path, made: None },
            None => PackageFolder { path: made.path().into(), made: Some(made) },
        }
    }

    /// Opens a graph's functions.
    fn opened(
        &self,
        graph: &Subgraph,
        models: Models,
        folder: &Arc<PackageFolder>,
    ) -> Result<Arc<Executable>, DeviceError> {
        let (mut opened, mut of) = (Vec::new(), Vec::new());
        for (positions, name, emitted) in models {
            let start = self.recorder.now();
            let function = self.runtime.open(&folder.path.join(PACKAGE), &name);
            let function =
                function.map_err(|why| self.unsupported(graph, DeviceError::ALL_OPS, why))?;
            let span = self.recorder.span(Lane::Host, "load", &graph.name, start);
            let record = SessionRecord::new(&self.recorder, &graph.name, None, span);
            let session = AnySession::CoreMl { function, _package: folder.clone() };
            let session = Arc::new(Mutex::new(OpenSession { session, record }));
            opened.push((positions, CompiledModel::new(session, &emitted)));
            of = emitted.of;
        }
        let code = if graph.states.is_empty() {
            let (_, model) = opened.pop().ok_or_else(|| {
                self.unsupported(graph, DeviceError::ALL_OPS, "it has no function".into())
            })?;
            GraphCode::Plain(model)
        } else {
            let rows = graph.max_rows();
            GraphCode::Cached(CachedModel::new(graph, rows, of, opened))
        };
        let (device, graph) = (self.name.clone(), graph.clone());
        Ok(Arc::new(Executable::new(Code { device, graph, made: Arc::new(code) }, 0)))
    }
}

/// The name of a package in its folder.
const PACKAGE: &str = "graphs.mlpackage";

impl Device for CoreMlDevice {
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
        let wrong = verify(graph).err().map(|e| e.to_string());
        let refused = |op: &Op| refusal(op, graph, Provider::CoreMl).map(String::from);
        graph.nodes.iter().map(|n| wrong.clone().or_else(|| refused(&n.op))).collect()
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        let failed = |why: String| {
            let device = self.name.clone();
            let error =
                |_: &_| Err(DeviceError::System { device: device.clone(), why: why.clone() });
            request.graphs.iter().map(error).collect()
        };
        let mut begun = tempfile::Builder::new();
        begun.prefix(".coreml-");
        let folder = match self.cache.as_ref().and_then(|cache| cache.packages()) {
            Some(packages) => begun.tempdir_in(packages),
            None => begun.tempdir(),
        };
        let folder = match folder {
            Ok(folder) => folder,
            Err(e) => return failed(format!("there is no folder for a package: {e}")),
        };
        let mut files = match PackageFiles::create(&folder.path().join(PACKAGE)) {
            Ok(files) => files,
            Err(e) => return failed(e.to_string()),
        };
        let (mut functions, mut on) = (0, (request.report_progress)(0));
        let mut models = Vec::new();
        for (i, graph) in request.graphs.iter().enumerate() {
            if !on {
                // Nothing of it is compiled or kept.
                return request.graphs.iter().map(|_| Err(DeviceError::Cancelled)).collect();
            }
            models.push(self.write(graph, request.weights, &mut files, &mut functions));
            on = (request.report_progress)(i + 1);
        }
        let folder = match files.finish(&BTreeMap::new()) {
            Ok((_, hash)) => Arc::new(self.kept(folder, hash)),
            Err(e) => return failed(PackageError::to_string(&e)),
        };
        let graphs = request.graphs.iter().zip(models);
        graphs.map(|(graph, models)| self.opened(graph, models?, &folder)).collect()
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        loaded(&self.name, executable, graph)
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
