//! The only place that names concrete devices.

use std::str::FromStr;
use std::sync::Arc;

pub use troika_cpu::parse_cores;
pub use troika_cpu::peaks::{Peak, Peaks};
use troika_cpu::{CpuDevice, CpuOptions, Isa, Multiply};
use troika_device::{Device, DeviceError};
use troika_graph::{ActivationFormat, DType};

/// Which devices to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Threads of the CPU device; `None`: one per core of `cores`, or per physical performance
    /// core.
    pub threads: Option<usize>,
    /// Logical cores the CPU device's threads are pinned to, in turn; `None`: where the system
    /// puts them.
    pub cores: Option<Vec<usize>>,
    /// Instruction set of the CPU device, by name ([`instruction_sets`]); `None`: the best.
    pub isa: Option<String>,
    /// Devices in place of the one that the fields above describe.
    pub devices: Vec<DeviceSpec>,
}

/// A device as a user describes it: `[NAME=]cpu[:CORES][@ISA]`, the cores as in `0-3+8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its name; `None`: one is given to it (`cpu`, `cpu1`, ...).
    pub name: Option<String>,
    /// Logical cores its threads are pinned to, one each; `None`: a thread per physical
    /// performance core, where the system puts them.
    pub cores: Option<Vec<usize>>,
    /// Instruction set, by name ([`instruction_sets`]); `None`: the best.
    pub isa: Option<String>,
}

/// Why a text describes no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no device: {why}")]
pub struct DeviceSpecError {
    text: String,
    why: String,
}

impl FromStr for DeviceSpec {
    type Err = DeviceSpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceSpecError> {
        let refuse = |why: String| Err(DeviceSpecError { text: text.to_string(), why });
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (Some(name), rest),
            None => (None, text),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_some_and(|n| n.is_empty() || !n.chars().all(plain)) {
            return refuse("a name is made of letters, digits, '-', '_' and '.'".into());
        }
        let (rest, isa) = match rest.split_once('@') {
            Some((rest, isa)) => (rest, Some(isa)),
            None => (rest, None),
        };
        let (kind, cores) = match rest.split_once(':') {
            Some((kind, cores)) => (kind, Some(cores)),
            None => (rest, None),
        };
        if kind != "cpu" {
            return refuse("it must be [NAME=]cpu[:CORES][@ISA], such as a=cpu:0-3+8".into());
        }
        if let Some(isa) = isa.filter(|isa| !instruction_sets().contains(isa)) {
            let known = instruction_sets().join(", ");
            return refuse(format!("this machine has no kernels named {isa:?}; it has {known}"));
        }
        let cores = match cores.map(|c| (c, parse_cores(&c.replace('+', ",")))) {
            None => None,
            Some((c, Some(cores))) if !c.contains(',') => Some(cores),
            Some((c, _)) => return refuse(format!("{c:?} are not cores such as 0-3+8")),
        };
        let known = usable_cores();
        let unknown = |c: &&usize| !known.is_empty() && !known.contains(c);
        if let Some(c) = cores.iter().flatten().find(unknown) {
            return refuse(format!("core {c} is not among those this process may use ({known:?})"));
        }
        Ok(DeviceSpec { name: name.map(String::from), cores, isa: isa.map(String::from) })
    }
}

/// Names for devices in order: the given ones, else `cpu`, `cpu1`, ...
///
/// # Errors
/// A name that two devices have.
fn names(specs: &[DeviceSpec]) -> Result<Vec<String>, DeviceError> {
    let mut names: Vec<String> = Vec::new();
    for spec in specs {
        let taken =
            |n: &String| names.contains(n) || specs.iter().any(|s| s.name.as_ref() == Some(n));
        let numbered = |i: usize| if i == 0 { "cpu".to_string() } else { format!("cpu{i}") };
        let name = match &spec.name {
            Some(name) => name.clone(),
            None => (0..).map(numbered).find(|n| !taken(n)).unwrap_or_default(),
        };
        if names.contains(&name) {
            let why = "two devices have this name; give each one of its own".into();
            return Err(DeviceError::System { device: name, why });
        }
        names.push(name);
    }
    Ok(names)
}

impl DeviceOptions {
    /// Threads of the CPU devices together.
    pub fn threads(&self) -> usize {
        if !self.devices.is_empty() {
            let default = troika_cpu::default_threads;
            let of = |s: &DeviceSpec| s.cores.as_ref().map_or_else(default, Vec::len);
            return self.devices.iter().map(of).sum();
        }
        let pinned = self.cores.as_ref().map(Vec::len);
        self.threads.or(pinned).unwrap_or_else(troika_cpu::default_threads).max(1)
    }
}

