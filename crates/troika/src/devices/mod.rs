//! The only place that names concrete devices.

mod adapters;
pub mod limits;
mod look;
pub mod weight_types;

use std::any::Any;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use troika_check::{Check, CheckedKernel};
pub(crate) use troika_cpu::kernels::outliers::hot_columns;
pub use troika_cpu::parse_cores;
use troika_cpu::{CpuDevice, CpuOptions, Isa};
pub(crate) use troika_cpu::{Observer, Routed};
use troika_device::{Clock, Device, DeviceError, RealClock};
use troika_graph::WeightDecl;
/// NPUs.
pub use troika_npu as npu;
use troika_npu::mil::CoreMlRuntime;
use troika_npu::{
    CoreMlDevice, CoreMlDeviceOptions, HelperCommand, NpuDevice, NpuOptions, NpuSpec, Profiling,
    Provider, Rewrites, RuntimePlaces,
};
/// Virtual systems on a chip.
pub use troika_sim as sim;
use troika_sim::{Board, Soc, SocError, VirtualClock, VirtualDevice};
use troika_trace::Tracer;

pub use adapters::{GpuAdapter, GpuSpec, gpu_adapters};
pub use look::AutoDevices;
pub(crate) use look::GpuSearch;

use crate::checked_device::checked_device;
use crate::kept_of_devices::{GpuSettings, KeptOfDevices};

/// Which devices to open.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Threads of the CPU device; `None`: one per core in `cores`, else one per physical
    /// performance core.
    pub threads: Option<usize>,
    /// Logical cores to which the CPU device's threads are pinned, in turn; `None`: not pinned.
    pub cores: Option<Vec<usize>>,
    /// Instruction set of the CPU device by name ([`instruction_sets`]); `None`: the best.
    pub isa: Option<String>,
    /// Devices to open instead of the one described by the fields above, which a CPU among them has
    /// if it names no cores.
    pub devices: Vec<DeviceSpec>,
    /// Has a GPU compute what it has memory for, where `devices` names none; `None`: the CPU alone.
    pub auto: Option<AutoDevices>,
    /// The most bytes of weights that devices may hold, by name.
    pub memory: Vec<(String, u64)>,
    /// What NPU devices need.
    pub npu: NpuSettings,
    /// How GPUs are used.
    pub gpus: GpuUse,
}

/// How GPUs are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuUse {
    /// Whether kernels are compared with the CPU's before a model uses them on an adapter and driver
    /// for the first time. What computes something else is refused.
    pub check: bool,
    /// Whether values and caches lie in memory of a GPU's own even where the host's is the same, so
    /// that other devices need copies. A GPU alone always has its own, which may be faster.
    pub own_memory: bool,
}

/// What NPU devices need.
#[derive(Clone, Debug, Default)]
pub struct NpuSettings {
    /// Where to look for ONNX Runtime.
    pub runtime: RuntimePlaces,
    /// The numbers of rows to compile for, ascending; none: the usual ones.
    pub row_buckets: Vec<usize>,
    /// Whether new plans have NPUs compute attention, although another device can: in graphs for
    /// several numbers of cached positions.
    pub attention: bool,
    /// How graphs are written.
    pub rewrites: Rewrites,
    /// How to compile in another process; `None`: in this one, and no graph is kept.
    pub helper: Option<HelperCommand>,
    /// What opens Core ML's packages; `None`: Core ML, where the system has it.
    pub core_ml: Option<Arc<dyn CoreMlRuntime>>,
    /// How vendors' profilers report to the tracer of a model that is opened.
    pub profiling: Option<Profiling>,
}

/// What devices are opened with besides their options.
pub(crate) struct Opening {
    pub tracer: Tracer,
    pub clock: RealClock,
    pub gpu: GpuSettings,
}

