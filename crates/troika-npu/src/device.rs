//! The NPU device.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use troika_check::snr_db;
use troika_device::{
    Caps, Clock, CodeWeights, CompileRequest, CompileResults, Completion, Device, DeviceError,
    DeviceKind, Executable, Queue, RealClock, WeightSource, Weights, lock,
};
use troika_graph::partition::cut_at;
use troika_graph::{ActivationFormat, DType, Node, Op, ProductForm, Subgraph, verify};
use troika_trace::Tracer;

use crate::cache::{GraphCache, GraphKey};
use crate::cached::{self, CachedModel};
use crate::emit::{EmitOptions, Emitted, emit, refusal, rows_of};
use crate::error::NpuError;
use crate::helper::{Helper, HelperCommand, HelperError};
use crate::loaded::{GraphCode, LoadedModel};
use crate::profile::{Lane, Recorder, SessionRecord};
use crate::profiling::Profiling;
use crate::provider::{Hardware, NpuSpec, Provider};
use crate::queue::{self, QUEUE_DEPTH};
use crate::rewrites::Rewrites;
use crate::runtime::{Chosen, MadeFrom, Runtime, RuntimePlaces};
use crate::session::{CompiledModel, SharedSession};

/// The numbers of rows to compile for: padding up to the next is cheaper than one row past it.
pub(crate) const ROW_BUCKETS: [usize; 7] = [1, 16, 32, 64, 128, 256, 512];

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
    options: NpuOptions,
    runtime: Arc<Runtime>,
    chosen: Chosen,
    caps: Caps,
    recorder: Arc<Recorder>,
    /// Sessions of the call to compile that is under way, and of one before it that refused a graph:
    /// the next one asks for most of them again. Without a next one they stay.
    made: Mutex<HashMap<GraphKey, SharedSession>>,
    /// Models that were found to compute what they should: experts are compiled again and again.
    probed: Mutex<HashSet<GraphKey>>,
}

/// Code: the weights are part of it.
pub(crate) struct Code {
    pub device: String,
    pub graph: Subgraph,
    pub made: Arc<GraphCode>,
}

impl NpuDevice {
    /// Opens an NPU.
    ///
    /// # Errors
    /// The step on the way to it that failed.
    pub fn open(mut options: NpuOptions) -> Result<NpuDevice, NpuError> {
        let runtime = Runtime::load(&options.places)?;
        let chosen = runtime.choose(options.spec)?;
        let (tracer, profiling) = (options.tracer.clone(), options.profiling.clone());
        let recorder =
            Recorder::open(&options.name, chosen.provider, tracer, options.clock, profiling)?;
        if options.row_buckets.is_empty() {
            options.row_buckets = ROW_BUCKETS.to_vec();
        }
        options.threads = options.threads.max(1);
        let rewrites = &options.rewrites;
        // Only compilers for CPUs take graphs of any number of rows, and some rewrites fix it.
        let any_rows = chosen.hardware == Hardware::Cpu && *rewrites == Rewrites::default();
        let code_weights = CodeWeights {
            // Floats are f32.
            float_bytes: size_of::<f32>(),
            keeps_blocks: chosen.provider.keeps_blocks() && !rewrites.take_floats(),
            per_shape: !any_rows,
            // At its peak, a process took 6.5 MiB beside weights for each of 73 graphs of
            // Qwen2.5-0.5B, and 8.4 for each of 56 of Gemma-3-270M (OpenVINO's device for CPUs).
            graph_bytes: if chosen.hardware == Hardware::Cpu { 7 << 20 } else { 0 },
        };
        let caps = caps(&runtime, chosen, options.row_buckets.clone(), code_weights);
        let (recorder, made, probed) = (Arc::new(recorder), Mutex::default(), Mutex::default());
        Ok(NpuDevice { options, runtime, chosen, caps, recorder, made, probed })
    }

    fn unsupported(&self, graph: &Subgraph, op: &str, why: String) -> DeviceError {
        let (device, op, graph) = (self.options.name.clone(), op.into(), graph.name.clone());
        DeviceError::Unsupported { device, op, graph, why }
    }

    /// Runs a model once, for its profile.
    fn try_profiled(&self, model: &CompiledModel) -> Result<(), String> {
        self.recorder.level().map_or(Ok(()), |_| model.probed().map(drop))
    }

