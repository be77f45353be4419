//! Cases of the suite.

use std::sync::Arc;

use troika_device::WeightSource;
use troika_graph::Subgraph;

/// The most rows of all cases' symbols.
pub const MAX_ROWS: usize = 24;
/// Positions of every cache.
pub const POSITIONS: usize = 64;

/// A subgraph to run.
#[derive(Clone)]
pub struct SuiteCase {
    /// The name in reports.
    pub name: String,
    /// The graph with symbolic rows, up to [`MAX_ROWS`].
    pub graph: Subgraph,
    /// Its weights.
    pub weights: Arc<dyn WeightSource + Send + Sync>,
    /// The seed of its inputs and caches.
    pub seed: u64,
    /// Allowed difference from the scalar kernels, relative to a value's largest element.
    pub tolerance: f32,
}
