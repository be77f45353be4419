//! The NPU device.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceKind,
    Executable, Queue, RealClock, WeightSource, Weights,
};
use troika_graph::{ActivationFormat, DType, Op, ScaleOrigin, Subgraph, verify};
use troika_trace::Tracer;

use crate::cache::{GraphCache, GraphKey};
use crate::cached::{self, CachedModel};
use crate::emit::{EmitOptions, Emitted, emit, refusal, rows_of};
use crate::error::NpuError;
use crate::helper::{Helper, HelperCommand, HelperError};
use crate::loaded::{GraphCode, LoadedModel};
use crate::profile::{Lane, Recorder, SessionRecord};
use crate::profiling::Profiling;
use crate::provider::{NpuSpec, Provider};
use crate::queue::{self, QUEUE_DEPTH};
use crate::rewrites::Rewrites;
use crate::runtime::{Chosen, Runtime, RuntimePlaces};
use crate::session::CompiledModel;

/// The numbers of rows to compile for: padding up to the next is cheaper than one row past it.
const ROW_BUCKETS: [usize; 7] = [1, 16, 32, 64, 128, 256, 512];

/// The least signal-to-noise ratio of a compiled graph. Halves inside of it give 55 and more.
const LEAST_SNR_DB: f64 = 40.0;
/// The same of a compiler that computes with halves.
const LEAST_OF_HALVES_DB: f64 = 30.0;
/// Results below are no rounded ones: they are of something else.
const WRONG_SNR_DB: f64 = 20.0;

/// How to open an NPU.
#[derive(Clone, Debug)]
pub struct NpuOptions {
    /// The device's name.
    pub name: String,
    /// Which one.
    pub spec: NpuSpec,
    /// Where to look for ONNX Runtime.
    pub places: RuntimePlaces,
    /// The numbers of rows to compile for; none: the usual ones.
    pub row_buckets: Vec<usize>,
    /// Threads, where the CPU stands in for an NPU.
    pub threads: usize,
    /// How to compile in another process; `None`: in this one.
    pub helper: Option<HelperCommand>,
    /// Where compiled graphs are kept, which takes a helper.
    pub cache: Option<Arc<dyn GraphCache>>,
    /// How graphs are written.
    pub rewrites: Rewrites,
    /// Records the host's work around runs, and what profilers report, when a graph's code is
    /// dropped.
    pub tracer: Tracer,
    /// The clock of what is recorded, which is the queues' clock.
    pub clock: RealClock,
    /// How to profile it.
    pub profiling: Option<Profiling>,
}

/// A device that runs graphs of fixed shape, compiled by a provider of ONNX Runtime.
pub struct NpuDevice {
    name: String,
    runtime: Arc<Runtime>,
    chosen: Chosen,
    threads: usize,
    helper: Option<HelperCommand>,
    cache: Option<Arc<dyn GraphCache>>,
    rewrites: Rewrites,
    caps: Caps,
    recorder: Arc<Recorder>,
}

/// Code: the weights are part of it.
struct Code {
    device: String,
    graph: Subgraph,
    made: Arc<GraphCode>,
}

impl NpuDevice {
    /// Opens an NPU.
    ///
    /// # Errors
    /// The step on the way to it that failed.
    pub fn open(options: NpuOptions) -> Result<NpuDevice, NpuError> {
        let runtime = Runtime::load(&options.places)?;
        let chosen = runtime.choose(options.spec)?;
        let NpuOptions {
            name, threads, helper, cache, rewrites, mut row_buckets, profiling, ..
        } = options;
        let (tracer, clock) = (options.tracer, options.clock);
        let recorder = Recorder::open(&name, chosen.provider, tracer, clock, profiling)?;
        if row_buckets.is_empty() {
            row_buckets = ROW_BUCKETS.to_vec();
        }
        let caps = caps(&runtime, chosen, row_buckets);
        let (threads, recorder) = (threads.max(1), Arc::new(recorder));
        Ok(NpuDevice { name, runtime, chosen, threads, helper, cache, rewrites, caps, recorder })
    }

    fn unsupported(&self, graph: &Subgraph, op: usize, why: String) -> DeviceError {
        DeviceError::Unsupported {
            device: self.name.clone(),
            op: graph.nodes.get(op).map_or("none", |n| n.op.name()).into(),
            graph: graph.name.clone(),
            why,
        }
    }

