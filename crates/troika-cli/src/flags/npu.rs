//! What NPU devices get from the command: it is its own helper for compiling.

use std::time::Duration;

use clap::Args;
use troika::npu::{HelperCommand, Profiling, ProfilingLevel, RuntimePlaces};
use troika::{DeviceSpec, NpuSettings, OpenOptions};

use crate::error::CliError;

/// The verb of the helper.
pub const COMPILE_VERB: &str = "npu-compile";
/// How long a vendor's compiler may work on one graph.
const LIMIT: Duration = Duration::from_secs(120);

/// What NPUs' own profilers add to a trace.
#[derive(Args)]
pub struct NpuProfilingArgs {
    /// Let the NPUs' own profilers add to the trace, or to what plan --compile says; LEVEL=DIR keeps
    /// their own files in a folder
    ///
    /// basic: times of runs; detailed: also of nodes; optrace: also what Qualcomm's viewer reads.
    /// LEVEL:N has at most N events of a compiled graph in the trace [default: 10000].
    #[arg(long, value_name = "LEVEL", value_parser = profiling)]
    pub npu_profiling: Option<Profiling>,
}

/// The most events of a compiled graph that go to the trace.
const MOST_EVENTS: usize = 10_000;

/// A level of profiling, with the folder of the profilers' own files.
fn profiling(text: &str) -> Result<Profiling, String> {
    let (level, folder) =
        text.split_once('=').map_or((text, None), |(level, folder)| (level, Some(folder.into())));
    let known = || ProfilingLevel::ALL.map(ProfilingLevel::name).join(", ");
    let (level, most_events) = match level.split_once(':') {
        Some((level, most)) => (level, most.parse().ok().filter(|most| *most > 0)),
        None => (level, Some(MOST_EVENTS)),
    };
    let most_events = most_events.ok_or("the number of events behind : has to be 1 or more")?;
    let level = ProfilingLevel::parse(level)
        .ok_or_else(|| format!("there is no level {level:?}; the levels are {}", known()))?;
    Ok(Profiling { level, folder, most_events })
}

/// Refuses a flag of NPUs where no device is one.
pub fn needs_npu(flag: &str, devices: &[DeviceSpec]) -> Result<(), CliError> {
    match devices.iter().any(|device| device.npu.is_some() || device.processor.is_some()) {
        true => Ok(()),
        false => Err(CliError::Usage(format!(
            "{flag} has no effect without an NPU: name one with --device, such as npu:openvino"
        ))),
    }
}

impl NpuProfilingArgs {
    /// Sets the options by the flags.
    pub fn apply(&self, options: &mut OpenOptions) -> Result<(), CliError> {
        let Some(profiling) = &self.npu_profiling else { return Ok(()) };
        needs_npu("--npu-profiling", &options.devices.devices)?;
        options.devices.npu.profiling = Some(profiling.clone());
        Ok(())
    }
}

/// Where NPU devices find what they need.
pub fn npu_settings() -> NpuSettings {
    let helper = std::env::current_exe().ok().map(|program| HelperCommand {
        program,
        args: vec![COMPILE_VERB.into()],
        limit: LIMIT,
    });
    let runtime = RuntimePlaces::of_variables(|name| std::env::var_os(name));
    NpuSettings { runtime, helper, ..NpuSettings::default() }
}