/// Names of the instruction sets the CPU device has kernels for on this machine, weakest first.
pub fn instruction_sets() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// Numbers of the logical cores this process may use; empty where the system does not say.
pub fn usable_cores() -> Vec<usize> {
    troika_cpu::topology().iter().map(|c| c.id).collect()
}

/// Opens the devices of the options.
///
/// # Errors
/// What a device reports, or two devices of one name.
pub fn open_devices(options: &DeviceOptions) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let open = |o: CpuOptions| Ok(Arc::new(CpuDevice::new(o)?) as Arc<dyn Device>);
    let isa = |name: &Option<String>| name.as_deref().map(find_isa).transpose();
    if options.devices.is_empty() {
        let (threads, cores) = (options.threads(), options.cores.clone());
        let (name, isa) = ("cpu".into(), isa(&options.isa)?);
        return Ok(vec![open(CpuOptions { name, threads, cores, isa, ..CpuOptions::default() })?]);
    }
    let named = names(&options.devices)?.into_iter().zip(&options.devices);
    let devices = named.map(|(name, spec)| {
        let cores = spec.cores.clone();
        let threads = cores.as_ref().map_or_else(troika_cpu::default_threads, Vec::len);
        let isa = isa(&spec.isa)?;
        open(CpuOptions { name, threads, cores, isa, ..CpuOptions::default() })
    });
    devices.collect()
}

fn find_isa(name: &str) -> Result<Isa, DeviceError> {
    let found = Isa::available().into_iter().find(|i| i.name() == name);
    found.ok_or_else(|| DeviceError::System {
        device: "cpu".into(),
        why: format!(
            "this machine has no kernels named {name}; it has {}",
            instruction_sets().join(", ")
        ),
    })
}

/// Read bandwidth of this machine's memory in GB/s, measured now with the given threads.
pub fn measure_bandwidth(threads: usize) -> f64 {
    troika_cpu::peaks::measure_bandwidth(threads)
}

/// Measures what this machine can do at most with the threads of the options.
pub fn measure_peaks(options: &DeviceOptions) -> Peaks {
    let given = options.threads.is_some() || !options.devices.is_empty();
    troika_cpu::peaks::measure(if given { options.threads() } else { troika_cpu::cores() })
}

/// What products with weights of a type multiply with under the given options, if it is known.
///
/// # Errors
/// An instruction set this machine does not have.
pub fn multiply_of(
    options: &DeviceOptions,
    weight: DType,
    activations: ActivationFormat,
) -> Result<Option<Multiply>, DeviceError> {
    let first = options.devices.first().and_then(|d| d.isa.as_deref());
    let isa = first.or(options.isa.as_deref()).map_or(Ok(Isa::detect()), find_isa)?;
    Ok(troika_cpu::kernels::multiply(isa, weight, activations))
}

#[cfg(test)]
mod tests {
    use super::{DeviceSpec, names};

    #[test]
    fn devices_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<DeviceSpec>();
        let spec = |name: Option<&str>, cores: Option<&[usize]>| DeviceSpec {
            name: name.map(String::from),
            cores: cores.map(<[usize]>::to_vec),
            isa: None,
        };
        assert_eq!(read("cpu"), Ok(spec(None, None)));
        if let Some(&core) = super::usable_cores().first() {
            let text = format!("a=cpu:{core}");
            assert_eq!(read(&text), Ok(spec(Some("a"), Some(&[core]))));
        }
        let scalar = DeviceSpec { isa: Some("scalar".into()), ..spec(Some("b.1"), None) };
        assert_eq!(read("b.1=cpu@scalar"), Ok(scalar));
        for wrong in [
            "",
            "gpu",
            "cpu:",
            "cpu:x",
            "cpu:0,1",
            "cpu:0++1",
            "cpu:9999",
            "=cpu",
            "a b=cpu",
            "cpu@",
            "cpu@mmx",
            "a=b=cpu",
            "cpu@scalar:0",
            "cpu:3-1",
            "CPU",
            " cpu",
        ] {
            let why = read(wrong).unwrap_err().to_string();
            assert!(why.contains("is no device"), "{wrong}: {why}");
        }
    }

    #[test]
    fn devices_without_a_name_are_numbered() {
        let specs = |texts: &[&str]| -> Vec<DeviceSpec> {
            texts.iter().map(|t| t.parse().unwrap()).collect()
        };
        assert_eq!(names(&specs(&["cpu", "cpu", "cpu"])).unwrap(), ["cpu", "cpu1", "cpu2"]);
        assert_eq!(names(&specs(&["cpu", "cpu1=cpu", "cpu"])).unwrap(), ["cpu", "cpu1", "cpu2"]);
        assert!(names(&specs(&["a=cpu", "a=cpu"])).unwrap_err().to_string().contains("a"));
    }
}
