//! What a device can do.

use troika_graph::{ActivationFormat, DType};

/// The class of a device. Only the planner and the device's own crate may look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Central processor.
    Cpu,
    /// Graphics processor.
    Gpu,
    /// Neural processor.
    Npu,
    /// Modelled, in virtual time.
    Virtual,
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Gpu => "GPU",
            DeviceKind::Npu => "NPU",
            DeviceKind::Virtual => "virtual",
        })
    }
}

/// Capabilities and limits.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Runs graphs of fixed shape only: `rows` and `kv_len` must be bound before compiling.
    pub static_shapes: bool,
    /// Weight types it reads as they are.
    pub weight_dtypes: Vec<DType>,
    /// Activation formats, besides f32, that its products gain from.
    pub activation_formats: Vec<ActivationFormat>,
    /// Largest graph with its weights, in bytes, if limited.
    pub max_graph_bytes: Option<u64>,
    /// Most bytes of all executables together, if limited.
    pub max_resident_bytes: Option<u64>,
    /// Lists that may be in flight on one queue.
    pub queue_depth: usize,
    /// Products write results whose rows lie apart, so that a product's columns can be computed
    /// next to another device's. What else is bound to rows that lie apart is refused when it is
    /// submitted, by the value's name.
    pub strided_rows: bool,
    /// Facts for people: cores, instruction sets, driver versions, as (name, value).
    pub facts: Vec<(String, String)>,
}