impl NpuSettings {
    fn options(&self, name: String, spec: NpuSpec, with: &Opening) -> NpuOptions {
        NpuOptions {
            name,
            spec,
            places: self.runtime.clone(),
            row_buckets: self.row_buckets.clone(),
            threads: 1,
            helper: self.helper.clone(),
            cache: with.gpu.kept().map(|kept| Arc::new(kept) as _),
            rewrites: self.rewrites.clone(),
            tracer: with.tracer.clone(),
            clock: with.clock,
            profiling: self.profiling.clone(),
        }
    }
}

/// A device in the user's notation: `[NAME=]cpu[:CORES][@ISA]` with cores as in `0-3+8`,
/// `[NAME=]gpu[:NUMBER|:ADAPTER]`, `[NAME=]npu[:PROVIDER[:DEVICE]]`, or
/// `[NAME=]virtual:FILE.toml[:PROCESSOR]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its name; `None`: `cpu`, `cpu1`, ..., likewise `gpu` and `npu`, or the processor's name.
    pub name: Option<String>,
    /// The processor of a virtual device.
    pub processor: Option<ProcessorSpec>,
    /// Which NPU, if it is one.
    pub npu: Option<NpuSpec>,
    /// Which GPU, if it is one.
    pub gpu: Option<GpuSpec>,
    /// Logical cores to which its threads are pinned, one each; `None`: a thread per physical
    /// performance core, not pinned.
    pub cores: Option<Vec<usize>>,
    /// Instruction set by name ([`instruction_sets`]); `None`: the best.
    pub isa: Option<String>,
    /// Whether a CPU stands for an NPU: plans may have it compute products in bytes by a calibration.
    pub as_npu: bool,
}

/// A processor from the file of a virtual SoC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessorSpec {
    /// The file.
    pub file: PathBuf,
    /// The processor's name; `None`: the file has only one.
    pub name: Option<String>,
}

/// Why a text does not describe a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no device: {why}")]
pub struct DeviceSpecError {
    text: String,
    why: String,
}

impl DeviceSpec {
    /// Whether it is a CPU of this machine.
    pub fn is_cpu(&self) -> bool {
        self.processor.is_none() && self.npu.is_none() && self.gpu.is_none()
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceSpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceSpecError> {
        parsed(text).map_err(|why| DeviceSpecError { text: text.to_string(), why })
    }
}

/// The device that a text describes, or why it describes none.
fn parsed(text: &str) -> Result<DeviceSpec, String> {
    // A file name may contain '=' too.
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) if !name.starts_with("virtual:") => (Some(name), rest),
        _ => (None, text),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_some_and(|n| n.is_empty() || !n.chars().all(plain)) {
        return Err("a name is made of letters, digits, '-', '_' and '.'".into());
    }
    let mut spec = DeviceSpec { name: name.map(String::from), ..DeviceSpec::default() };
    if let Some(place) = rest.strip_prefix("virtual:") {
        let wrong = "it must be [NAME=]virtual:FILE.toml[:PROCESSOR], such as \
                     npu=virtual:phone.toml:npu";
        spec.processor = Some(processor_spec(place).ok_or(wrong)?);
    } else if let Some(npu) = rest.strip_prefix("npu") {
        spec.npu = Some(NpuSpec::parse(npu)?);
    } else if let Some(gpu) = rest.strip_prefix("gpu") {
        spec.gpu = Some(GpuSpec::parse(gpu)?);
    } else {
        let (rest, isa) =
            rest.split_once('@').map_or((rest, None), |(rest, isa)| (rest, Some(isa)));
        spec.cores = cores(rest)?;
        if let Some(isa) = isa.filter(|isa| !instruction_sets().contains(isa)) {
            let known = instruction_sets().join(", ");
            return Err(format!("this machine has no kernels named {isa:?}; it has {known}"));
        }
        spec.isa = isa.map(String::from);
    }
    Ok(spec)
}