    /// Runs a model once beside the reference: compilers exist whose graphs compute something else.
    ///
    /// # Errors
    /// How its results differ.
    fn probe(&self, model: &CompiledModel, emitted: &Emitted) -> Result<(), String> {
        if self.chosen == Chosen::REFERENCE {
            return self.try_profiled(model);
        }
        let results = model.probed()?;
        // The reference maps the same pages.
        model.release();
        let session = self.runtime.compile_unfused(self.options.threads, &emitted.files.path())?;
        let reference = CompiledModel::onnx(session, SessionRecord::default(), emitted);
        let snr = snr_db(&results, &reference.probed()?);
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
        let refused = |n: &Node| Some((n.op.name(), refusal(&n.op, graph, self.chosen.provider)?));
        if let Some((op, why)) = graph.nodes.iter().find_map(refused) {
            return Err(self.unsupported(graph, op, why.into()));
        }
        rows_of(graph).map_err(|why| {
            let why = format!("it takes static shapes only, and {why}: bind rows to a bucket");
            self.unsupported(graph, graph.nodes.first().map_or("none", |n| n.op.name()), why)
        })
    }

    fn compile_one(
        &self,
        graph: &Subgraph,
        compiling: &mut Compiling<'_, '_>,
    ) -> Result<Arc<Executable>, DeviceError> {
        let rows = self.rows_of(graph)?;
        // The host appends to the cache.
        let of_cache = |n: &&Node| matches!(n.op, Op::Attention(_) | Op::KvAppend(_));
        let of_cache = graph.nodes.iter().find(of_cache).map_or("none", |n| n.op.name());
        let unfit = |why| self.unsupported(graph, of_cache, why);
        let code = if graph.states.is_empty() {
            GraphCode::Plain(self.model(graph, 0, compiling)?.1)
        } else {
            let (mut models, mut of) = (Vec::new(), Vec::new());
            for positions in cached::positions(graph).map_err(unfit)? {
                let (inputs, model) = self.model(graph, positions, compiling)?;
                of = inputs;
                models.push((positions, model));
            }
            GraphCode::Cached(CachedModel::new(graph, rows, of, models))
        };
        let (device, graph) = (self.options.name.clone(), graph.clone());
        Ok(Arc::new(Executable::new(Code { device, graph, made: Arc::new(code) }, 0)))
    }

    /// The compiled model of a graph, with the graph's inputs that it takes.
    fn model(
        &self,
        graph: &Subgraph,
        positions: usize,
        compiling: &mut Compiling<'_, '_>,
    ) -> Result<(Vec<usize>, CompiledModel), DeviceError> {
        let (provider, rewrites) = (self.chosen.provider, &self.options.rewrites);
        let any_rows = self.takes_any_rows(graph);
        let options = EmitOptions { provider, rewrites, positions, any_rows };
        let emitted = emit(graph, compiling.weights, options)?;
        let (key, name) = (self.key(&emitted), &graph.name);
        let known = lock(&self.made).get(&key).cloned();
        let known = known.map(|session| CompiledModel::new(session, &emitted));
        // What is known or kept was probed.
        let made = match known.or_else(|| self.kept(name, &emitted, compiling)) {
            Some(model) => Ok(model),
            None => self.made(name, &emitted, compiling)?,
        };
        let model = made.map_err(|why| self.refused(graph, why, compiling))?;
        lock(&self.made).insert(key, model.session.clone());
        emitted.files.delete();
        model.release();
        Ok((emitted.of, model))
    }

    /// Whether a graph is compiled for any number of rows, so that its weights are held once. Groups
    /// of rows need to know it: pieces of a chunk may be shorter than a group.
    fn takes_any_rows(&self, graph: &Subgraph) -> bool {
        let grouped = |n: &Node| matches!(n.op.form(), Some(ProductForm::Groups(_)));
        let fixed = |n: &Node| matches!(n.op, Op::ExpertGroup(_)) || grouped(n);
        let shares = self.caps.code_weights.is_some_and(|code| !code.per_shape);
        shares && graph.states.is_empty() && !graph.nodes.iter().any(fixed)
    }