    /// Runs a model once beside the reference: compilers exist whose graphs compute something else.
    ///
    /// # Errors
    /// How its results differ.
    fn probe(&self, model: &CompiledModel, emitted: &Emitted) -> Result<(), String> {
        let bytes = &emitted.bytes;
        let reference = self.runtime.compile(Chosen::REFERENCE, self.threads, bytes, None)?;
        let reference = CompiledModel::new(reference, emitted, SessionRecord::default());
        let snr = model.snr_db(&reference)?;
        // What this compiler has for floats are halves, also where squares are summed.
        let halves = self.chosen.provider == Provider::Qnn;
        let least = if halves { LEAST_OF_HALVES_DB } else { LEAST_SNR_DB };
        // Not a number where results are.
        if snr >= least {
            return Ok(());
        }
        let how = if snr >= WRONG_SNR_DB { "coarse" } else { "wrong" };
        Err(format!(
            "its results are {how}: {snr:.0} dB beside the reference, where {least} are asked"
        ))
    }

    /// The number of rows of a graph. None of its ops may be refused.
    fn rows_of(&self, graph: &Subgraph) -> Result<usize, DeviceError> {
        verify(graph)?;
        let refused = graph.nodes.iter().map(|n| refusal(&n.op, self.chosen.provider)).enumerate();
        if let Some((op, why)) = refused.filter_map(|(op, why)| Some((op, why?))).next() {
            return Err(self.unsupported(graph, op, why.into()));
        }
        rows_of(graph).map_err(|why| {
            let why = format!("it takes static shapes only, and {why}: bind rows to a bucket");
            self.unsupported(graph, 0, why)
        })
    }

    fn compile_one(
        &self,
        graph: &Subgraph,
        weights: &dyn WeightSource,
        helper: &mut Option<Helper<'_>>,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<Arc<Executable>, DeviceError> {
        let rows = self.rows_of(graph)?;
        // If the graph has an attention, that is the op which the compiler refuses: the host
        // appends to the cache.
        let attention = graph.nodes.iter().position(|n| matches!(n.op, Op::Attention(_)));
        let refused = |why| self.unsupported(graph, attention.unwrap_or(0), why);
        let mut model = |positions| {
            let (provider, rewrites) = (self.chosen.provider, &self.rewrites);
            let emitted = emit(graph, weights, EmitOptions { provider, rewrites, positions })?;
            // What is kept was probed.
            let model = match self.kept(&graph.name, &emitted) {
                Some(model) => model,
                None => self.made(&graph.name, &emitted, helper, may_continue)?.map_err(refused)?,
            };
            Ok::<_, DeviceError>((emitted.of, model))
        };
        let code = if graph.states.is_empty() {
            GraphCode::Plain(model(0)?.1)
        } else {
            let (mut models, mut of) = (Vec::new(), Vec::new());
            for positions in cached::positions(graph).map_err(refused)? {
                let (inputs, model) = model(positions)?;
                of = inputs;
                models.push((positions, model));
            }
            GraphCode::Cached(CachedModel::new(graph, rows, of, models).map_err(refused)?)
        };
        let code = Arc::new(code);
        let code = Code { device: self.name.clone(), graph: graph.clone(), made: code };
        Ok(Arc::new(Executable::new(code, 0)))
    }

    /// What an earlier start compiled.
    fn kept(&self, name: &str, emitted: &Emitted) -> Option<CompiledModel> {
        let start = self.recorder.now();
        let context = self.cache.as_ref()?.get(&self.key(emitted))?;
        self.recorder.span(Lane::Host, "read kept graph", name, start);
        // What another version wrote is compiled again.
        self.opened(name, "load", &context, emitted).ok()
    }

    /// A session of a model, or of its compiled form.
    fn opened(
        &self,
        name: &str,
        what: &'static str,
        bytes: &[u8],
        emitted: &Emitted,
    ) -> Result<CompiledModel, String> {
        let (recorder, start) = (&self.recorder, self.recorder.now());
        let file = recorder.file(name);
        let session = self.runtime.compile(self.chosen, self.threads, bytes, file.as_ref())?;
        let opened = recorder.span(Lane::Host, what, name, start);
        let record = SessionRecord::new(recorder, name, file, opened);
        Ok(CompiledModel::new(session, emitted, record))
    }

