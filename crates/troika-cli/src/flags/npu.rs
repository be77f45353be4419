//! What NPU and GPU devices get from the command: it is its own helper for compiling.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use troika::npu::{HelperCommand, Profiling, ProfilingLevel, RuntimePlaces};
use troika::{GpuSettings, NpuSettings, OpenOptions};

use crate::error::CliError;

/// The verb of the helper.
pub const COMPILE_VERB: &str = "npu-compile";
/// How long a vendor's compiler may work on one graph.
const LIMIT: Duration = Duration::from_secs(120);

/// What a helper is told.
#[derive(Args)]
pub struct NpuCompileArgs {
    pub args: Vec<String>,
}

/// What NPUs' own profilers add to a trace.
#[derive(Args)]
pub struct NpuProfilingArgs {
    /// Let the NPUs' own profilers add to the trace
    ///
    /// basic: times of runs; detailed: also of nodes; optrace: also what Qualcomm's viewer reads.
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    pub npu_profiling: Option<ProfilingLevel>,
    /// Keep the profilers' own files in a folder
    #[arg(long, value_name = "DIR")]
    pub npu_profiling_dir: Option<PathBuf>,
    /// The most events of a compiled graph that go to the trace
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub npu_profiling_events: usize,
}

fn levels() -> impl TypedValueParser<Value = ProfilingLevel> {
    PossibleValuesParser::new(ProfilingLevel::ALL.map(ProfilingLevel::name))
        .try_map(|name| ProfilingLevel::parse(&name).ok_or("no level"))
}

impl NpuProfilingArgs {
    /// Sets the options by the flags.
    ///
    /// # Errors
    /// There is no NPU to profile.
    pub fn apply(&self, options: &mut OpenOptions) -> Result<(), CliError> {
        let Some(level) = self.npu_profiling else { return Ok(()) };
        if options.devices.devices.iter().all(|d| d.npu.is_none()) {
            let why = "--npu-profiling has no effect without an NPU: name one with --device, such \
                       as npu:qnn";
            return Err(CliError::Usage(why.into()));
        }
        let (folder, most_events) = (self.npu_profiling_dir.clone(), self.npu_profiling_events);
        options.devices.npu.profiling = Some(Profiling { level, folder, most_events });
        Ok(())
    }
}

/// Where NPU devices find what they need, with the folder that keeps compiled graphs.
pub fn npu_settings(cache_dir: Option<PathBuf>, cache_bytes: u64) -> NpuSettings {
    let helper = std::env::current_exe().ok().map(|program| HelperCommand {
        program,
        args: vec![COMPILE_VERB.into()],
        limit: LIMIT,
    });
    // The runtime's own variable, and those of the active Python environment.
    let path = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect();
    let runtime = RuntimePlaces { library: path("ORT_DYLIB_PATH"), environments };
    let cache_bytes = Some(cache_bytes);
    NpuSettings { runtime, helper, cache_dir, cache_bytes, ..NpuSettings::default() }
}

/// What GPU devices do before a model runs on them, with the folder that keeps what they found.
pub fn gpu_settings(cache_dir: Option<PathBuf>, cache_bytes: u64) -> GpuSettings {
    let cache_bytes = Some(cache_bytes);
    GpuSettings { check: true, cache_dir, cache_bytes, ..GpuSettings::default() }
}
