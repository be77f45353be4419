//! The adapters of this machine, and which one is meant.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use crate::error::GpuError;
use crate::kernels;
use crate::quirks::fault;
use crate::vulkan;

/// Which adapter to open: `gpu`, `gpu:1`, or `gpu:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuSpec {
    /// The first one that is not software.
    #[default]
    First,
    /// By its number in [`adapters`].
    Number(usize),
    /// By a part of its name or of its driver's, in any case.
    Named(String),
}

impl GpuSpec {
    /// Reads what follows `gpu` in the user's notation: nothing, `:1`, or `:NAME`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<GpuSpec, String> {
        if text.is_empty() {
            return Ok(GpuSpec::First);
        }
        let wrong = || {
            "a GPU is gpu, gpu:NUMBER, or gpu:NAME with a part of the adapter's or driver's name"
                .to_string()
        };
        let which = text.strip_prefix(':').filter(|w| !w.is_empty()).ok_or_else(wrong)?;
        match which.parse() {
            Ok(number) => Ok(GpuSpec::Number(number)),
            Err(_) if which.chars().any(char::is_control) => Err(wrong()),
            Err(_) => Ok(GpuSpec::Named(which.to_string())),
        }
    }
}

impl std::fmt::Display for GpuSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GpuSpec::First => f.write_str("gpu"),
            GpuSpec::Number(number) => write!(f, "gpu:{number}"),
            GpuSpec::Named(name) => write!(f, "gpu:{name}"),
        }
    }
}

/// The kinds of adapters, in the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A processor with memory of its own.
    Discrete,
    /// A processor that shares the host's memory.
    Integrated,
    /// A part of a processor, lent to a virtual machine.
    Virtual,
    /// What its driver does not tell.
    Other,
    /// The host's processor in the place of a GPU.
    Software,
}

impl AdapterKind {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            AdapterKind::Discrete => "discrete",
            AdapterKind::Integrated => "integrated",
            AdapterKind::Virtual => "virtual",
            AdapterKind::Other => "of unknown kind",
            AdapterKind::Software => "software",
        }
    }
}

/// An adapter and what its driver says about it.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) inner: wgpu::Adapter,
    info: wgpu::AdapterInfo,
    /// Bytes of memory that is the device's own, where the driver tells.
    memory: Option<u64>,
}

/// Waits for a future of the interface, which is ready at once where drivers are native.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// All adapters of this machine: discrete ones first, then integrated ones, software last; those of
/// one kind in the driver's order. None if there is no driver.
pub fn adapters() -> Vec<Adapter> {
    // One for the process, since drivers are loaded with it.
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| {
        let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
        let description = wgpu::InstanceDescriptor::new_without_display_handle();
        wgpu::Instance::new(wgpu::InstanceDescriptor { backends, ..description })
    });
    let found = now(instance.enumerate_adapters(wgpu::Backends::all()));
    let mut all: Vec<Adapter> = found.into_iter().map(Adapter::new).collect();
    // A processor that two interfaces offer is one.
    let processor = |a: &Adapter| (a.info.vendor, a.info.device);
    let is_dx12 = |a: &Adapter| a.info.backend == wgpu::Backend::Dx12;
    let others: Vec<_> = all.iter().filter(|a| !is_dx12(a)).map(processor).collect();
    all.retain(|a| !is_dx12(a) || !others.contains(&processor(a)));
    all.sort_by_key(Adapter::kind);
    all
}

