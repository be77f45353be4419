//! Looking for GPUs while a model's files are read.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use troika_model::chat::HelperCommand;

use super::adapters::{GpuAdapter, GpuSpec, gpu_adapter, gpu_adapters};

/// How long a search may take: a driver may hang.
const PATIENCE: Duration = Duration::from_secs(3);

/// How devices are chosen where none are named.
#[derive(Clone, Debug, Default)]
pub struct AutoDevices {
    /// Layers on the GPU; more than there are: the head, too. `None`: what is best.
    pub layers: Option<usize>,
    /// How another process prints the adapters, each by [`GpuAdapter::to_line`], while files are read:
    /// a driver takes memory and may end its process. `None`: this one looks for them.
    pub helper: Option<HelperCommand>,
    /// The most bytes that are put on a GPU; `None`: what it has.
    pub most: Option<u64>,
    /// The folder of profiles that are kept: one of the model with an NPU chooses among its devices.
    pub profiles: Option<PathBuf>,
    /// For tests: software adapters count as GPUs with this many bytes of memory of their own.
    pub software: Option<u64>,
}

/// A search for adapters that goes on.
pub(crate) enum GpuSearch {
    /// In another process; `None`: that does not start, and finds nothing.
    Process(Option<Child>),
    Here,
    /// For the one that is meant.
    Named(GpuSpec),
}

impl GpuSearch {
    /// Begins one.
    pub fn start(helper: Option<&HelperCommand>) -> GpuSearch {
        let Some(helper) = helper else { return GpuSearch::Here };
        let mut command = Command::new(&helper.program);
        command.args(&helper.args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        GpuSearch::Process(command.spawn().ok())
    }

    /// What it finds.
    ///
    /// # Errors
    /// A driver does not answer.
    pub fn found(self) -> Result<Vec<GpuAdapter>, String> {
        self.found_within(PATIENCE)
    }

    fn found_within(self, patience: Duration) -> Result<Vec<GpuAdapter>, String> {
        let mut process = match self {
            GpuSearch::Process(Some(process)) => process,
            GpuSearch::Process(None) => return Ok(Vec::new()),
            GpuSearch::Here => return Ok(gpu_adapters()),
            GpuSearch::Named(spec) => return Ok(gpu_adapter(&spec).into_iter().collect()),
        };
        let end = Instant::now() + patience;
        while matches!(process.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = process.kill();
                let _ = process.wait();
                return Err("a GPU's driver does not answer; --device gpu waits for it".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = process.wait_with_output().map(|found| found.stdout).unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).lines().filter_map(GpuAdapter::from_line).collect())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use troika_model::chat::HelperCommand;

    use super::{GpuAdapter, GpuSearch};

    #[test]
    fn a_search_that_hangs_or_fails_ends() {
        let search = |program: &str, args: &[&str]| {
            let args = args.iter().map(ToString::to_string).collect();
            GpuSearch::start(Some(&HelperCommand { program: program.into(), args }))
        };
        let hung = search("sleep", &["60"]).found_within(Duration::from_millis(10)).unwrap_err();
        assert!(hung.contains("does not answer"), "{hung}");
        let fast = GpuAdapter { name: "Fast".into(), free: Some(7), ..GpuAdapter::default() };
        let lines = "echo 'a driver says'; echo \"$0\"; exit 3";
        let found = search("sh", &["-c", lines, &fast.to_line()])
            .found_within(Duration::from_secs(60))
            .unwrap();
        assert_eq!(found, [fast]);
        assert_eq!(search("/nonexistent", &[]).found().unwrap(), []);
    }
}
