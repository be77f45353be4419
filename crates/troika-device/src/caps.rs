//! The capabilities of a device.

use troika_graph::{ActivationFormat, DType, ProductForm, Subgraph};

use crate::memory::SpaceId;

/// The class of a device. Only the planner and the device's own crate may use it.
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

/// How a device holds weights that are part of its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeWeights {
    /// Bytes of a float.
    pub float_bytes: usize,
    /// Whether quantized weights stay numbers of 4 or 8 bits with floats for each group
    /// ([`DType::level_bits`]).
    pub keeps_blocks: bool,
    /// Whether each number of rows that a graph is compiled for holds weights of its own.
    pub per_shape: bool,
    /// Bytes of each compiled graph beside its weights.
    pub graph_bytes: u64,
}

impl CodeWeights {
    /// Floats, once for each number of rows.
    pub const fn floats(float_bytes: usize) -> CodeWeights {
        CodeWeights { float_bytes, keeps_blocks: false, per_shape: true, graph_bytes: 0 }
    }

    /// Bytes of a row of weights of a type, once.
    pub fn row_bytes(self, dtype: DType, cols: usize) -> u64 {
        if !self.keeps_blocks || !dtype.is_quantized() {
            return (cols * self.float_bytes) as u64;
        }
        let of_group = size_of::<f32>() * (1 + usize::from(dtype.has_minimum()));
        (cols * dtype.level_bits() / 8 + cols / dtype.group_len() * of_group) as u64
    }
}

/// Capabilities and limits.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Takes only graphs of fixed shape: `rows` and `kv_len` must be bound before compiling.
    pub static_shapes: bool,
    /// With static shapes: the numbers of rows to compile for, ascending, unless a plan says
    /// otherwise.
    pub row_buckets: Vec<usize>,
    /// Memory spaces that it reads and writes without a copy; at least one. Its own memory comes
    /// first.
    pub spaces: Vec<SpaceId>,
    /// Identifies the numerics: devices with equal names give equal bits. [`Caps::NO_NUMERICS`] if
    /// it computes nothing.
    pub numerics: String,
    /// The most bytes of one binding, if limited: of the rows of an input or output, or of a
    /// **slab** of a state. A state's view may be larger: the device binds it slab by slab. A slab
    /// has as many whole pages as the limit allows ([`Caps::slab_pages`]).
    pub max_binding_bytes: Option<u64>,
    /// Weight types that it reads without conversion.
    pub weight_dtypes: Vec<DType>,
    /// Bytes of 256 weights in its memory, of types that do not lie there as they are stored.
    pub weight_bytes: Vec<(DType, u64)>,
    /// Activation formats, besides f32, that make its products faster.
    pub activation_formats: Vec<ActivationFormat>,
    /// The most bytes of a graph with its weights, if limited.
    pub max_graph_bytes: Option<u64>,
    /// The most graphs that are compiled and loaded at once, if limited.
    pub max_graphs: Option<usize>,
    /// The most bytes of all loaded weights together, if limited.
    pub max_resident_bytes: Option<u64>,
    /// The most lists in flight on one queue.
    pub queue_depth: usize,
    /// Whether its queues wait for other queues by themselves ([`crate::CommandList::waits`]). If
    /// not, the scheduler only submits work whose waits are over.
    pub queue_waits: bool,
    /// Whether its queues run host functions ([`crate::Work::Host`]). If not, they refuse such a task
    /// by its name.
    pub host_tasks: bool,
    /// Whether inputs and outputs may have gaps between rows, so that another device can compute
    /// other columns of the same value. If not, such bindings are refused when submitted, by the
    /// value's name.
    pub strided_rows: bool,
    /// The most numbers of a row that a copy to the host can pick ([`crate::CopyRows::top_k`]); 0
    /// if it copies whole rows only.
    pub top_k: usize,
    /// What the offset of an input or output in its buffer must be a multiple of; 1 if it may begin
    /// anywhere.
    pub offset_alignment: usize,
    /// Whether weights become part of the code, so that each graph that has any is compiled
    /// separately ([`Caps::shares_code`]).
    pub bakes_weights: bool,
    /// The forms in which products may take another time, so that a plan may choose
    /// ([`troika_graph::form_products`]). Without any, graphs have products as they are.
    pub forms: Vec<ProductForm>,
    /// How weights are held as part of the code of graphs. `None`: they are held once, as they are
    /// stored.
    pub code_weights: Option<CodeWeights>,
    /// Facts for people as (name, value): cores, instruction sets, driver versions.
    pub facts: Vec<(String, String)>,
}

impl Default for Caps {
    /// Those of a device without limits, in the host's memory, that takes one list at a time.
    fn default() -> Caps {
        Caps {
            static_shapes: false,
            row_buckets: Vec::new(),
            spaces: vec![SpaceId::HOST],
            numerics: String::new(),
            max_binding_bytes: None,
            weight_dtypes: Vec::new(),
            weight_bytes: Vec::new(),
            activation_formats: Vec::new(),
            max_graph_bytes: None,
            max_graphs: None,
            max_resident_bytes: None,
            queue_depth: 1,
            queue_waits: true,
            host_tasks: true,
            strided_rows: true,
            top_k: 0,
            offset_alignment: 1,
            bakes_weights: false,
            forms: Vec::new(),
            code_weights: None,
            facts: Vec::new(),
        }
    }
}

impl Caps {
    /// The [`Caps::numerics`] of a device that models time only.
    pub const NO_NUMERICS: &'static str = "none";

    /// Whether a graph shares its code with graphs of its shape
    /// ([`troika_graph::Subgraph::same_code`]).
    pub fn shares_code(&self, graph: &Subgraph) -> bool {
        !self.bakes_weights || graph.weights.is_empty()
    }

    /// Bytes of a row of weights in its memory.
    pub fn row_bytes(&self, dtype: DType, cols: usize) -> u64 {
        let stored = dtype.row_bytes(cols).unwrap_or(0) as u64;
        let own = self.weight_bytes.iter().find(|known| known.0 == dtype);
        own.map_or(stored, |(_, bytes)| (cols as u64 * bytes).div_ceil(256))
    }

    /// Number of pages in a slab; `None` when not even one page can be bound.
    pub fn slab_pages(&self, page_bytes: u64) -> Option<u64> {
        let most = self.max_binding_bytes.unwrap_or(u64::MAX);
        Some(most / page_bytes.max(1)).filter(|pages| *pages > 0)
    }

    /// Whether the device computes values. If not, its outputs must not be read.
    pub fn computes(&self) -> bool {
        self.numerics != Caps::NO_NUMERICS
    }
}
