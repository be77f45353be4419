//! Partition: one subgraph made into several that compute the same together.
//!
//! [`cut`] and [`cut_at`] cut at op boundaries, [`split_columns`] gives each device some columns of
//! the results, [`Partition`] says which rows go where. Nothing here knows a device, a cost or a
//! model. See the README beside this file.

mod axes;
mod columns;
mod cut;
mod piece;
mod rows;
mod stages;
mod take;

use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::subgraph::{Subgraph, ValueId};
use crate::verify::GraphError;

pub use columns::split_columns;
pub use cut::{cut, cut_at};
pub use piece::{Columns, Piece};
pub use rows::{Area, Computed, Partition, RowCut, cut_rows};

/// How the columns of a graph's results are shared out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSplit {
    /// The share of each part, in any unit; a part is what one device computes. `[3, 1]` gives the
    /// first part three quarters.
    pub shares: Vec<u32>,
    /// Weight matrices are cut at multiples of so many rows: the largest tile or panel that one of
    /// the devices computes at once.
    pub tile: usize,
    /// Results are cut at multiples of this part of their columns, where it divides them: the
    /// number of key/value heads for a graph of query, key and value projections, so that a part
    /// has the query heads that read its keys. See [`kv_heads`].
    #[serde(default)]
    pub groups: Option<usize>,
}

/// Pieces that make up a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Partitioned {
    /// In order: what a stage reads, earlier stages have written.
    pub stages: Vec<Stage>,
    /// Ops that are not split, and why.
    pub kept: Vec<Kept>,
}

impl Partitioned {
    /// Values of the whole graph that stages hand to later ones and that are not among its
    /// outputs: the caller keeps memory for them.
    pub fn between(&self, graph: &Subgraph) -> Vec<ValueId> {
        let pieces = self.stages.iter().flat_map(|s| &s.pieces);
        let mut values: Vec<ValueId> = pieces.flat_map(|p| &p.outputs).map(|c| c.value).collect();
        values.sort_unstable();
        values.dedup();
        values.retain(|v| !graph.outputs.contains(v));
        values
    }

    /// Whether any stage has pieces for several parts.
    pub fn is_split(&self) -> bool {
        self.stages.iter().any(|s| s.pieces.len() > 1)
    }
}

/// Pieces that run at the same time. They write different columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// At most one for each part, in the parts' order.
    pub pieces: Vec<Piece>,
}

/// An op that one part computes whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its index in the whole graph.
    pub op: usize,
    /// Its name.
    pub name: &'static str,
    /// Why it is not split.
    pub why: WhyWhole,
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "op {} ({}) stays whole: {}", self.op, self.name, self.why)
    }
}

/// Why an op is not split by columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum WhyWhole {
    /// A column of its result depends on all columns of its input, and no product beside it is
    /// split that would need it in each part.
    #[error("each column of its result depends on the whole row")]
    WholeRow,
    /// Its weights are not sliced by the columns of the result.
    #[error("its weights are not cut by columns of its result")]
    Weights,
    /// Cut at tiles and heads, there are no two parts of it.
    #[error("its {cols} columns do not give two parts that begin at tiles and at heads")]
    Narrow {
        /// Columns of its result, or of the cache it writes.
        cols: usize,
    },
    /// The heads of the cache it writes are not known from this graph, or there is but one.
    #[error("its cache has one head, or the graph does not say how many")]
    Cache,
    /// Rounded to tiles and heads, one part's share is all of it.
    #[error("rounded to tiles and heads, one part's share is all of it")]
    Share,
    /// It is cheap, and computes of whole values.
    #[error("it is cheap, and nothing that is split makes its inputs")]
    Cheap,
}

/// Why a graph cannot be partitioned in the way asked for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// There is no op boundary there.
    #[error("subgraph {graph} has {ops} ops: it cannot be cut after op {op}")]
    NoBoundary {
        /// Name of the graph.
        graph: String,
        /// The op after which it was to be cut.
        op: usize,
        /// Ops it has.
        ops: usize,
    },
    /// The ops after which to cut are not in order, or one is named twice.
    #[error("subgraph {graph}: ops to cut after are not in ascending order")]
    Order {
        /// Name of the graph.
        graph: String,
    },
    /// No part has a share.
    #[error("no part has a share of the columns; give at least one of them a number above 0")]
    Shares,
    /// A tile or a standard length of nothing.
    #[error("the {what} is 0; give 1 or more")]
    Zero {
        /// Which number.
        what: &'static str,
    },
    /// The graph, or a piece of it, is not well formed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The key/value heads of a graph's attention, if it has one: what [`ColumnSplit::groups`] is for
/// the projections in front of it.
pub fn kv_heads(graph: &Subgraph) -> Option<usize> {
    graph.nodes.iter().find_map(|n| match &n.op {
        Op::Attention(a) => Some(a.kv_heads),
        _ => None,
    })
}
