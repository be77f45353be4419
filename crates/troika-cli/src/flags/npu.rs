//! What NPU devices get from the command: it is its own helper for compiling.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use troika::NpuSettings;
use troika::npu::{HelperCommand, RuntimePlaces};

/// The verb of the helper.
pub const COMPILE_VERB: &str = "npu-compile";
/// How long a vendor's compiler may work on one graph.
const LIMIT: Duration = Duration::from_secs(120);

/// What a helper is told.
#[derive(Args)]
pub struct NpuCompileArgs {
    pub args: Vec<String>,
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
