//! How a graph is split, into what, and why not.

use super::piece::Piece;
use crate::op::Op;
use crate::subgraph::{Node, Subgraph};
use crate::verify::GraphError;

/// How the columns of a graph's results are divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSplit {
    /// The share of each part, in any unit; one device computes a part. `[3, 1]` gives the first
    /// part three quarters.
    pub shares: Vec<u32>,
    /// Weight matrices are cut at multiples of this many rows: the largest tile or panel of any of
    /// the devices.
    pub tile: usize,
    /// If set, results are cut at multiples of this fraction of their columns, where it divides
    /// them. For a graph of query, key and value projections it is the number of key/value heads,
    /// so that a part has the query heads that read its keys. See [`kv_heads`].
    pub groups: Option<usize>,
}

/// The pieces of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Partitioned {
    /// In order: a stage reads only what earlier stages wrote.
    pub stages: Vec<Stage>,
}

impl Partitioned {
    /// Whether any stage has pieces of several parts.
    pub fn is_split(&self) -> bool {
        self.stages.iter().any(|s| s.pieces.len() > 1)
    }
}

/// Pieces that run at the same time. They write different columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// At most one per part, in the parts' order.
    pub pieces: Vec<Piece>,
}

/// Why a graph cannot be partitioned as requested.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// The graph of this name lacks an op, or the ops to cut after are out of order.
    #[error("subgraph {0}")]
    Ops(String),
    /// All shares are 0.
    #[error("no part has a share of the columns; give at least one of them a number above 0")]
    Shares,
    /// A tile or standard length of 0.
    #[error("the {what} is 0; give 1 or more")]
    Zero {
        /// The name of the number.
        what: &'static str,
    },
    /// The graph or a piece of it is malformed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The number of key/value heads of a graph's attention, if it has one. It is the value of
/// [`ColumnSplit::groups`] for the projections in front.
pub fn kv_heads(graph: &Subgraph) -> Option<usize> {
    let heads = |n: &Node| if let Op::Attention(a) = &n.op { Some(a.kv_heads) } else { None };
    graph.nodes.iter().find_map(heads)
}