    /// The compiled form of a model, by a helper.
    fn compiled(
        &self,
        name: &str,
        emitted: &Emitted,
        helper: &mut Helper<'_>,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, HelperError> {
        let (recorder, start) = (&self.recorder, self.recorder.now());
        // Qualcomm's compiler is profiled where it works.
        let is_profiled = self.chosen.provider == Provider::Qnn;
        let file = is_profiled.then(|| recorder.file(name)).flatten();
        let context = helper.compile(&emitted.bytes, file.as_ref(), may_continue)?;
        let compiled = recorder.span(Lane::Host, "compile", name, start);
        file.iter().for_each(|file| recorder.read(name, file, compiled, &[]));
        Ok(context)
    }

    fn key(&self, emitted: &Emitted) -> GraphKey {
        let level = self.recorder.level();
        GraphKey::new(&self.runtime, self.chosen, self.threads, level, &emitted.bytes)
    }

    /// Compiles a model, in another process if there is a helper, and keeps the result if it
    /// computes what it should.
    fn made(
        &self,
        name: &str,
        emitted: &Emitted,
        helper: &mut Option<Helper<'_>>,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<Result<CompiledModel, String>, DeviceError> {
        let compiled = helper.as_mut().map(|h| self.compiled(name, emitted, h, may_continue));
        let context = match compiled {
            None => None,
            Some(Ok(context)) => Some(context),
            Some(Err(HelperError::Stopped)) => return Err(DeviceError::Cancelled),
            Some(Err(HelperError::Refused(why))) => return Ok(Err(why)),
        };
        let opened = match &context {
            Some(context) => self.opened(name, "load", context, emitted),
            None => self.opened(name, "compile", &emitted.bytes, emitted),
        };
        let model = opened.and_then(|model| {
            if self.chosen != Chosen::REFERENCE {
                let start = self.recorder.now();
                self.probe(&model, emitted)?;
                self.recorder.span(Lane::Host, "probe", name, start);
            }
            Ok(model)
        });
        if let (Ok(_), Some(context), Some(cache)) = (&model, &context, &self.cache) {
            cache.put(&self.key(emitted), context);
        }
        Ok(model)
    }
}

/// What products can take: halves, 8 and 16 bits with scales of a calibration, or 8 with one for
/// each row.
fn formats() -> Vec<ActivationFormat> {
    use ScaleOrigin::{Clipped, Smoothed, Static};
    let of = |bits| [Static, Clipped, Smoothed].map(|s| ActivationFormat::of_tensor(bits, s));
    let others = [ActivationFormat::by_row(8), ActivationFormat::F16];
    of(8).into_iter().chain(of(16)).chain(others).collect()
}

fn caps(runtime: &Runtime, chosen: Chosen, row_buckets: Vec<usize>) -> Caps {
    let Chosen { provider, hardware, .. } = chosen;
    let rows: Vec<String> = row_buckets.iter().map(usize::to_string).collect();
    Caps {
        row_buckets,
        static_shapes: true,
        numerics: format!("{}-{}-f32", provider.name(), hardware.name()),
        weight_dtypes: DType::WEIGHTS.to_vec(),
        activation_formats: formats(),
        // What a protobuf file holds at most.
        max_graph_bytes: Some(i32::MAX as u64),
        queue_depth: QUEUE_DEPTH,
        host_tasks: false,
        bakes_weights: true,
        // Floats are f32.
        weights_per_shape: Some(size_of::<f32>()),
        facts: vec![
            ("provider".into(), format!("{} on {}", provider.ep(), hardware.name())),
            ("runtime".into(), runtime.library.display().to_string()),
            ("static shapes".into(), format!("rows {}", rows.join(", "))),
        ],
        ..Caps::default()
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
        // The others are quick, and have no compiled form to pass on.
        let passes_on = self.chosen.is_plugin && self.chosen != Chosen::REFERENCE;
        let command = self.helper.as_ref().filter(|_| passes_on);
        let mut helper = command
            .map(|command| Helper::new(command, &self.runtime.library, self.chosen, self.threads));
        let mut on = (request.report_progress)(0);
        let compiled = request.graphs.iter().enumerate().map(|(i, graph)| {
            if !on {
                return Err(DeviceError::Cancelled);
            }
            let may_continue = || (request.report_progress)(i);
            let code = self.compile_one(graph, request.weights, &mut helper, &may_continue);
            on = (request.report_progress)(i + 1);
            code
        });
        compiled.collect()
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
        let (device, graph, code) = (self.name.clone(), graph.name.clone(), code.made.clone());
        Ok(Arc::new(Weights::new(executable, LoadedModel { device, graph, code })))
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
