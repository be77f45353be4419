//! Experts shared out over devices at run time: which graphs there are, and which row goes where. The README of the engine's scheduler has the whole picture.

mod memory;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use troika_device::{Caps, SpaceId};
use troika_graph::{Op, Subgraph};
use troika_plan::ExpertSplit;

pub use memory::{ExpertBuffer, ExpertMemory, ExpertStep, PackedCols};
pub use rows::{
    ExpertCounts, ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape, expected_pairs,
};

/// The experts of a layer, divided over devices, as tasks refer to them.
#[derive(Clone, Debug)]
pub struct DividedExperts {
    /// The layer.
    pub layer: usize,
    /// How they are shared out.
    pub split: ExpertSplit,
    /// The graphs of each group, in an order in which they can run: one, or one for each of its
    /// parts.
    pub groups: Vec<Vec<GroupGraph>>,
    /// Columns between up and down, where any expert's products are divided.
    pub inner: usize,
    /// The graph of all experts on the rule's device, for rows that chose one each.
    pub rest: GroupGraph,
    /// What is routed between two ends of the layer.
    pub shape: RoutedShape,
}

impl DividedExperts {
    /// Bytes that a step reads and writes for `rows` rows of `cols` columns.
    pub fn bytes(&self, step: ExpertStep, rows: usize, cols: usize) -> u64 {
        step_bytes(step, rows, self.shape.top_k, cols)
    }
}

/// Bytes that a step reads and writes for rows of `cols` columns that choose `top_k` experts each.
pub(crate) fn step_bytes(step: ExpertStep, rows: usize, top_k: usize, cols: usize) -> u64 {
    let bytes = |rows: usize, cols: usize| (rows as u64).saturating_mul(4 * cols as u64);
    let pairs = rows.saturating_mul(top_k);
    match step {
        // Rows and the experts that they chose are read; a row is written for each pair, with its
        // expert.
        ExpertStep::Route => bytes(rows, cols + top_k) + bytes(pairs, cols + 1),
        ExpertStep::Dispatch => 0,
        ExpertStep::Combine => bytes(pairs, cols + 1) + bytes(rows, cols),
    }
}

/// The graph of a group, of a part of one, or of all experts.
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
    /// What it reads: whole rows. Of several buffers the first one has the rows themselves.
    pub reads: Vec<ExpertBuffer>,
    /// What it writes.
    pub writes: PackedCols,
    /// The number of its part, if it writes these columns to rows of their own, from where they are
    /// copied.
    pub apart: Option<usize>,
}

impl GroupGraph {
    /// The buffers that its runs and their copies use.
    pub(crate) fn buffers(&self) -> Vec<(SpaceId, ExpertBuffer)> {
        let own = self.apart.map_or(self.writes.buffer, ExpertBuffer::Part);
        let on_host = self.reads.iter().copied().chain([self.writes.buffer]);
        let there = self.reads.iter().copied().chain([own]).map(|buffer| (self.space, buffer));
        on_host.map(|buffer| (SpaceId::HOST, buffer)).chain(there).collect()
    }
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
    /// Columns between up and down, where experts' products are divided.
    pub inner: usize,
}

impl PackedSize {
    /// Bytes of a row of a buffer.
    pub fn row_bytes(&self, buffer: ExpertBuffer) -> usize {
        /// Bytes of the buffers that hold nothing.
        const MARK: usize = 64;
        match buffer {
            ExpertBuffer::Input | ExpertBuffer::Output => self.cols * 4,
            ExpertBuffer::Inner => self.inner * 4,
            ExpertBuffer::Part(_) => self.cols.max(self.inner) * 4,
            ExpertBuffer::Ids | ExpertBuffer::Ones => 4,
            ExpertBuffer::Order | ExpertBuffer::Routed => MARK,
        }
    }
}
