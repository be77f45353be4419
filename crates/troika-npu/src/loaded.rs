//! What graphs were compiled to.

use std::sync::Arc;

use troika_device::Run;

use crate::cached::CachedModel;
use crate::session::{CompiledModel, RunError};

/// A compiled graph with its weights.
pub(crate) struct LoadedModel {
    /// The name of the device that compiled it.
    pub device: String,
    /// The graph's name.
    pub graph: String,
    pub code: Arc<GraphCode>,
}

/// What a graph was compiled to.
pub(crate) enum GraphCode {
    /// A graph without a cache.
    Plain(CompiledModel),
    /// A graph with one.
    Cached(CachedModel),
}

impl GraphCode {
    /// Runs it on the rows of a submission.
    pub fn run(&self, run: &Run) -> Result<(), RunError> {
        match self {
            GraphCode::Plain(model) => model.run(run),
            GraphCode::Cached(model) => model.run(run),
        }
    }
}