/// The cores of `cpu[:CORES]`.
fn cores(text: &str) -> Result<Option<Vec<usize>>, String> {
    let list = match text.split_once(':') {
        Some(("cpu", list)) => list,
        None if text == "cpu" => return Ok(None),
        _ => {
            return Err("it must be [NAME=]cpu[:CORES][@ISA], such as a=cpu:0-3+8, \
                 [NAME=]gpu[:NUMBER|:ADAPTER], [NAME=]npu[:PROVIDER[:DEVICE]], or [NAME=]virtual:FILE.toml[:PROCESSOR]"
                .into());
        }
    };
    let read = parse_cores(&list.replace('+', ",")).filter(|_| !list.contains(','));
    let cores = read.ok_or_else(|| format!("{list:?} are not cores such as 0-3+8"))?;
    let known = usable_cores();
    match cores.iter().find(|c| !known.is_empty() && !known.contains(c)) {
        Some(c) => Err(format!("core {c} is not among those this process may use ({known:?})")),
        None => Ok(Some(cores)),
    }
}

/// `FILE.toml[:PROCESSOR]`.
fn processor_spec(text: &str) -> Option<ProcessorSpec> {
    const ENDING: &str = ".toml";
    let (file, name) = match text.rfind(".toml:").map(|at| text.split_at(at + ENDING.len())) {
        Some((file, name)) => (file, Some(name[1..].to_string())),
        None => (text, None),
    };
    let named = name.as_ref().is_none_or(|n| !n.is_empty());
    let is_file = file.len() > ENDING.len() && file.ends_with(ENDING);
    (named && is_file).then(|| ProcessorSpec { file: file.into(), name })
}

/// Names for devices in order: the given one, else `cpu`, `cpu1`, ..., or the processor's name
/// numbered the same way.
///
/// # Errors
/// Two devices with one name.
fn names(specs: &[DeviceSpec], plain: &[&str]) -> Result<Vec<String>, DeviceError> {
    let mut names: Vec<String> = Vec::new();
    for (spec, plain) in specs.iter().zip(plain) {
        let taken =
            |n: &String| names.contains(n) || specs.iter().any(|s| s.name.as_ref() == Some(n));
        let numbered = |i: usize| if i == 0 { plain.to_string() } else { format!("{plain}{i}") };
        let free = || (0..).map(numbered).find(|n| !taken(n)).unwrap_or_default();
        let name = spec.name.clone().unwrap_or_else(free);
        if names.contains(&name) {
            let why = "two devices have this name; give each one of its own".into();
            return Err(DeviceError::System { device: name, why });
        }
        names.push(name);
    }
    Ok(names)
}

impl DeviceOptions {
    /// The most bytes of weights of a device, if there is a limit.
    pub(crate) fn limit_of(&self, name: &str) -> Option<u64> {
        self.memory.iter().find(|(of, _)| of == name).map(|(_, bytes)| *bytes)
    }

    /// Threads of all CPU devices together.
    pub fn threads(&self) -> usize {
        if !self.devices.is_empty() {
            let default = || self.cpu_threads();
            // A virtual device computes on one thread, and so does a CPU that stands in for an NPU.
            let of = |s: &DeviceSpec| match &s.cores {
                _ if !s.is_cpu() => 1,
                cores => cores.as_ref().map_or_else(default, Vec::len),
            };
            return self.devices.iter().map(of).sum();
        }
        self.cpu_threads()
    }

    /// Threads of a CPU device that names no cores.
    fn cpu_threads(&self) -> usize {
        let pinned = self.cores.as_ref().map(Vec::len);
        self.threads.or(pinned).unwrap_or_else(troika_cpu::default_threads).max(1)
    }
}

/// Names of the instruction sets that this machine's CPU device can use, weakest first.
pub fn instruction_sets() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// Numbers of the logical cores that this process may use; empty if the system does not tell.
pub fn usable_cores() -> Vec<usize> {
    troika_cpu::topology().iter().map(|c| c.id).collect()
}

