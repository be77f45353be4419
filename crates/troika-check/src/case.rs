//! Cases: subgraphs to run, with their weights.

use std::sync::Arc;

use troika_device::WeightSource;
use troika_graph::Subgraph;

/// Numbers of rows: one, a few, and more than a tile.
pub(crate) const ROWS: [usize; 3] = [1, 5, 67];
/// The most rows of the ops' and models' cases.
pub const MAX_ROWS: usize = 21;
/// Positions of every cache, and rows of every table.
pub const POSITIONS: usize = 128;

/// A subgraph to run on a device.
#[derive(Clone)]
pub struct DeviceCase {
    /// The name in reports.
    pub name: String,
    /// The graph with symbolic rows.
    pub graph: Subgraph,
    /// Its weights.
    pub weights: Arc<dyn WeightSource + Send + Sync>,
    /// The seed of its inputs and caches.
    pub seed: u64,
    /// Allowed difference from another device, relative to a value's largest element.
    pub tolerance: f32,
}

impl DeviceCase {
    /// The numbers of rows to run.
    pub fn rows(&self) -> [usize; 3] {
        ROWS.map(|rows| rows.min(self.graph.max_rows()))
    }
}
