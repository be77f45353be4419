//! The GPUs of this machine, as their drivers describe them.

use serde_json::{Value, json};

/// A GPU of this machine, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq)]
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
    pub facts: Vec<(String, String)>,
}

impl GpuAdapter {
    /// All but the facts, as a line of JSON that [`GpuAdapter::from_line`] reads.
    pub fn to_line(&self) -> String {
        let GpuAdapter { name, is_software, has_own_memory, memory, free, binding, fault, .. } =
            self;
        let about = json!([name, is_software, has_own_memory, memory, free, binding, fault]);
        about.to_string()
    }

    /// The adapter of a line; `None` if the line is another one.
    pub fn from_line(line: &str) -> Option<GpuAdapter> {
        let fields: [Value; 7] = serde_json::from_str::<Vec<Value>>(line).ok()?.try_into().ok()?;
        let [name, software, own, memory, free, binding, fault] = fields;
        Some(GpuAdapter {
            name: name.as_str()?.into(),
            is_software: software.as_bool()?,
            has_own_memory: own.as_bool()?,
            memory: memory.as_u64(),
            free: free.as_u64(),
            binding: binding.as_u64()?,
            fault: fault.as_str().map(String::from),
            facts: Vec::new(),
        })
    }
}

/// The adapters of this machine, in the order of their numbers. None without a driver, or in a build
/// without GPU devices.
#[cfg(feature = "gpu")]
pub fn gpu_adapters() -> Vec<GpuAdapter> {
    let described = |adapter: &troika_gpu::Adapter| GpuAdapter {
        name: adapter.name().to_string(),
        is_software: adapter.kind() == troika_gpu::AdapterKind::Software,
        has_own_memory: adapter.has_own_memory(),
        memory: adapter.memory(),
        free: adapter.usable(),
        binding: adapter.binding(),
        fault: adapter.fault(),
        facts: adapter.facts(),
    };
    troika_gpu::adapters().iter().map(described).collect()
}

#[cfg(not(feature = "gpu"))]
/// None: this build has no GPU devices.
pub fn gpu_adapters() -> Vec<GpuAdapter> {
    Vec::new()
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
        for other in ["", "error: no display", "[1]", "[\"A\", true, true, 1, 1, null, null]"] {
            assert_eq!(GpuAdapter::from_line(other), None, "{other:?}");
        }
    }
}
