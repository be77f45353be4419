//! What was routed where, and how long it took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use troika_device::lock;
use troika_program::LayerCounts;

/// Counts and times of divided experts since the model was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Counts by layer.
    pub layers: BTreeMap<usize, LayerCounts>,
    /// Time to decide where rows go.
    pub route: Duration,
    /// Time to copy them there.
    pub pack: Duration,
    /// Time from the first run of a layer's experts to the first sum of their results.
    pub experts: Duration,
    /// Time to add results up.
    pub combine: Duration,
}

impl GroupStats {
    /// Rows of all runs of groups, and those among them that are padding.
    pub fn group_rows(&self) -> (u64, u64) {
        let experts = self.layers.values().flat_map(|layer| &layer.experts);
        experts
            .fold((0, 0), |(rows, padding), e| (rows + e.grouped + e.padding, padding + e.padding))
    }

    /// Pairs of a row and an expert that were left out, and all of them.
    pub fn dropped(&self) -> (u64, u64) {
        let experts = self.layers.values().flat_map(|layer| &layer.experts);
        experts.fold((0, 0), |(dropped, all), e| (dropped + e.dropped, all + e.rows))
    }
}

/// Statistics that functions on several queues add to.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedStats(Arc<Mutex<GroupStats>>);

impl SharedStats {
    /// Changes them.
    pub fn with<T>(&self, change: impl FnOnce(&mut GroupStats) -> T) -> T {
        change(&mut lock(&self.0))
    }
}
