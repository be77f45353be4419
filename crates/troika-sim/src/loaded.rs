//! What the device makes of subgraphs: code, and loaded weights.

use std::sync::Arc;

use troika_device::{DeviceId, Executable, Weights};
use troika_graph::Subgraph;

use crate::resident::Residency;

/// A compiled subgraph and its device.
pub(crate) struct Compiled {
    pub device: DeviceId,
    pub code: Arc<Code>,
}

/// The code of all subgraphs with one shape.
pub(crate) struct Code {
    /// As compiled: with static shapes, its rows are numbers.
    pub graph: Subgraph,
    /// The rows of a static shape.
    pub bucket: Option<usize>,
    /// The executable that computes it; `None` with numerics off.
    pub inner: Option<Arc<Executable>>,
    /// States with the page groups of the ops that use them.
    pub state_groups: Vec<(usize, usize)>,
    /// Whether each state is written.
    pub state_written: Vec<bool>,
}

impl Code {
    pub fn new(graph: &Subgraph, bucket: Option<usize>, inner: Option<Arc<Executable>>) -> Code {
        let mut code = Code {
            graph: graph.clone(),
            bucket,
            inner,
            state_groups: Vec::new(),
            state_written: vec![false; graph.states.len()],
        };
        for node in &graph.nodes {
            let Some((group, writes)) = node.op.page_group() else { continue };
            for state in &node.states {
                let Some(at) = graph.states.iter().position(|s| s == state) else { continue };
                code.state_written[at] |= writes;
                if !code.state_groups.contains(&(at, group)) {
                    code.state_groups.push((at, group));
                }
            }
        }
        code
    }
}

/// Code with the weights of one graph.
pub(crate) struct Loaded {
    pub device: DeviceId,
    pub code: Arc<Code>,
    /// The graph, for its names.
    pub graph: Subgraph,
    /// The weights that compute it; `None` with numerics off.
    pub inner: Option<Arc<Weights>>,
    /// Counts its weights as resident while it exists.
    pub _residency: Residency,
}