/// Bytes of a row of a weight as GPUs hold it; in a build without them, as it is stored.
pub(crate) fn gpu_row_bytes(weight: &WeightDecl) -> u64 {
    #[cfg(feature = "gpu")]
    let bytes = troika_gpu::kernels::WeightFormat::of(weight.dtype)
        .map(|format| format.row_bytes(weight.cols as u32));
    #[cfg(not(feature = "gpu"))]
    let bytes = weight.dtype.row_bytes(weight.cols);
    bytes.unwrap_or(4 * weight.cols) as u64
}

/// Opens the devices of the options.
///
/// # Errors
/// A device cannot be opened, or two devices have one name.
pub fn open_devices(options: &DeviceOptions) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let gpu = GpuSettings { check: options.gpus.check, ..GpuSettings::default() };
    open_with(options, &Opening { tracer: Tracer::off(), clock: RealClock::new(), gpu })
}

/// Opens the devices of the options for a model.
pub(crate) fn open_with(
    options: &DeviceOptions,
    with: &Opening,
) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    let cpu = [DeviceSpec::default()];
    let specs = if options.devices.is_empty() { &cpu[..] } else { &options.devices };
    let socs = Socs::read(specs)?;
    let plain = |spec: &DeviceSpec| {
        let own = match (&spec.npu, &spec.gpu) {
            (Some(_), _) => "npu",
            (_, Some(_)) => "gpu",
            (None, None) => "cpu",
        };
        Ok(socs.processor(spec)?.map_or(own, |(_, p)| &*p.name))
    };
    let plain: Vec<&str> = specs.iter().map(plain).collect::<Result<_, DeviceError>>()?;
    let devices = names(specs, &plain)?.into_iter().zip(specs).map(|(name, spec)| {
        if let Some((board, processor)) = socs.processor(spec)? {
            let device = VirtualDevice::on(board, &name, processor)?;
            return Ok(Arc::new(device) as Arc<dyn Device>);
        }
        if let Some(npu) = spec.npu {
            if npu.provider.unwrap_or(OWN_NPU) == Provider::CoreMl {
                return open_core_ml(name, options, with);
            }
            let opened = NpuDevice::open(options.npu.options(name.clone(), npu, with));
            let npu =
                opened.map_err(|e| DeviceError::System { device: name, why: e.to_string() })?;
            return Ok(Arc::new(npu) as Arc<dyn Device>);
        }
        if let Some(gpu) = &spec.gpu {
            let settings = &with.gpu;
            let gpu = open_gpu(name, gpu, options, settings)?;
            let checked = || Arc::new(checked_device(gpu.clone(), reference_cpu, settings.clone()));
            return Ok(if settings.check { checked() } else { gpu });
        }
        open_cpu(name, spec, options, None)
    });
    devices.collect()
}

/// Whose NPU plain `npu` is, if the system has one of its own.
const OWN_NPU: Provider =
    if cfg!(target_vendor = "apple") { Provider::CoreMl } else { Provider::Reference };

/// Opens Core ML, or what stands in for it.
fn open_core_ml(
    name: String,
    options: &DeviceOptions,
    with: &Opening,
) -> Result<Arc<dyn Device>, DeviceError> {
    let NpuSettings { core_ml, row_buckets, rewrites, .. } = options.npu.clone();
    let cache = with.gpu.kept().map(|kept| Arc::new(kept) as _);
    #[cfg(target_vendor = "apple")]
    let core_ml = core_ml.or_else(|| Some(Arc::new(npu::mil::AppleCoreMl::beside_packages())));
    let failed = |why: String| DeviceError::System { device: name.clone(), why };
    let absent = "Core ML is part of macOS and iOS; troika devices says which NPUs are here";
    let runtime = core_ml.ok_or_else(|| failed(absent.into()))?;
    let usual = rewrites == Rewrites::default();
    let rewrites = if usual { Rewrites::of_core_ml() } else { rewrites };
    let (tracer, clock) = (with.tracer.clone(), with.clock);
    let of = CoreMlDeviceOptions {
        name: name.clone(),
        runtime,
        cache,
        row_buckets,
        rewrites,
        tracer,
        clock,
    };
    let device = CoreMlDevice::open(of).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(device))
}

