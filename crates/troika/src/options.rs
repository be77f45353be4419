//! Options of opening a model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use troika_device::{Device, RealClock};
use troika_engine::{CompileControl, OnCompiled, Sharing};
use troika_graph::{ActivationFormat, DType};
use troika_model::lower::Lowered;
use troika_plan::{
    CalibratedProducts, Goal, Plan, PlanError, Policy, RoutingPredictor, Strategy, SyncMode,
};
use troika_trace::Tracer;
use troika_weights::{BindOptions, CacheFolder, FloatType, Quant};

use crate::budget::MemoryLimits;
use crate::calibrated::CalibrationOptions;
use crate::devices::npu::{Rewrite, Rewrites};
use crate::devices::{DeviceOptions, Opening, open_with};
use crate::error::Error;
use crate::expert_options::ExpertOptions;
use crate::kept_of_devices::{GpuSettings, Notes};
use crate::observer::OpenObserver;
use crate::profile_file::ProfileAt;

/// Open devices.
type Devices = Vec<Arc<dyn Device>>;

/// How to open a model.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Type of float matrices. `Auto` also allows activations in eight bits with quantized weights
    /// and in bf16 with bf16 weights, where that is faster. Any other value keeps activations in
    /// f32.
    pub dtype: FloatType,
    /// Activation formats, besides f32, that products may use; `None`: those that `dtype` allows.
    pub activations: Option<Vec<ActivationFormat>>,
    /// What NPUs multiply.
    pub npu_numbers: NpuNumbers,
    /// The same while decoding, where that differs.
    pub npu_decode: Option<NpuNumbers>,
    /// Quantization of float matrices at load.
    pub quant: Quant,
    /// Folder that keeps quantized weights, compiled graphs and what was found of GPUs for the next
    /// start; `None`: nothing is kept.
    pub cache: Option<CacheFolder>,
    /// Limits of memory. Experts that do not fit are read from `cache` when tokens choose them.
    pub memory: MemoryLimits,
    /// Reads experts ahead while decoding, where not all are in memory.
    pub predictor: Option<PredictorOptions>,
    /// Hears of opening, and may end it.
    pub observer: Option<Arc<dyn OpenObserver>>,
    /// The longest sequence; `None`: the model's own limit, or what fits into memory.
    pub context: Option<usize>,
    /// The most rows of a prompt chunk; `None`: 512, or 256 where an NPU computes prompts, or what a
    /// profile finds to be fast.
    pub chunk: Option<usize>,
    /// How the model is divided over the devices.
    pub strategy: Strategy,
    /// How that groups experts.
    pub experts: ExpertOptions,
    /// The order of a prompt's segments, in place of a given plan's, too; `None`: program order, or the
    /// fastest by prices.
    pub policy: Option<Policy>,
    /// How devices wait for each other.
    pub sync: SyncMode,
    /// How sessions share the model.
    pub sharing: Sharing,
    /// Where the plan comes from.
    pub plan: PlanSource,
    /// Moves ops that a device of a given plan refuses to other devices, instead of failing; and
    /// when a real device is lost, the CPU computes all sequences anew and goes on.
    pub fallback: bool,
    /// Type of the KV cache; `None`: f32 if computing in f32, else bf16 where multiplied, else f16.
    pub kv_dtype: Option<DType>,
    /// The devices to open.
    pub devices: DeviceOptions,
    /// Records spans. Vendors' profilers report when the model closes.
    pub tracer: Tracer,
}

impl OpenOptions {
    /// Whether refused ops may move to other devices: in a given plan only with `fallback`.
    pub(crate) fn may_change_plan(&self) -> bool {
        self.plan.given().is_none() || self.fallback
    }

    /// Opens the devices, whose graphs are written as the plan says. Without named ones it is the CPU,
    /// unless [`OpenOptions::chosen`] chose others.
    ///
    /// # Errors
    /// A device that cannot be opened, or a plan that names a rewrite that does not exist.
    pub fn open_devices(&self) -> Result<Vec<Arc<dyn Device>>, Error> {
        self.devices_by(RealClock::new()).map(|(devices, _)| devices)
    }

    /// The same by a clock, with what there is to say of them.
    pub(crate) fn devices_by(&self, clock: RealClock) -> Result<(Devices, Notes), Error> {
        let mut devices = self.devices.clone();
        let named = self.plan.given().into_iter().flat_map(|plan| &plan.npu_rewrites);
        let named: Result<Vec<Rewrite>, String> = named.map(|name| name.parse()).collect();
        let wrong =
            |why: String| PlanError::Invalid(format!("its \"npu_rewrites\" cannot be used: {why}"));
        let named = named.map_err(|why| Error::from(wrong(why)).of_plan(self.plan.file()))?;
        if !named.is_empty() {
            devices.npu.rewrites = Rewrites(named);
        }
        let notes = Notes { observer: self.observer.clone(), ..Notes::default() };
        let (check, cache) = (devices.gpus.check, self.cache.clone());
        let gpu = GpuSettings { check, cache, notes };
        let opening = Opening { tracer: self.tracer.clone(), clock, gpu };
        Ok((open_with(&devices, &opening)?, opening.gpu.notes))
    }

