//! Experts that are divided over devices, and their bytes.

use std::collections::BTreeSet;

use troika_device::Caps;
use troika_graph::{Op, Subgraph};
use troika_plan::ExpertSplit;

use super::memory::{CachedGroup, ExpertStep};
use super::rows::RoutedShape;
use super::steps::GroupGraph;

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
    /// The groups that come and go.
    pub cached: Vec<Option<CachedGroup>>,
    /// Columns between up and down, where any expert's products are divided.
    pub inner: usize,
    /// The graph of all experts on the rule's device, for rows that chose one each.
    pub rest: GroupGraph,
    /// What is routed between two ends of the layer.
    pub shape: RoutedShape,
}

impl DividedExperts {
    /// The caches that its groups are in.
    pub fn caches(&self) -> impl Iterator<Item = usize> {
        let all: BTreeSet<usize> = self.cached.iter().flatten().map(|group| group.cache).collect();
        all.into_iter()
    }

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

/// Bytes of a graph's weights on a device.
pub fn graph_bytes(graph: &Subgraph, caps: &Caps) -> u64 {
    let halves = graph.nodes.iter().any(|node| match &node.op {
        Op::ExpertGroup(group) => {
            let format = &group.experts.activations;
            format.converts_weights() && format.converted_numbers().is_none()
        }
        _ => false,
    });
    let bytes = graph.weights.iter().map(|w| match caps.code_weights {
        Some(code) if halves && !code.keeps_blocks => (w.rows * w.cols * 2) as u64,
        Some(code) => w.rows as u64 * code.row_bytes(w.dtype, w.cols),
        None => (w.rows * w.dtype.row_bytes(w.cols).unwrap_or(0)) as u64,
    });
    bytes.sum()
}