/// The adapter that is meant.
///
/// # Errors
/// There is none, none that is meant, or only software that was not named.
pub fn choose(spec: &GpuSpec) -> Result<Adapter, GpuError> {
    let all = adapters();
    let Some(first) = all.first() else {
        return Err(GpuError::NotFound(
            "no GPU adapter was found: no driver for Vulkan, Metal or Direct3D 12 is installed, or \
             it has no device"
                .into(),
        ));
    };
    let unknown = || {
        let list = all.iter().enumerate().map(|(i, a)| format!("gpu:{i} {}", a.name()));
        let known = list.collect::<Vec<_>>().join(", ");
        GpuError::NotFound(format!("no GPU adapter is {spec}; there are {known}"))
    };
    let found = match spec {
        GpuSpec::First if first.kind() == AdapterKind::Software => {
            let name = first.name();
            let short = name.split([' ', '(']).next().unwrap_or_default();
            return Err(GpuError::Unusable(format!(
                "no GPU was found but the software adapter {name}; it is slow, and is taken only \
                 when it is named, as in --device gpu:{short}"
            )));
        }
        GpuSpec::First => Some(first),
        GpuSpec::Number(number) => all.get(*number),
        GpuSpec::Named(name) => all.iter().find(|a| a.is_called(name)),
    };
    found.cloned().ok_or_else(unknown)
}

impl Adapter {
    fn new(inner: wgpu::Adapter) -> Adapter {
        let info = inner.get_info();
        let memory = vulkan::memory(&inner);
        Adapter { inner, info, memory }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Its kind.
    pub fn kind(&self) -> AdapterKind {
        match self.info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Other => AdapterKind::Other,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
        }
    }

    /// Whether its own memory is not the host's, so that weights and values are copied there.
    pub fn has_own_memory(&self) -> bool {
        self.kind() == AdapterKind::Discrete
    }

    /// Whether it can work in the host's memory, which is its own, too.
    pub fn shares_memory(&self) -> bool {
        matches!(self.kind(), AdapterKind::Integrated | AdapterKind::Software)
            && vulkan::takes_host_memory(&self.inner)
    }

    /// Bytes of the memory that it reads fastest, where the driver tells.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// Bytes of memory of its own that may be taken, where the driver tells: some of it is the
    /// system's, some may be taken already.
    pub fn usable(&self) -> Option<u64> {
        let own = self.memory.filter(|_| self.has_own_memory())?;
        Some(vulkan::free(&self.inner).unwrap_or(own).min(own / 10 * 9))
    }

    /// The most bytes of one binding.
    pub fn binding(&self) -> u64 {
        self.inner.limits().max_storage_buffer_binding_size
    }

    /// The driver, its version, and the interface, as one line that names what numbers depend on.
    pub fn driver(&self) -> String {
        let wgpu::AdapterInfo { driver, driver_info, .. } = &self.info;
        let parts = [driver.as_str(), driver_info.as_str()];
        let parts: Vec<&str> = parts.into_iter().filter(|p| !p.is_empty()).collect();
        parts.join(" ")
    }

    fn is_called(&self, part: &str) -> bool {
        let part = part.to_lowercase();
        let texts = [&self.info.name, &self.info.driver, &self.info.driver_info];
        texts.iter().any(|text| text.to_lowercase().contains(&part))
    }

    /// What names compiled kernels that this adapter and driver can use again; `None` if its
    /// interface gives none out.
    pub(crate) fn cache_key(&self) -> Option<String> {
        let of_adapter = wgpu::util::pipeline_cache_key(&self.info)?;
        let can = self.inner.features().contains(wgpu::Features::PIPELINE_CACHE);
        can.then(|| {
            let (name, driver, version) = (self.name(), self.driver(), env!("CARGO_PKG_VERSION"));
            format!("{of_adapter} {name} {driver} {version}")
        })
    }