/// Opens a CPU device, whose products an observer sees.
fn open_cpu(
    name: String,
    spec: &DeviceSpec,
    options: &DeviceOptions,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Arc<dyn Device>, DeviceError> {
    let threads = spec.cores.as_ref().map_or_else(|| options.cpu_threads(), Vec::len);
    let cores = spec.cores.clone().or_else(|| options.cores.clone());
    let isa = spec.isa.as_deref().or(options.isa.as_deref()).map(find_isa).transpose()?;
    Ok(Arc::new(CpuDevice::new(CpuOptions {
        name,
        threads,
        cores,
        isa,
        observer,
        calibrated: spec.as_npu,
        ..CpuOptions::default()
    })?))
}

/// The CPU, which other devices' kernels are compared with.
pub(crate) fn reference_cpu() -> Result<Arc<dyn Device>, DeviceError> {
    let options = DeviceOptions { threads: Some(1), ..DeviceOptions::default() };
    open_cpu("cpu".into(), &DeviceSpec::default(), &options, None)
}

/// Compares each kernel of a device with the CPU's. `progress` hears how many of how many are done,
/// and says whether to go on.
///
/// # Errors
/// Nothing is known of a kernel: the CPU does not compute a case, or the device failed in a run.
pub fn check_device(
    device: &dyn Device,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Vec<CheckedKernel>, DeviceError> {
    Check { device, reference: reference_cpu()? }.all(progress)
}

/// A CPU device whose products are shown to an observer.
pub(crate) fn observed_cpu(
    options: &DeviceOptions,
    observer: Arc<dyn Observer>,
) -> Result<Arc<dyn Device>, DeviceError> {
    open_cpu("cpu".into(), &DeviceSpec::default(), options, Some(observer))
}

/// Joules that the machines of a virtual clock have used since they began; `None` where they are not
/// known, and for real time.
pub(crate) fn joules(clock: &dyn Clock) -> Option<f64> {
    (clock as &dyn Any).downcast_ref::<VirtualClock>()?.joules()
}

/// For how long CPUs that go by a virtual clock have worked since they began; `None` for real time.
pub(crate) fn cpu_time(clock: &dyn Clock) -> Option<Duration> {
    Some((clock as &dyn Any).downcast_ref::<VirtualClock>()?.cpu_time())
}

/// The clock of virtual devices, if all devices are virtual: time is then modelled.
pub fn virtual_clock<'a>(
    devices: impl IntoIterator<Item = &'a Arc<dyn Device>>,
) -> Option<Arc<dyn Clock>> {
    let mut devices = devices.into_iter();
    let clock = devices.next()?.clock()?;
    let same = |other: Arc<dyn Clock>| std::ptr::addr_eq(Arc::as_ptr(&other), Arc::as_ptr(&clock));
    devices.all(|d| d.clock().is_some_and(same)).then_some(clock)
}

/// The files of virtual devices, each read once. All devices share one clock.
struct Socs {
    files: HashMap<PathBuf, (Soc, Arc<Board>)>,
}

impl Socs {
    fn read(specs: &[DeviceSpec]) -> Result<Socs, DeviceError> {
        let mut files = HashMap::new();
        let clock: Arc<VirtualClock> = Arc::default();
        for spec in specs {
            let Some(processor) = &spec.processor else { continue };
            if !files.contains_key(&processor.file) {
                let soc = Soc::read(&processor.file).map_err(|e| refused(spec, e))?;
                let board = Board::new(&soc, clock.clone());
                files.insert(processor.file.clone(), (soc, board));
            }
        }
        Ok(Socs { files })
    }

    /// The processor of a virtual device; `None` for other devices.
    fn processor(
        &self,
        spec: &DeviceSpec,
    ) -> Result<Option<(&Arc<Board>, &troika_sim::Processor)>, DeviceError> {
        let Some(wanted) = &spec.processor else { return Ok(None) };
        let Some((soc, board)) = self.files.get(&wanted.file) else { return Ok(None) };
        let processor = soc.processor(wanted.name.as_deref()).map_err(|e| refused(spec, e))?;
        Ok(Some((board, processor)))
    }
}

/// The SoC that all devices are processors of, and the name of each one's processor.
pub(crate) fn soc_of(options: &DeviceOptions) -> Result<Option<(Soc, Vec<String>)>, DeviceError> {
    let socs = Socs::read(&options.devices)?;
    let name = |spec| Ok(socs.processor(spec)?.map(|(_, p)| p.name.clone()));
    let names: Option<Vec<String>> =
        options.devices.iter().map(name).collect::<Result<_, DeviceError>>()?;
    let one = names.filter(|_| socs.files.len() == 1);
    Ok(one.zip(socs.files.into_values().next()).map(|(names, (soc, _))| (soc, names)))
}

fn refused(spec: &DeviceSpec, error: SocError) -> DeviceError {
    let device = spec.name.clone().unwrap_or_else(|| "virtual".into());
    DeviceError::System { device, why: error.to_string() }
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

/// Opens a GPU.
#[cfg(feature = "gpu")]
fn open_gpu(
    name: String,
    spec: &GpuSpec,
    options: &DeviceOptions,
    settings: &GpuSettings,
) -> Result<Arc<dyn Device>, DeviceError> {
    let memory = options.limit_of(&name);
    let own = troika_gpu::GpuOptions {
        name: name.clone(),
        spec: spec.clone(),
        memory,
        binding_limit: None,
        own_memory: options.devices.len() == 1 || options.gpus.own_memory,
        kept: settings.kept().map(|kept| Arc::new(kept) as _),
    };
    let opened = troika_gpu::GpuDevice::open(own);
    let gpu = opened.map_err(|e| DeviceError::System { device: name, why: e.to_string() })?;
    Ok(Arc::new(gpu))
}

impl troika_npu::GraphCache for KeptOfDevices {
    fn get(&self, key: &troika_npu::GraphKey) -> Option<Vec<u8>> {
        self.folder.graph(&key.0)
    }

    fn put(&self, key: &troika_npu::GraphKey, bytes: &[u8]) {
        // A cache that cannot be written costs the next start some time.
        if let Err(e) = self.folder.keep_graph(&key.0, bytes) {
            let dir = self.folder.dir().display();
            self.notes.add(format!("compiled graphs are not kept in {dir} ({e})"));
        }
    }

    fn packages(&self) -> Option<PathBuf> {
        let folder = self.folder.graphs();
        std::fs::create_dir_all(&folder).ok().map(|()| folder)
    }

    fn keep_package(&self, key: &troika_npu::GraphKey, made: &Path) -> Option<PathBuf> {
        let kept = self.folder.keep_package(&key.0, made);
        kept.inspect_err(|e| self.notes.add(format!("no package is kept: {e}"))).ok()
    }
}

#[cfg(feature = "gpu")]
impl troika_gpu::PipelineStore for KeptOfDevices {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.read(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        self.keep(name, bytes);
    }
}

#[cfg(not(feature = "gpu"))]
fn open_gpu(
    _: String,
    spec: &GpuSpec,
    _: &DeviceOptions,
    _: &GpuSettings,
) -> Result<Arc<dyn Device>, DeviceError> {
    match *spec {}
}

#[cfg(test)]
mod tests {
    use super::{DeviceOptions, DeviceSpec, ProcessorSpec, names, open_devices, virtual_clock};

    #[test]
    fn devices_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<DeviceSpec>();
        let spec = |name: Option<&str>, cores: Option<&[usize]>| DeviceSpec {
            name: name.map(String::from),
            processor: None,
            npu: None,
            gpu: None,
            cores: cores.map(<[usize]>::to_vec),
            isa: None,
            as_npu: false,
        };
        let virtual_spec = |name: Option<&str>, file: &str, processor: Option<&str>| DeviceSpec {
            processor: Some(ProcessorSpec { file: file.into(), name: processor.map(String::from) }),
            ..spec(name, None)
        };
        for (text, expected) in [
            ("virtual:a.toml", virtual_spec(None, "a.toml", None)),
            ("n=virtual:a.toml", virtual_spec(Some("n"), "a.toml", None)),
            ("n=virtual:b/a.toml:npu", virtual_spec(Some("n"), "b/a.toml", Some("npu"))),
            ("virtual:C:\\a.toml:npu", virtual_spec(None, "C:\\a.toml", Some("npu"))),
            ("virtual:x=y/a.toml:npu", virtual_spec(None, "x=y/a.toml", Some("npu"))),
            ("virtual:a.toml:b/c.toml:npu", virtual_spec(None, "a.toml:b/c.toml", Some("npu"))),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        assert_eq!(read("cpu"), Ok(spec(None, None)));
        if let Some(&core) = super::usable_cores().first() {
            let text = format!("a=cpu:{core}");
            assert_eq!(read(&text), Ok(spec(Some("a"), Some(&[core]))));
        }
        let scalar = DeviceSpec { isa: Some("scalar".into()), ..spec(Some("b.1"), None) };
        assert_eq!(read("b.1=cpu@scalar"), Ok(scalar));
        for wrong in [
            "",
            "tpu",
            "gpu:",
            "gpus",
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
            "virtual",
            "virtual:",
            "virtual:.toml",
            "virtual:a.json",
            "virtual:a.toml:",
            "a b=virtual:a.toml",
            "virtual:a.toml@scalar",
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
        let names = |texts: &[&str], plain: &[&str]| names(&specs(texts), plain);
        let three = ["cpu"; 3];
        assert_eq!(names(&["cpu", "cpu", "cpu"], &three).unwrap(), ["cpu", "cpu1", "cpu2"]);
        assert_eq!(names(&["cpu", "cpu1=cpu", "cpu"], &three).unwrap(), ["cpu", "cpu1", "cpu2"]);
        assert!(names(&["a=cpu", "a=cpu"], &three).unwrap_err().to_string().contains("a"));
        let mixed = ["cpu", "virtual:a.toml", "cpu1=virtual:a.toml", "virtual:a.toml", "cpu"];
        let plain = ["cpu", "npu", "npu", "npu", "cpu"];
        assert_eq!(names(&mixed, &plain).unwrap(), ["cpu", "npu", "cpu1", "npu1", "cpu2"]);
    }

    fn example(rest: &str) -> String {
        format!("virtual:{}/../../socs/example.toml{rest}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn virtual_devices_open_and_share_a_clock() {
        let open = |texts: &[String]| {
            let devices = texts.iter().map(|t| t.parse().unwrap()).collect();
            open_devices(&DeviceOptions { devices, ..DeviceOptions::default() })
        };
        let devices = open(&[example(":npu"), example(":gpu"), "cpu".into()]).unwrap();
        let names: Vec<&str> = devices.iter().map(|d| d.name()).collect();
        assert_eq!(names, ["npu", "gpu", "cpu"]);
        assert!(virtual_clock(&devices[..2]).is_some() && virtual_clock(&devices[..1]).is_some());
        assert!(virtual_clock(&devices).is_none() && virtual_clock(&devices[2..]).is_none());
        assert!(virtual_clock(&[]).is_none());
        let others = open(&[example(":npu")]).unwrap();
        assert!(virtual_clock([&devices[0], &others[0]]).is_none(), "clocks of two calls");
        for (wrong, says) in [
            (example(""), "say which one is meant"),
            (example(":tpu"), "none of them is named \"tpu\""),
            ("virtual:there-is-no.toml".into(), "there-is-no.toml cannot be read"),
        ] {
            let e = open(&[wrong]).err().unwrap().to_string();
            assert!(e.contains(says) && !e.contains('\n'), "{e}");
        }
    }
}
