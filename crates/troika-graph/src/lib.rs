//! Static subgraphs: data types, shapes, ops and their verification.
//!
//! All other crates build on this one. A [`Subgraph`] is plain data: named values with shapes, a
//! list of [`Op`]s, and references to weights by name. It knows no model and no device.

mod activation_format;
mod activations;
mod bind;
mod block_parts;
pub mod blocks;
mod boundary;
mod builder;
mod calibration;
mod dtype;
mod grids;
mod op;
pub mod partition;
mod product_form;
pub mod quantize;
mod rope;
mod shape;
mod subgraph;
mod verify;
mod weight;

pub use activation_format::{
    ActivationFormat, IntFormat, ScaleGranularity, ScaleOrigin, UnknownActivationFormat,
};
pub use activations::{adapt_activations, convert_products, form_products, restrict_activations};
pub use bind::{bind_static, limit_rows};
pub use boundary::convert_boundary;
pub use builder::SubgraphBuilder;
pub use calibration::{CalibrationTensor, InputRange, Rounding};
pub use dtype::DType;
pub use op::{
    Activation, Attention, Decay, DecayingSum, DeltaRule, ExpertGroup, Experts, HeadLinear,
    KvAppend, Mamba2, Op, Rescale, Router, Score, ShortConv, StateKind, Window,
};
pub use product_form::ProductForm;
pub use rope::{Growth, Rope, RopeFreqs, RopeStyle};
pub use shape::{Dim, Shape};
pub use subgraph::{Node, Subgraph, Value, ValueId};
pub use verify::{GraphError, verify};
pub use weight::{WeightDecl, WeightRef, WeightSlice};
