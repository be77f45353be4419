//! The flags that say how a model is opened and computed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use troika::graph::DType;
use troika::model::chat::HelperCommand;
use troika::plan::{RoutingPredictor, Strategy};
use troika::weights::FloatType;
use troika::{DeviceOptions, GpuUse, MemoryLimits, OpenOptions, PredictorOptions};

use super::npu::npu_settings;
use super::placement::PlacementArgs;
use super::quant::{QuantArgs, mib};
use super::types::{CACHE_TYPES, CoreList, FLOAT_TYPES, core_list, isa, one_of, thread_count};
use crate::error::CliError;
use crate::file::read_bytes;
use crate::output;
use crate::progress::OpeningBars;
use crate::stats::counted;

/// The verb of the helper that renders chat templates.
pub const RENDER_VERB: &str = "chat-render";

/// How this program renders chat templates in a process of its own.
pub fn chat_helper() -> Option<HelperCommand> {
    let program = std::env::current_exe().ok()?;
    Some(HelperCommand { program, args: vec![RENDER_VERB.into()] })
}

/// What computes it, and in which types.
#[derive(Args, Clone)]
pub struct ComputeArgs {
    /// Prompt tokens computed at once [default: 512, or 256 on an NPU, or what a profile finds
    /// to be fast]
    #[arg(long, value_name = "N", env = "TROIKA_UBATCH_SIZE")]
    pub ubatch_size: Option<usize>,
    /// Type float weights are computed in
    #[arg(long, value_parser = one_of(FLOAT_TYPES), default_value = "auto", env = "TROIKA_DTYPE")]
    pub dtype: FloatType,
    #[command(flatten)]
    pub quant: QuantArgs,
    /// Most memory for experts, in MiB; the others are read from the folder of the cache when tokens
    /// choose them [default: what is free, if the model does not fit]
    #[arg(long, value_name = "N", value_parser = mib(), env = "TROIKA_EXPERT_CACHE_MIB")]
    pub expert_cache_mib: Option<u64>,
    /// Read experts ahead while decoding, by a file that troika train-predictor wrote
    #[arg(long, value_name = "FILE")]
    pub predictor: Option<PathBuf>,
    /// Experts that the predictor names for each layer [default: as many as a token uses]
    #[arg(long, value_name = "N", value_parser = thread_count(), requires = "predictor")]
    pub predictor_experts: Option<usize>,
    /// Cores to pin the threads to, such as 0-3,8 [default: none]
    #[arg(long, visible_alias = "cpu-range", value_name = "LIST", value_parser = core_list)]
    #[arg(env = "TROIKA_CORES")]
    pub cores: Option<CoreList>,
    /// Instruction set of the CPU kernels (scalar, avx2, avx512, ...) [default: the best]
    #[arg(long, value_name = "NAME", value_parser = isa, env = "TROIKA_ISA")]
    pub isa: Option<String>,
    #[command(flatten)]
    pub placement: PlacementArgs,
}

impl ComputeArgs {
    /// The devices, each with some threads.
    pub fn devices(&self, threads: Option<usize>) -> DeviceOptions {
        let cores = self.cores.clone().map(|c| c.0);
        // A control group's quota counts, rounded down: the standard library asks for it.
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        if let Some(threads) = threads.filter(|threads| *threads > usable) {
            let usable = counted(usable, "core");
            output::note_line(&format!(
                "warning: {threads} threads share {usable} and wait for each other: take fewer (-t)"
            ));
        }
        let devices = self.placement.devices();
        if devices.iter().any(|d| d.npu.is_some()) {
            output::keep_apart();
        }
        let mut npu = npu_settings();
        npu.row_buckets.clone_from(&self.placement.row_buckets);
        npu.row_buckets.sort_unstable();
        npu.row_buckets.dedup();
        let (isa, memory) = (self.isa.clone(), self.placement.device_memory.clone());
        let auto = self.placement.auto();
        let gpus = GpuUse { check: true, own_memory: false };
        DeviceOptions { threads, cores, isa, devices, auto, memory, npu, gpus }
    }

    /// The options for opening a model.
    pub fn options(&self, threads: Option<usize>) -> Result<OpenOptions, CliError> {
        self.options_by(threads, self.placement.one_strategy()?)
    }

    /// The options for opening a model with one of several strategies.
    pub fn options_by(
        &self,
        threads: Option<usize>,
        strategy: Strategy,
    ) -> Result<OpenOptions, CliError> {
        let read = |file: &PathBuf| predictor(file, self.predictor_experts);
        let mut options = OpenOptions {
            dtype: self.dtype,
            quant: self.quant.quant,
            cache: self.quant.cache(),
            observer: Some(Arc::new(OpeningBars::default())),
            memory: MemoryLimits {
                experts: self.expert_cache_mib.map(|mib| mib.saturating_mul(1 << 20)),
                ..MemoryLimits::default()
            },
            predictor: self.predictor.as_ref().map(read).transpose()?,
            chunk: self.ubatch_size,
            devices: self.devices(threads),
            ..OpenOptions::default()
        };
        self.placement.apply(&self.quant, strategy, &mut options)?;
        Ok(options)
    }
}

/// A predictor in a file.
fn predictor(file: &Path, named: Option<usize>) -> Result<PredictorOptions, CliError> {
    let bytes = read_bytes(file)?;
    let (file, read) = (file.to_path_buf(), RoutingPredictor::from_bytes(&bytes));
    let shown = file.display().to_string();
    let read = read.map_err(|error| troika::Error::Predictor { file: shown, error })?;
    Ok(PredictorOptions { file, predictor: Arc::new(read), named })
}

/// How to open it.
#[derive(Args, Clone)]
pub struct OpenArgs {
    /// Context length in tokens [default: the model's]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, env = "TROIKA_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Threads [default: one per physical performance core]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = thread_count(), env = "TROIKA_THREADS")]
    pub threads: Option<usize>,
    /// Type of the KV cache [default: f32 for f32 models, else bf16
    /// where attention multiplies it (AVX512_BF16), else f16]
    #[arg(long, value_parser = one_of(CACHE_TYPES), env = "TROIKA_CACHE_TYPE")]
    pub cache_type: Option<DType>,
    #[command(flatten)]
    pub compute: ComputeArgs,
}