    /// The error for a graph that a compiler refuses: it names the first op that is also refused
    /// alone, or all if each is taken alone.
    fn refused(
        &self,
        graph: &Subgraph,
        why: String,
        compiling: &mut Compiling<'_, '_>,
    ) -> DeviceError {
        let computed = |n: &&Node| !matches!(n.op, Op::KvAppend(_));
        let ops: Vec<&str> = graph.nodes.iter().filter(computed).map(|n| n.op.name()).collect();
        if let [only] = ops[..] {
            return self.unsupported(graph, only, why);
        }
        let each: Vec<usize> = (0..graph.nodes.len().saturating_sub(1)).collect();
        let mut pieces = cut_at(graph, &each).into_iter().flatten();
        let alone = pieces.find_map(|piece| self.compile_one(&piece.graph, compiling).err());
        alone.unwrap_or_else(|| self.unsupported(graph, DeviceError::ALL_OPS, why))
    }

    /// What an earlier start compiled.
    fn kept(
        &self,
        name: &str,
        emitted: &Emitted,
        compiling: &mut Compiling<'_, '_>,
    ) -> Option<CompiledModel> {
        let start = self.recorder.now();
        let context = self.options.cache.as_ref()?.get(&self.key(emitted))?;
        self.recorder.span(Lane::Host, "read kept graph", name, start);
        // What another version wrote is compiled again.
        let model = self.opened(name, "load", MadeFrom::Compiled(&context), emitted).ok()?;
        self.profile_parts(name, &context, emitted, compiling);
        self.try_profiled(&model).ok().map(|()| model)
    }

    /// Has QNN's own interface profile a compiled form, if it is to be asked.
    fn profile_parts(
        &self,
        name: &str,
        context: &[u8],
        emitted: &Emitted,
        compiling: &mut Compiling<'_, '_>,
    ) {
        let (recorder, Compiling { helper, may_continue, .. }) = (&self.recorder, compiling);
        let Some(helper) = helper.as_mut() else { return };
        let Some(file) = recorder.deep_file(name) else { return };
        let start = recorder.now();
        match helper.profile(&emitted.files, context, &file, *may_continue) {
            Ok(()) => {
                let asked = recorder.span(Lane::Host, "profile", name, start);
                recorder.read(name, &file, asked, &[asked]);
            }
            Err(HelperError::Refused(why)) => recorder.stay_shallow(name, &why),
            Err(HelperError::Stopped) => {}
        }
    }

    /// A session of a model, or of its compiled form.
    fn opened(
        &self,
        name: &str,
        what: &'static str,
        model: MadeFrom<'_>,
        emitted: &Emitted,
    ) -> Result<CompiledModel, String> {
        let (recorder, start) = (&self.recorder, self.recorder.now());
        let file = recorder.file(name);
        let session =
            self.runtime.compile(self.chosen, self.options.threads, model, file.as_ref())?;
        let opened = recorder.span(Lane::Host, what, name, start);
        let record = SessionRecord::new(recorder, name, file, opened);
        Ok(CompiledModel::onnx(session, record, emitted))
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
        let context = helper.compile(&emitted.files, file.as_ref(), may_continue)?;
        let compiled = recorder.span(Lane::Host, "compile", name, start);
        file.iter().for_each(|file| recorder.read(name, file, compiled, &[]));
        Ok(context)
    }

    fn key(&self, emitted: &Emitted) -> GraphKey {
        let (threads, level) = (self.options.threads, self.recorder.level());
        GraphKey::new(&self.runtime, self.chosen, threads, level, &emitted.files.hash)
    }

    /// Compiles a model, in another process if there is a helper, and keeps the result if it
    /// computes what it should.
    fn made(
        &self,
        name: &str,
        emitted: &Emitted,
        compiling: &mut Compiling<'_, '_>,
    ) -> Result<Result<CompiledModel, String>, DeviceError> {
        let Compiling { helper, may_continue, .. } = compiling;
        let compiled = helper.as_mut().map(|h| self.compiled(name, emitted, h, *may_continue));
        let context = match compiled.transpose() {
            Ok(context) => context,
            Err(HelperError::Stopped) => return Err(DeviceError::Cancelled),
            Err(HelperError::Refused(why)) => return Ok(Err(why)),
        };
        let opened = match &context {
            Some(context) => self.opened(name, "load", MadeFrom::Compiled(context), emitted),
            None => self.opened(name, "compile", MadeFrom::File(&emitted.files.path()), emitted),
        };
        let model = opened.and_then(|model| {
            let start = self.recorder.now();
            let mut probed = lock(&self.probed);
            if !probed.contains(&self.key(emitted)) {
                self.probe(&model, emitted)?;
                probed.insert(self.key(emitted));
            }
            self.recorder.span(Lane::Host, "probe", name, start);
            Ok(model)
        });
        if let (Ok(_), Some(context)) = (&model, &context) {
            if let Some(cache) = &self.options.cache {
                cache.put(&self.key(emitted), context);
            }
            self.profile_parts(name, context, emitted, compiling);
        }
        Ok(model)
    }
}

