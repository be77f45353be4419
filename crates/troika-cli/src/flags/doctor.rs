//! Flags of `troika doctor`.

use std::path::PathBuf;

use clap::Args;
use troika_hub::HubOptions;

use super::npu::npu_settings;
use super::quant::cache_or_default;
use super::serve::DEFAULT_PORT;
use crate::doctor::HostMachine;

/// `troika doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Check and measure all devices, and write what was found to a file to send
    #[arg(long, value_name = "FILE", conflicts_with = "verbose")]
    pub report: Option<PathBuf>,
    /// With --report: the longest that it may take
    #[arg(long, value_name = "N", default_value_t = 600, requires = "report")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Print reports side by side, and do nothing else
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["report", "verbose", "json"])]
    pub read: Vec<PathBuf>,
    /// List the types of weights and their kernels, too
    #[arg(short, long, env = "TROIKA_VERBOSE")]
    pub verbose: bool,
    /// Measure how fast memory is read, too
    #[arg(long)]
    pub measure: bool,
    /// Ask the Hub whether it answers and takes the token, too
    #[arg(long)]
    pub online: bool,
    /// The port that a server would listen on
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT, env = "TROIKA_PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The folder where quantized weights are kept [default: troika in the system's folder for
    /// caches]
    #[arg(long, value_name = "DIR", env = "TROIKA_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

impl DoctorArgs {
    /// What is looked at.
    pub fn machine(&self) -> HostMachine {
        HostMachine {
            root: PathBuf::from("/"),
            hub: HubOptions::from_env(),
            cache: cache_or_default(self.cache_dir.as_deref()),
            npu: npu_settings(),
            port: self.port,
            measure: self.measure,
            online: self.online,
        }
    }
}
