//! GPUs where no devices are named: this program is its own helper that looks for them.

use troika::model::chat::HelperCommand;
use troika::{AutoDevices, gpu_adapters};

use crate::error::CliError;
use crate::output;

/// The verb of the helper.
pub const FIND_VERB: &str = "find-gpu";

/// How devices are chosen: with some layers on a GPU, or the best number of them.
pub fn auto(layers: Option<usize>) -> AutoDevices {
    let program = std::env::current_exe().ok();
    let helper = program.map(|program| HelperCommand { program, args: vec![FIND_VERB.into()] });
    // For tests: software adapters are GPUs with this many MiB of memory.
    let software = std::env::var("TROIKA_SOFTWARE_GPU").ok().and_then(|mib| mib.parse().ok());
    let software = software.map(|mib: u64| mib.saturating_mul(1 << 20));
    AutoDevices { layers, helper, software, most: None, profiles: None }
}

/// Prints the adapters of this machine for the command that started this one. A process of its own
/// does, since drivers take memory, print what they like, and may end their process.
pub fn find() -> Result<(), CliError> {
    let adapters = gpu_adapters();
    output::write(&adapters.iter().map(|found| found.to_line() + "\n").collect::<String>())
}
