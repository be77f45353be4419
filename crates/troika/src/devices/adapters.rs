//! The GPUs of this machine, as their drivers describe them.

use serde::{Deserialize, Serialize};

#[cfg(feature = "gpu")]
pub use troika_gpu::GpuSpec;

/// A GPU of this machine, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuAdapter {
    /// Its name.
    pub name: String,
    /// Whether the host's processor stands in for a GPU.
    pub is_software: bool,
    /// Whether its memory is not the host's.
    pub has_own_memory: bool,
    /// Bytes of its memory, where the driver tells.
    pub memory: Option<u64>,
    /// Bytes of its own memory that may be taken: what is free of it, less what its system needs.
    pub free: Option<u64>,
    /// The most bytes of one binding.
    pub binding: u64,
    /// What is missing, if kernels cannot run on it.
    pub fault: Option<String>,
    /// Facts for people, as (name, value).
    #[serde(skip)]
    pub facts: Vec<(String, String)>,
}

impl GpuAdapter {
    /// All but the facts, as a line of JSON that [`GpuAdapter::from_line`] reads.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The adapter of a line; `None` if the line is another one.
    pub fn from_line(line: &str) -> Option<GpuAdapter> {
        serde_json::from_str(line).ok()
    }
}

/// Which adapter; in this build there is none.
#[cfg(not(feature = "gpu"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSpec {}

#[cfg(not(feature = "gpu"))]
impl GpuSpec {
    /// Refuses every text.
    ///
    /// # Errors
    /// That this build has no GPU devices.
    pub fn parse(_: &str) -> Result<GpuSpec, String> {
        Err("this build has no GPU devices; build it with the feature gpu".into())
    }
}

/// The adapters of this machine, in the order of their numbers. None without a driver, or in a build
/// without GPU devices.
pub fn gpu_adapters() -> Vec<GpuAdapter> {
    #[cfg(feature = "gpu")]
    return troika_gpu::adapters().iter().map(described).collect();
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}

/// The adapter that the user means, which counts as a GPU also where it is software.
#[cfg(feature = "gpu")]
pub(crate) fn gpu_adapter(spec: &GpuSpec) -> Option<GpuAdapter> {
    let adapter = troika_gpu::choose(spec).ok()?;
    Some(GpuAdapter { is_software: false, ..described(&adapter) })
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn gpu_adapter(spec: &GpuSpec) -> Option<GpuAdapter> {
    match *spec {}
}

#[cfg(feature = "gpu")]
fn described(adapter: &troika_gpu::Adapter) -> GpuAdapter {
    GpuAdapter {
        name: adapter.name().to_string(),
        is_software: adapter.kind() == troika_gpu::AdapterKind::Software,
        has_own_memory: adapter.has_own_memory(),
        memory: adapter.memory(),
        free: adapter.usable(),
        binding: adapter.binding(),
        fault: adapter.fault(),
        facts: adapter.facts(),
    }
}

#[cfg(test)]
mod tests {
    use super::GpuAdapter;

    #[test]
    fn adapters_are_read_as_they_are_written() {
        let plain = GpuAdapter { name: "A B".into(), binding: 7, ..GpuAdapter::default() };
        let full = GpuAdapter {
            is_software: true,
            has_own_memory: true,
            memory: Some(8 << 30),
            free: Some(0),
            fault: Some("it is old".into()),
            ..plain.clone()
        };
        for adapter in [plain.clone(), full] {
            assert_eq!(GpuAdapter::from_line(&adapter.to_line()), Some(adapter));
        }
        let hostile = GpuAdapter { name: "A\n\t[B".into(), ..plain.clone() };
        assert!(!hostile.to_line().contains('\n'));
        assert_eq!(GpuAdapter::from_line(&hostile.to_line()), Some(hostile));
        for other in ["", "error: no display", "[1]", "{\"name\": \"A\"}"] {
            assert_eq!(GpuAdapter::from_line(other), None, "{other:?}");
        }
    }
}
