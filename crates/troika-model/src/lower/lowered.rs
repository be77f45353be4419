//! What lowering takes and makes.

use serde::{Deserialize, Serialize};
use troika_graph::partition::kv_heads;
use troika_graph::{DType, GraphError, StateKind, Subgraph};

use crate::spec::{Ffn, Key, Mixer, ModelSpec};

/// Parameters of lowering beyond the spec.
#[derive(Clone, Copy, Debug)]
pub struct LowerOptions {
    /// Upper bound of the symbol `rows`.
    pub max_rows: usize,
    /// Upper bound of the symbol `kv_len`.
    pub max_kv: usize,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
}

/// Shape and type of a bound weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    /// Output rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type in the store.
    pub dtype: DType,
}

/// Gives lowering the shapes and types of weights.
pub type WeightShapes<'a> = &'a dyn Fn(Key) -> Option<WeightShape>;

/// Index of an edge in [`Lowered::edges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(pub usize);

/// Index of a state in [`Lowered::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// A value that flows between segments, `[rows, cols]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The name in traces.
    pub name: String,
    /// Columns.
    pub cols: usize,
    /// F32 or I32.
    pub dtype: DType,
}

/// What layers keep of a sequence, `[rows, width]`: a row for each position, or one for all.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDecl {
    /// The name in traces and memory reports.
    pub name: String,
    /// Elements of a row.
    pub width: usize,
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// Index in [`Lowered::page_groups`].
    pub page_group: usize,
}

impl StateDecl {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.width)
    }
}

crate::named! {
    /// The part of a layer that a segment computes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SegmentKind {
        /// Token ids to rows.
        Embed = "embed",
        /// What a layer reads of the streams of AltUp, and their prediction.
        Streams = "streams",
        /// Norm, projections, q/k norm, rope.
        Qkv = "qkv",
        /// Cache append and attention.
        Attention = "attention",
        /// Output projection and residual.
        AttnOut = "attn_out",
        /// A whole mixer whose states have one row.
        Recurrence = "recurrence",
        /// Dense feed-forward and residual.
        Ffn = "ffn",
        /// Norm and choice of experts.
        Router = "router",
        /// Experts, shared expert and residual.
        Experts = "experts",
        /// What a layer adds from its own rows of the tokens.
        PerLayer = "per_layer",
        /// Final norm and logits.
        Head = "head",
    }
}

impl SegmentKind {
    /// What may be done with it.
    pub const fn traits(self) -> SegmentTraits {
        use ModelPart as P;
        let of = SegmentTraits {
            part: P::Ffn,
            by_columns: true,
            by_rows: true,
            by_experts: false,
            keeps_state: false,
            chooses: false,
        };
        match self {
            SegmentKind::Embed => SegmentTraits { part: P::Embed, by_columns: false, ..of },
            SegmentKind::Streams => SegmentTraits { part: P::Mixer, by_columns: false, ..of },
            SegmentKind::Qkv | SegmentKind::AttnOut => SegmentTraits { part: P::Mixer, ..of },
            SegmentKind::Attention => {
                SegmentTraits { part: P::Mixer, by_rows: false, keeps_state: true, ..of }
            }
            SegmentKind::Recurrence => {
                let (part, by_columns, by_rows) = (P::Mixer, false, false);
                SegmentTraits { part, by_columns, by_rows, keeps_state: true, ..of }
            }
            SegmentKind::Ffn => of,
            SegmentKind::PerLayer => SegmentTraits { by_columns: false, ..of },
            SegmentKind::Router => SegmentTraits { by_columns: false, chooses: true, ..of },
            SegmentKind::Experts => SegmentTraits { by_columns: false, by_experts: true, ..of },
            SegmentKind::Head => {
                SegmentTraits { part: P::Head, by_rows: false, chooses: true, ..of }
            }
        }
    }

    /// Whether it exists once per layer, and not before or behind the layers.
    pub const fn is_in_layers(self) -> bool {
        matches!(self.traits().part, ModelPart::Mixer | ModelPart::Ffn)
    }
}

/// The parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// Before the layers.
    Embed,
    /// What mixes positions in a layer.
    Mixer,
    /// A layer's feed-forward.
    Ffn,
    /// Behind the layers.
    Head,
}

