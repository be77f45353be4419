//! Experts shared out over devices at run time: which graphs there are, the tasks that route rows to
//! them, and which row goes where. The README of the engine's scheduler has the whole picture.

mod name;
mod place;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use troika_device::SpaceId;
use troika_plan::{Dispatch, ExpertSplit};

use crate::placed::{Operand, PlacedPiece};

pub(crate) use name::OfExperts;
pub use name::{ExpertBuffer, ExpertMemory, ExpertStep, NamedHost};
pub use rows::{ExpertCounts, ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape};

/// The experts of a segment whose rule shares them out.
#[derive(Debug)]
pub struct PlacedExperts {
    /// How they are shared out.
    pub split: ExpertSplit,
    /// The graph of each group, in order, then that of all experts on the rule's device, for rows
    /// that chose one each.
    pub pieces: Vec<PlacedPiece>,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
    /// Columns of rows.
    pub cols: usize,
    /// How many of the segment's stages run before them, and before their sum is there.
    pub(crate) stages: [usize; 2],
    /// The rows, the experts that they chose, and their weights.
    pub(crate) inputs: [Operand; 3],
    /// Their sum.
    pub(crate) output: Operand,
    /// The values before and after attention, whose difference is what it added.
    pub(crate) attention: Option<[usize; 2]>,
}

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

impl PlacedExperts {
    /// Whether chunks go through the model layer by layer.
    pub(crate) fn is_layer_major(&self) -> bool {
        self.split.dispatch == Dispatch::LayerMajor
    }
}
