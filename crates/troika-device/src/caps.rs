//! What a device can do.

use troika_graph::{ActivationFormat, DType};

use crate::memory::SpaceId;

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
    /// With static shapes: the numbers of rows that graphs are compiled for, unless a plan says
    /// otherwise; ascending.
    pub row_buckets: Vec<usize>,
    /// Memory spaces that it reads and writes without a copy; never none. Its own memory is the
    /// first.
    pub spaces: Vec<SpaceId>,
    /// Names how it computes: devices with equal names give equal bits. [`Caps::NO_NUMERICS`] if it
    /// does not.
    pub numerics: String,
    /// Most bytes of one binding, if limited: of the rows of an input or output, and of a **slab**
    /// of a state. A state's view may be larger; the device binds it slab by slab, each of as many
    /// whole pages as the limit holds ([`Caps::slab_pages`]), so that no page lies in two of them.
    pub max_binding_bytes: Option<u64>,
    /// Weight types it reads as they are.
    pub weight_dtypes: Vec<DType>,
    /// Activation formats, besides f32, that its products gain from.
    pub activation_formats: Vec<ActivationFormat>,
    /// Largest graph with its weights, in bytes, if limited.
    pub max_graph_bytes: Option<u64>,
    /// Most bytes of all loaded weights together, if limited.
    pub max_resident_bytes: Option<u64>,
    /// Lists that may be in flight on one queue.
    pub queue_depth: usize,
    /// Whether its queues wait for other queues by themselves ([`crate::CommandList::waits`]). If
    /// not, the scheduler hands them over what waits for nobody any more.
    pub queue_waits: bool,
    /// Whether its queues run functions of the host ([`crate::Work::Host`], [`crate::Work::Load`]).
    /// If not, they refuse such a task by its name.
    pub host_tasks: bool,
    /// Inputs and outputs may be bound to rows that lie apart, so that some columns of a value can
    /// be computed next to another device's. If not, such bindings are refused when they are
    /// submitted, by the value's name.
    pub strided_rows: bool,
    /// Weights become part of the code, so that each graph is compiled by itself. If not, graphs of
    /// one shape share code ([`troika_graph::Subgraph::same_code`]).
    pub bakes_weights: bool,
    /// Facts for people: cores, instruction sets, driver versions, as (name, value).
    pub facts: Vec<(String, String)>,
}

impl Caps {
    /// The [`Caps::numerics`] of a device that only models time.
    pub const NO_NUMERICS: &'static str = "none";

    /// Pages of so many bytes in a slab; `None` when not even one page can be bound.
    pub fn slab_pages(&self, page_bytes: u64) -> Option<u64> {
        let most = self.max_binding_bytes.unwrap_or(u64::MAX);
        Some(most / page_bytes.max(1)).filter(|pages| *pages > 0)
    }

    /// Whether the device computes values. If not, what it writes is nobody's to read.
    pub fn computes(&self) -> bool {
        self.numerics != Caps::NO_NUMERICS
    }
}
