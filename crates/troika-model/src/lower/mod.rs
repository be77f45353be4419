//! Lowering: a [`ModelSpec`] becomes static subgraphs, once.
//!
//! A layer gives the segments norm + QKV, attention, output projection, and feed-forward (or
//! router and experts). All but attention depend on the number of rows alone and are shared by
//! all chunks; attention also looks at the sequence so far.

mod attention;
mod emit;
mod ffn;
mod lowerer;
mod model;

use serde::{Deserialize, Serialize};
use troika_graph::{DType, GraphError, Subgraph, Window};

use crate::spec::{Ffn, Key, ModelSpec};

pub use model::lower;

/// What is not in the spec.
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

/// Where lowering asks for the types of weights.
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
    /// For traces.
    pub name: String,
    /// Columns.
    pub cols: usize,
    /// F32 or I32.
    pub dtype: DType,
}

/// A KV cache tensor, `[positions, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct StateDecl {
    /// For traces and memory reports.
    pub name: String,
    /// Elements per position.
    pub width: usize,
    /// F32, F16 or BF16.
    pub dtype: DType,
    /// Index in [`Lowered::page_groups`].
    pub page_group: usize,
}

/// The part of a layer a segment computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Token ids to rows.
    Embed,
    /// Norm, projections, q/k norm, rope.
    Qkv,
    /// Cache append and attention.
    Attention,
    /// Output projection and residual.
    AttnOut,
    /// Dense feed-forward and residual.
    Ffn,
    /// Norm and choice of experts.
    Router,
    /// Experts, shared expert and residual.
    Experts,
    /// Final norm and logits.
    Head,
}

impl SegmentKind {
    /// All kinds, in the order in which a token passes them.
    pub const ALL: [SegmentKind; 8] = [
        SegmentKind::Embed,
        SegmentKind::Qkv,
        SegmentKind::Attention,
        SegmentKind::AttnOut,
        SegmentKind::Ffn,
        SegmentKind::Router,
        SegmentKind::Experts,
        SegmentKind::Head,
    ];

    /// Whether each layer that has one has its own; the others stand before and behind the layers.
    pub const fn is_in_layers(self) -> bool {
        !matches!(self, SegmentKind::Embed | SegmentKind::Head)
    }

    /// Stable name, used in plans and traces.
    pub const fn name(self) -> &'static str {
        match self {
            SegmentKind::Embed => "embed",
            SegmentKind::Qkv => "qkv",
            SegmentKind::Attention => "attention",
            SegmentKind::AttnOut => "attn_out",
            SegmentKind::Ffn => "ffn",
            SegmentKind::Router => "router",
            SegmentKind::Experts => "experts",
            SegmentKind::Head => "head",
        }
    }
}

/// The segments that lowering a model gives, with their layers, in execution order.
pub fn segments(spec: &ModelSpec) -> Vec<(SegmentKind, Option<usize>)> {
    use SegmentKind as S;
    let mut all = vec![(S::Embed, None)];
    for (i, layer) in spec.layers.iter().enumerate() {
        let kinds: &[SegmentKind] = match layer.ffn {
            Ffn::Dense(_) => &[S::Qkv, S::Attention, S::AttnOut, S::Ffn],
            Ffn::Moe(_) => &[S::Qkv, S::Attention, S::AttnOut, S::Router, S::Experts],
        };
        all.extend(kinds.iter().map(|&kind| (kind, Some(i))));
    }
    all.push((S::Head, None));
    all
}

/// A subgraph with its place in the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// What it computes.
    pub kind: SegmentKind,
    /// Of which layer (none for embed and head).
    pub layer: Option<usize>,
    /// The subgraph.
    pub graph: Subgraph,
    /// Edges for its inputs.
    pub inputs: Vec<EdgeId>,
    /// States for its states.
    pub states: Vec<StateId>,
    /// Edges for its outputs.
    pub outputs: Vec<EdgeId>,
}

/// A lowered model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// Segments in execution order; the last one is the head.
    pub segments: Vec<Segment>,
    /// Edges; the first two are the token ids and the positions, the last one the logits.
    pub edges: Vec<Edge>,
    /// KV cache tensors.
    pub states: Vec<StateDecl>,
    /// Page groups: layers of one window keep the same positions.
    pub page_groups: Vec<Window>,
}

impl Lowered {
    /// Token ids, `[rows, 1]` i32.
    pub const IDS: EdgeId = EdgeId(0);
    /// Positions, `[rows, 1]` i32.
    pub const POSITIONS: EdgeId = EdgeId(1);

    /// The logits, `[rows, vocab]` f32.
    pub fn logits(&self) -> EdgeId {
        EdgeId(self.edges.len() - 1)
    }
}

/// Why a spec could not be lowered.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// The spec asks for a weight that was not bound.
    #[error("weight {0} was not bound; this is a fault in the family's tensor names")]
    Unbound(String),
    /// The spec contradicts itself.
    #[error("layer {layer}: {what}")]
    Spec {
        /// Layer.
        layer: usize,
        /// Contradiction.
        what: String,
    },
    /// The subgraph made from it is not well formed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