/// What may be done with a kind of segment. Rules, the solver and splits ask this, not its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTraits {
    /// Where it is.
    pub part: ModelPart,
    /// Whether devices may share its columns or heads: it has no tables, and no experts.
    pub by_columns: bool,
    /// Whether devices may share a prompt's rows: none needs those before it, and all are computed.
    pub by_rows: bool,
    /// Whether devices may share its experts.
    pub by_experts: bool,
    /// Whether it changes a state: it stays where that is.
    pub keeps_state: bool,
    /// Whether it chooses experts or tokens: which are best must not depend on rounding.
    pub chooses: bool,
}

/// The kinds of segments that a model has, in execution order.
pub fn segment_kinds(spec: &ModelSpec) -> Vec<SegmentKind> {
    let all = segments(spec);
    SegmentKind::ALL.into_iter().filter(|kind| all.iter().any(|s| s.0 == *kind)).collect()
}

/// The segments of a model, with their layers, in execution order.
pub fn segments(spec: &ModelSpec) -> Vec<(SegmentKind, Option<usize>)> {
    use SegmentKind as S;
    let mut all = vec![(S::Embed, None)];
    for (i, layer) in spec.layers.iter().enumerate() {
        let mixer: &[SegmentKind] = match layer.mixer {
            Some(Mixer::Attention(_)) => &[S::Qkv, S::Attention, S::AttnOut],
            Some(
                Mixer::DecayingSum(_)
                | Mixer::ShortConv(_)
                | Mixer::Mamba2(_)
                | Mixer::DeltaRule(_),
            ) => &[S::Recurrence],
            None => &[],
        };
        let ffn: &[SegmentKind] = match layer.ffn {
            Some(Ffn::Dense(_)) => &[S::Ffn],
            Some(Ffn::Moe(_)) => &[S::Router, S::Experts],
            None => &[],
        };
        let beside = layer.beside.as_ref().map(|_| &S::Recurrence);
        let last = layer.per_layer.map(|_| &S::PerLayer);
        let first = spec.altup.map(|_| &S::Streams).into_iter();
        let kinds = first.chain(mixer).chain(beside).chain(ffn).chain(last);
        all.extend(kinds.map(|&kind| (kind, Some(i))));
    }
    all.push((S::Head, None));
    all
}

/// A subgraph with its place in the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// What it computes.
    pub kind: SegmentKind,
    /// Its layer (`None` for embed and head).
    pub layer: Option<usize>,
    /// The subgraph.
    pub graph: Subgraph,
    /// The edges of its inputs.
    pub inputs: Vec<EdgeId>,
    /// The states of its states.
    pub states: Vec<StateId>,
    /// The edges of its outputs.
    pub outputs: Vec<EdgeId>,
}

/// A lowered model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lowered {
    /// Segments in execution order; the last one is the head.
    pub segments: Vec<Segment>,
    /// Edges; the first two are the token ids and the positions, the last one the output.
    pub edges: Vec<Edge>,
    /// States.
    pub states: Vec<StateDecl>,
    /// Page groups: states of the same kind keep the same positions.
    pub page_groups: Vec<StateKind>,
}

impl Lowered {
    /// Token ids, `[rows, 1]` i32.
    pub const IDS: EdgeId = EdgeId(0);
    /// Positions, `[rows, 1]` i32.
    pub const POSITIONS: EdgeId = EdgeId(1);

    /// The number of key/value heads of the attention that reads a segment's results, by which their
    /// columns are divided; `None`: no attention reads them.
    pub fn heads_behind(&self, segment: &Segment) -> Option<usize> {
        let reads = |s: &&Segment| s.inputs.iter().any(|edge| segment.outputs.contains(edge));
        self.segments.iter().filter(reads).find_map(|s| kv_heads(&s.graph))
    }

    /// The state behind the last layer, which the head reads, `[rows, hidden]` f32.
    pub fn last_state(&self) -> EdgeId {
        self.segments.last().map_or(Lowered::IDS, |head| head.inputs[0])
    }

    /// The logits, `[rows, vocab]` f32.
    pub fn logits(&self) -> EdgeId {
        EdgeId(self.edges.len() - 1)
    }
}

/// What lowers a part of a model.
pub(super) type Result<T, E = LowerError> = std::result::Result<T, E>;

/// Why a spec could not be lowered.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// An inconsistent spec, or a required weight that was not bound.
    #[error("{0}")]
    Spec(String),
    /// The resulting subgraph is malformed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