    /// What is missing, if kernels cannot run on it.
    pub fn fault(&self) -> Option<String> {
        if let Some(why) = fault(&self.info.name, &self.info.driver) {
            return Some(why.to_string());
        }
        let (features, limits) = (self.inner.features(), self.inner.limits());
        if !features.contains(wgpu::Features::IMMEDIATES) {
            return Some("its driver is too old: it has no immediates (push constants)".into());
        }
        // What every kernel may count on.
        let least = [
            ("bytes of immediates", limits.max_immediate_size, 128),
            ("buffers a kernel", limits.max_storage_buffers_per_shader_stage, 8),
            ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, 16384),
            ("threads a workgroup", limits.max_compute_invocations_per_workgroup, 256),
            ("threads a row of a workgroup", limits.max_compute_workgroup_size_x, 256),
            ("workgroups a row", limits.max_compute_workgroups_per_dimension, kernels::MAX_GROUPS),
        ];
        let short = least.into_iter().find(|(_, has, needs)| has < needs);
        short.map(|(what, has, needs)| format!("it has {has} {what}, and {needs} are needed"))
    }

    /// Whether kernels for matrix units run on it.
    pub(crate) fn has_matrix_units(&self) -> bool {
        let limits = self.inner.limits();
        let threads = [self.info.subgroup_min_size, self.info.subgroup_max_size];
        let fits = |m: &wgpu::CooperativeMatrixProperties| {
            [m.m_size, m.n_size, m.k_size] == [kernels::MATRIX_SIZE; 3]
                && m.ab_type == wgpu::CooperativeScalarType::F16
                && m.cr_type == wgpu::CooperativeScalarType::F32
        };
        self.inner.features().contains(MATRIX_FEATURES)
            && threads == [kernels::MATRIX_THREADS; 2]
            && limits.max_compute_workgroup_storage_size >= kernels::MATRIX_BYTES
            && self.inner.cooperative_matrix_properties().iter().any(fits)
    }

    /// Facts for people, as (name, value).
    pub fn facts(&self) -> Vec<(String, String)> {
        let (features, limits) = (self.inner.features(), self.inner.limits());
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let memory = match (self.memory, self.has_own_memory()) {
            (Some(bytes), true) => format!("{} of its own", mib(bytes)),
            (Some(bytes), false) => format!("{} shared with the host", mib(bytes)),
            (None, true) => "its own".into(),
            (None, false) => "shared with the host".into(),
        };
        let has = [
            (wgpu::Features::SHADER_F16, "f16"),
            (wgpu::Features::SUBGROUP, "subgroups"),
            (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
            (wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, "mappable memory"),
            (wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative matrices"),
        ];
        let has: Vec<&str> =
            has.iter().filter(|(f, _)| features.contains(*f)).map(|(_, name)| *name).collect();
        let used = match self.fault() {
            None if self.has_matrix_units() => {
                "kernels in f32 and int8, immediates, matrix units".to_string()
            }
            None => "kernels in f32 and int8, immediates".to_string(),
            Some(why) => format!("nothing: {why}"),
        };
        let fact = |name: &str, value: String| (name.to_string(), value);
        vec![
            fact("adapter", format!("{} ({})", self.name(), self.kind().name())),
            fact("driver", self.driver()),
            fact("interface", self.info.backend.to_str().to_string()),
            fact("memory", memory),
            fact("most bytes of a binding", limits.max_storage_buffer_binding_size.to_string()),
            fact("most bytes of a buffer", limits.max_buffer_size.to_string()),
            fact("features", if has.is_empty() { "none".into() } else { has.join(", ") }),
            fact("used", used),
        ]
    }
}

/// What kernels for matrix units need.
pub(crate) const MATRIX_FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

#[cfg(test)]
mod tests {
    use super::{AdapterKind, GpuSpec};

    #[test]
    fn adapters_are_asked_for_by_number_or_name() {
        let read = GpuSpec::parse;
        assert_eq!(read(""), Ok(GpuSpec::First));
        assert_eq!(read(":7"), Ok(GpuSpec::Number(7)));
        assert_eq!(read(":llvmpipe"), Ok(GpuSpec::Named("llvmpipe".into())));
        assert_eq!(read(":RTX 3090").map(|s| s.to_string()), Ok("gpu:RTX 3090".into()));
        for wrong in [":", "1", "s", ":a\nb"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn software_comes_last() {
        assert!(AdapterKind::Discrete < AdapterKind::Integrated);
        assert!(AdapterKind::Other < AdapterKind::Software);
    }
}
