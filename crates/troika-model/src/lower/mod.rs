//! Lowering: a [`ModelSpec`](crate::spec::ModelSpec) becomes static subgraphs, once.
//!
//! A layer becomes the segments norm + QKV, attention, output projection, and feed-forward (or
//! router and experts). All except attention depend only on the number of rows, so all chunks share
//! them; attention also depends on the earlier positions.

mod altup;
mod attention;
mod delta;
mod emit;
mod ffn;
mod lowered;
mod lowerer;
mod model;
mod recurrence;

pub use lowered::{
    Edge, EdgeId, LowerError, LowerOptions, Lowered, ModelPart, Segment, SegmentKind,
    SegmentTraits, StateDecl, StateId, WeightShape, WeightShapes, segment_kinds, segments,
};
pub use model::lower;

use lowered::Result;