    /// How to compile.
    pub(crate) fn compile_control(&self) -> CompileControl {
        let Some(observer) = self.observer.clone() else { return CompileControl::default() };
        let (cancel, limit) = (observer.cancel(), observer.limit());
        let progress: OnCompiled = Arc::new(move |done, all| observer.compiled(done, all));
        CompileControl { progress: Some(progress), cancel, limit }
    }

    /// What NPUs multiply while decoding.
    pub(crate) fn decode_numbers(&self) -> &NpuNumbers {
        self.npu_decode.as_ref().unwrap_or(&self.npu_numbers)
    }

    /// The format for which NPUs convert weights; of two, that of prompts.
    pub fn converted_format(&self) -> Option<ActivationFormat> {
        self.npu_numbers.format().or(self.decode_numbers().format())
    }

    /// The calibration that NPUs compute by.
    pub fn calibration(&self) -> Option<&CalibrationOptions> {
        self.npu_numbers.calibration().or(self.decode_numbers().calibration())
    }

    /// How to bind weights.
    pub(crate) fn bind(&self) -> BindOptions {
        BindOptions { float: self.dtype, quant: self.quant }
    }
}

/// What NPUs multiply.
#[derive(Clone, Debug, Default)]
pub enum NpuNumbers {
    /// Floats of 32 bits.
    #[default]
    Floats,
    /// Floats of 16 bits.
    Halves,
    /// Floats of 16 bits, and weights of 4 bits with a scale for each row.
    HalvesByInt4,
    /// Whole numbers, by a calibration.
    Calibrated(CalibrationOptions),
}

impl NpuNumbers {
    /// The format for which NPUs convert weights.
    fn format(&self) -> Option<ActivationFormat> {
        match self {
            NpuNumbers::Floats => None,
            NpuNumbers::Halves => Some(ActivationFormat::F16),
            NpuNumbers::HalvesByInt4 => Some(ActivationFormat::F16Int4),
            NpuNumbers::Calibrated(calibration) => Some(calibration.format()),
        }
    }

    /// The products that NPUs convert weights for.
    pub(crate) fn products(&self, lowered: &Lowered) -> Option<CalibratedProducts> {
        match self.calibration() {
            Some(calibration) => Some(calibration.products(lowered)),
            None => {
                let (digest, exact, takers) = Default::default();
                let of = |format| CalibratedProducts { format, digest, exact, takers };
                self.format().map(of)
            }
        }
    }

    /// The calibration.
    pub fn calibration(&self) -> Option<&CalibrationOptions> {
        if let NpuNumbers::Calibrated(options) = self { Some(options) } else { None }
    }
}

/// Where a model's plan comes from.
#[derive(Clone, Debug, Default)]
pub enum PlanSource {
    /// It is made by [`OpenOptions::strategy`].
    #[default]
    Strategy,
    /// It is chosen by a profile, in place of the strategy.
    Profile(SolveOptions),
    /// It exists. It replaces `context`, `chunk`, `kv_dtype`, `activations`, `strategy`, `experts`
    /// and `sync` of the options.
    Given {
        /// The plan.
        plan: Box<Plan>,
        /// The file that it was read from, named in errors.
        file: Option<PathBuf>,
    },
}

impl PlanSource {
    /// A given plan.
    pub fn given(&self) -> Option<&Plan> {
        if let PlanSource::Given { plan, .. } = self { Some(plan) } else { None }
    }

    /// The file of a given plan.
    pub fn file(&self) -> Option<&Path> {
        if let PlanSource::Given { file, .. } = self { file.as_deref() } else { None }
    }
}

impl From<Plan> for PlanSource {
    fn from(plan: Plan) -> PlanSource {
        PlanSource::Given { plan: Box::new(plan), file: None }
    }
}

/// A routing predictor, and the file that it is from.
#[derive(Clone, Debug)]
pub struct PredictorOptions {
    /// The file, named in errors.
    pub file: PathBuf,
    /// The predictor.
    pub predictor: Arc<RoutingPredictor>,
    /// Experts that it names for each layer; `None`: as many as a token uses. More find more of them,
    /// but a disk that is busy anyway reads what nobody uses: with half as many again, tokens took
    /// longer than without.
    pub named: Option<usize>,
}

/// How to choose a plan by a profile.
#[derive(Clone, Debug)]
pub struct SolveOptions {
    /// The profile.
    pub profile: ProfileAt,
    /// What the plan should optimise.
    pub goal: Goal,
    /// Tokens of the prompt to optimise for; `None`: 512, or the context.
    pub prompt: Option<usize>,
    /// Tokens generated after it; `None`: 128, or what the context leaves.
    pub generate: Option<usize>,
}

impl SolveOptions {
    /// Tokens of the prompt and of the answer, within the context.
    pub(crate) fn lengths(&self, context: usize) -> Result<(usize, usize), PlanError> {
        let prompt = self.prompt.unwrap_or(512.min(context));
        if !(1..=context).contains(&prompt) {
            let (what, got, low, high) = ("the length of prompts", prompt, 1, context);
            return Err(PlanError::Range { what, got, low, high });
        }
        let rest = context - prompt;
        let generate = self.generate.unwrap_or(128.min(rest));
        if generate > rest {
            return Err(PlanError::TooLong { prompt, generate, context });
        }
        Ok((prompt, generate))
    }
}
