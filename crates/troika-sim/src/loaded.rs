//! What the device made of subgraphs.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use troika_device::{Executable, ExecutableId, Executables};
use troika_graph::{Op, Subgraph};

use crate::resident::Residency;

/// A compiled subgraph.
pub(crate) struct Loaded {
    /// As it was compiled: with static shapes, its rows are numbers.
    pub graph: Subgraph,
    /// The rows that static shapes have.
    pub bucket: Option<usize>,
    /// What computes it; `None` with numerics off.
    pub inner: Option<Arc<Executable>>,
    /// States with the page groups by which ops use them.
    pub state_groups: Vec<(usize, usize)>,
    /// Whether a state is written.
    pub state_written: Vec<bool>,
    /// Its weights count as resident as long as it is there.
    _residency: Residency,
}

impl Loaded {
    pub fn new(
        graph: &Subgraph,
        bucket: Option<usize>,
        inner: Option<Arc<Executable>>,
        residency: Residency,
    ) -> Loaded {
        let mut loaded = Loaded {
            graph: graph.clone(),
            bucket,
            inner,
            state_groups: Vec::new(),
            state_written: vec![false; graph.states.len()],
            _residency: residency,
        };
        for node in &graph.nodes {
            let (group, writes) = match &node.op {
                Op::KvAppend(k) => (k.page_group, true),
                Op::Attention(a) => (a.page_group, false),
                _ => continue,
            };
            for state in &node.states {
                let Some(at) = graph.states.iter().position(|s| s == state) else { continue };
                loaded.state_written[at] |= writes;
                if !loaded.state_groups.contains(&(at, group)) {
                    loaded.state_groups.push((at, group));
                }
            }
        }
        loaded
    }
}

/// What was compiled and is not freed.
#[derive(Default)]
pub(crate) struct Compiled(RwLock<HashMap<ExecutableId, Arc<Loaded>>>);

impl Compiled {
    pub fn add(&self, id: ExecutableId, loaded: Loaded) {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(id, Arc::new(loaded));
    }

    pub fn get(&self, id: ExecutableId) -> Option<Arc<Loaded>> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        map.get(&id).cloned()
    }
}

impl Executables for Compiled {
    fn free(&self, id: ExecutableId) {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let gone = map.remove(&id);
        drop(map);
        // Weights are given back outside of the lock.
        drop(gone);
    }
}