/// A call to compile graphs.
struct Compiling<'a, 'h> {
    weights: &'a dyn WeightSource,
    helper: &'a mut Option<Helper<'h>>,
    may_continue: &'a dyn Fn() -> bool,
}

/// What products can take: halves, also with weights of 4 bits, 8 and 16 bits with scales of a
/// calibration, or 8 with one for each row or each few columns.
fn formats() -> Vec<ActivationFormat> {
    let halves = [ActivationFormat::F16, ActivationFormat::F16Int4];
    let others = [ActivationFormat::by_row(8), ActivationFormat::of_columns(8)];
    let others = others.into_iter().chain(halves);
    ActivationFormat::calibrated(8).chain(ActivationFormat::calibrated(16)).chain(others).collect()
}

fn caps(runtime: &Runtime, chosen: Chosen, row_buckets: Vec<usize>, weights: CodeWeights) -> Caps {
    let Chosen { provider, hardware, .. } = chosen;
    let rows: Vec<String> = row_buckets.iter().map(usize::to_string).collect();
    Caps {
        row_buckets,
        static_shapes: true,
        numerics: format!("{}-{}-f32", provider.name(), hardware.name()),
        weight_dtypes: DType::WEIGHTS.to_vec(),
        activation_formats: formats(),
        queue_depth: QUEUE_DEPTH,
        host_tasks: false,
        bakes_weights: true,
        forms: [ProductForm::Exchanged].into_iter().chain(ProductForm::GROUPS).collect(),
        code_weights: Some(weights),
        facts: vec![
            ("provider".into(), format!("{} on {}", provider.ep(), hardware.name())),
            ("runtime".into(), runtime.library.display().to_string()),
            ("static shapes".into(), format!("rows {}", rows.join(", "))),
        ],
        ..Caps::default()
    }
}

/// A graph's weights, which are part of its code.
///
/// # Errors
/// Code of another device, or of other weights.
pub(crate) fn loaded(
    device: &str,
    executable: &Arc<Executable>,
    graph: &Subgraph,
) -> Result<Arc<Weights>, DeviceError> {
    let refuse = |why: String| DeviceError::Submission { task: graph.name.clone(), why };
    let code = executable.made::<Code>().filter(|code| code.device == device);
    let code = code
        .ok_or_else(|| refuse(format!("{executable:?} was not compiled on device {}", device)))?;
    if !graph.same_code(&code.graph) || graph.weights != code.graph.weights {
        let of = &code.graph.name;
        return Err(refuse(format!("its weights are not those in the code of {of}")));
    }
    let (device, graph, code) = (device.to_string(), graph.name.clone(), code.made.clone());
    Ok(Arc::new(Weights::new(executable, LoadedModel { device, graph, code })))
}

impl Device for NpuDevice {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Npu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        let wrong = verify(graph).err().map(|e| e.to_string());
        let refused = |n: &Node| refusal(&n.op, graph, self.chosen.provider).map(String::from);
        graph.nodes.iter().map(|n| wrong.clone().or_else(|| refused(n))).collect()
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        // Those for CPUs are quick, and their compiled form is the model: nothing of it is kept.
        let passes_on = self.chosen.is_plugin && self.chosen.hardware != Hardware::Cpu;
        let command = self.options.helper.as_ref().filter(|_| passes_on);
        let (library, threads) = (&self.runtime.library, self.options.threads);
        let mut helper = command.map(|command| Helper::new(command, library, self.chosen, threads));
        let mut on = (request.report_progress)(0);
        let compiled = request.graphs.iter().enumerate().map(|(i, graph)| {
            if !on {
                return Err(DeviceError::Cancelled);
            }
            let may_continue = || (request.report_progress)(i);
            let mut compiling = Compiling {
                weights: request.weights,
                helper: &mut helper,
                may_continue: &may_continue,
            };
            let code = self.compile_one(graph, &mut compiling);
            on = (request.report_progress)(i + 1);
            code
        });
        let compiled: CompileResults = compiled.collect();
        if !compiled.iter().any(|code| matches!(code, Err(DeviceError::Unsupported { .. }))) {
            lock(&self.made).clear();
        }
        compiled
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        loaded(&self.options.name, executable, graph)
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        queue::start(&self.options.name, number, clock, done)
    }
}
