//! GPUs that `--device` does not name: the line that says that there is one, and llama.cpp's `-ngl`.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use troika::{DeviceSpec, GpuAdapter, gpu_adapters};

use crate::error::CliError;
use crate::output;

/// How long a command that is ready itself waits for a search: a driver may hang.
const PATIENCE: Duration = Duration::from_secs(3);

/// Looks for a GPU. A process of its own does, by [`find`], since drivers take memory, print what they
/// like, and may end their process.
pub fn search() -> Option<Child> {
    let mut search = Command::new(std::env::current_exe().ok()?);
    search.arg("find-gpu").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    search.spawn().ok()
}

/// Says on standard error what a search found.
pub fn tell(search: Option<Child>) {
    search.into_iter().for_each(|search| output::note(&result(search, PATIENCE)));
}

/// What a search prints, or that it did not end in time.
fn result(mut search: Child, patience: Duration) -> String {
    let end = Instant::now() + patience;
    while matches!(search.try_wait(), Ok(None)) {
        if Instant::now() > end {
            let _ = search.kill();
            let _ = search.wait();
            return "note: a GPU's driver did not answer in time: the CPU computes; name it with \
                    --device gpu to wait for it\n"
                .into();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let line = search.wait_with_output().map(|found| found.stdout).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// Prints the line about the GPU of this machine, if it has one.
///
/// # Errors
/// A closed or failing standard output.
pub fn find() -> Result<(), CliError> {
    let line = |(spec, name)| format!("note: the CPU computes; --device {spec} is {name}\n");
    output::write(&usable(&gpu_adapters()).map(line).unwrap_or_default())
}

/// The GPU for `-ngl`; without one the CPU computes. Says which, once.
pub fn for_layers() -> Option<DeviceSpec> {
    static FOUND: OnceLock<Option<DeviceSpec>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let Some((spec, name)) = usable(&gpu_adapters()) else {
            output::note_line("note: there is no GPU that can be used: the CPU computes");
            return None;
        };
        output::note_line(&format!(
            "note: all layers are on {name}; with --device {spec},cpu the CPU has what does not fit"
        ));
        spec.parse().ok()
    });
    found.clone()
}

/// The first GPU that can be used, as `--device` takes it, and its name.
fn usable(adapters: &[GpuAdapter]) -> Option<(String, String)> {
    let (at, adapter) = adapters.iter().enumerate().find(|(_, adapter)| adapter.is_gpu)?;
    let spec = if at == 0 { "gpu".to_string() } else { format!("gpu:{at}") };
    Some((spec, adapter.name.clone()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use troika::GpuAdapter;

    use super::{result, usable};

    #[cfg(unix)]
    #[test]
    fn a_search_that_hangs_is_said_in_a_line() {
        let search = |program: &str, arg: &str| {
            Command::new(program).arg(arg).stdout(Stdio::piped()).spawn().unwrap()
        };
        let line = result(search("sleep", "60"), Duration::from_millis(10));
        assert!(line.contains("did not answer in time") && line.ends_with('\n'), "{line}");
        assert_eq!(result(search("echo", "found"), Duration::from_secs(60)), "found\n");
    }

    #[test]
    fn a_gpu_is_named_as_device_takes_it_and_software_is_not() {
        let adapter = |name: &str, is_gpu| GpuAdapter { name: name.into(), is_gpu, facts: vec![] };
        let (fast, old, soft) =
            (adapter("Fast", true), adapter("Old", false), adapter("llvmpipe", false));
        let named = |adapters: &[&GpuAdapter]| {
            let adapters: Vec<GpuAdapter> = adapters.iter().map(|a| (*a).clone()).collect();
            usable(&adapters)
        };
        let is = |spec: &str| Some((spec.to_string(), "Fast".to_string()));
        assert_eq!(named(&[&fast, &soft]), is("gpu"));
        assert_eq!(named(&[&old, &fast]), is("gpu:1"));
        assert_eq!(named(&[&soft]), None);
        assert_eq!(named(&[]), None);
    }
}
