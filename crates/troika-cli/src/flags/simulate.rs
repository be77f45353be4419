//! Flags of `troika simulate` and `troika reproduce`.

use std::path::PathBuf;

use clap::Args;
use troika::DeviceSpec;
use troika::plan::SyncMode;
use troika::sim::CoRun;
use troika_lab::SocStrategy;

use super::placement::{device, sync_modes};

fn co_run(text: &str) -> Result<CoRun, String> {
    let read = |t: &str| t.parse::<f64>().ok().filter(|n| (1e-3..=1e4).contains(n));
    let numbers = text.split_once(':').and_then(|(fps, ms)| Some((read(fps)?, read(ms)?)));
    let (fps, ms) =
        numbers.ok_or("give frames in a second and milliseconds of each, as in 60:6")?;
    Ok(CoRun { period_ns: (1e9 / fps).round() as u64, frame_ns: (ms * 1e6).round() as u64 })
}

/// `troika simulate`.
#[derive(Args)]
pub struct SimulateArgs {
    /// The system on a chip: the name of one that comes along, or a file that ends in .toml
    #[arg(long, value_name = "NAME|FILE", default_value = "sd8gen3-fp16")]
    pub soc: String,
    /// The model's shape: a preset, a folder with a config.json, or a config that ends in .json; each
    /// with :TYPE for weights of another type than Q4_0
    #[arg(short, long, value_name = "PRESET|FOLDER|FILE[:TYPE]")]
    pub model: String,
    /// Tokens of the prompt
    #[arg(short = 'p', long, value_name = "N", default_value_t = 256)]
    pub n_prompt: usize,
    /// Tokens that are generated
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32)]
    pub n_gen: usize,
    /// Who computes what: hetero-tensor, hetero-layer, activation-centric, padding, npu-pipe,
    /// chunked-prefill, online-prepare, gpu-only, npu-only, cpu-only or solved (what the solver finds)
    #[arg(long, value_name = "NAME", default_value = "hetero-tensor", value_parser = SocStrategy::parse)]
    pub strategy: SocStrategy,
    /// Run a plan file instead, as --out writes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["strategy", "sync"])]
    pub plan: Option<PathBuf>,
    /// How processors wait for each other
    ///
    /// predicted: sleep for most of the time that it took before, then look again and again.
    /// blocking: sleep until woken.
    #[arg(long, value_name = "MODE", value_parser = sync_modes(), default_value = "predicted")]
    pub sync: SyncMode,
    /// Draw frames on the GPU meanwhile, as a game does: so many in a second, and milliseconds of each
    #[arg(long, value_name = "FPS:MS", value_parser = co_run)]
    pub co_run: Option<CoRun>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a trace that Perfetto and chrome://tracing show
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the plan that ran
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `troika reproduce`.
#[derive(Args)]
pub struct ReproduceArgs {
    /// Targets by name, such as H12 or H12,H15 [default: all]
    #[arg(value_name = "ID", value_delimiter = ',')]
    pub ids: Vec<String>,
    /// Devices of measurements of this machine, as for run [default: two CPUs of a thread each]
    #[arg(long, value_name = "SPEC", value_delimiter = ',', value_parser = device)]
    pub device: Vec<DeviceSpec>,
    /// Print a JSON list
    #[arg(long)]
    pub json: bool,
}
