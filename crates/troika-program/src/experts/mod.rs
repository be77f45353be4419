//! Experts shared out over devices at run time: which graphs there are, and which row goes where. The README of the engine's scheduler has the whole picture.

mod memory;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use troika_device::{Caps, SpaceId};
use troika_graph::{Op, Subgraph};
use troika_plan::ExpertSplit;

pub use memory::{ExpertBuffer, ExpertMemory, ExpertStep};
pub use rows::{ExpertCounts, ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape};

/// The experts of a layer, as tasks refer to them.
#[derive(Clone, Debug)]
pub struct SharedExperts {
    /// The layer.
    pub layer: usize,
    /// Index of the rule's device.
    pub device: usize,
    /// How they are shared out.
    pub split: ExpertSplit,
    /// The graphs of the groups.
    pub groups: Vec<GroupGraph>,
    /// The graph of all experts, for rows that chose one each.
    pub rest: usize,
    /// The name of its runs.
    pub rest_name: Arc<str>,
    /// What is routed between two ends of the layer.
    pub shape: RoutedShape,
}

/// A group's graph.
#[derive(Clone, Debug)]
pub struct GroupGraph {
    /// Index in the program's list of graphs.
    pub graph: usize,
    /// Index of the device.
    pub device: usize,
    /// The memory that the device uses.
    pub space: SpaceId,
    /// The name of its runs.
    pub name: Arc<str>,
}

/// Bytes of a graph's weights on a device.
pub fn graph_bytes(graph: &Subgraph, caps: &Caps) -> u64 {
    let halves = graph.nodes.iter().any(|node| match &node.op {
        Op::ExpertGroup(group) => {
            let format = &group.experts.activations;
            format.converts_weights() && format.converted_numbers().is_none()
        }
        _ => false,
    });
    let bytes = graph.weights.iter().map(|w| match caps.weights_per_shape {
        Some(_) if halves => w.rows * w.cols * 2,
        Some(float) => w.rows * w.cols * float,
        None => w.rows * w.dtype.row_bytes(w.cols).unwrap_or(0),
    });
    bytes.map(|bytes| bytes as u64).sum()
}

/// The size of the packed buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedSize {
    /// Rows, where each chunk has buffers of its own.
    pub of_chunk: usize,
    /// Rows, where all chunks in flight share them.
    pub of_all: usize,
    /// Columns.
    pub cols: usize,
}
