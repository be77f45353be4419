//! Which experts share a graph, and which of the graphs a device holds (NPUMoE, sections 4.2, 4.3).

use troika_device::{size, size_needed};

use super::capacity::LayerLoad;

/// Numbers of experts that a graph may have, the largest first.
const SIZES: [usize; 3] = [16, 8, 4];

/// What a device takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLimits {
    /// The most bytes of a graph.
    pub graph_bytes: Option<u64>,
    /// The most graphs of experts at once.
    pub graphs: Option<usize>,
    /// The most bytes of all graphs' weights.
    pub bytes: Option<u64>,
}

/// What makes a graph worth a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorthALaunch {
    /// The fewest rows that a graph is expected to get.
    pub rows: f64,
    /// The least share of its rows that is expected to be in use.
    pub fill: f64,
}

impl Default for WorthALaunch {
    /// With fewer rows than 64 an NPU gains nothing (NPUMoE, section 2); with three quarters of
    /// padding it computes four times the rows in use, more than twice its advantage in speed.
    fn default() -> Self {
        WorthALaunch { rows: WorthALaunch::ROWS, fill: 0.25 }
    }
}

impl WorthALaunch {
    /// Every graph is.
    pub const ALWAYS: WorthALaunch = WorthALaunch { rows: 0.0, fill: 0.0 };
    /// Padding that was asked for is none that speaks against a launch.
    pub const PADDED: WorthALaunch = WorthALaunch { rows: WorthALaunch::ROWS, fill: 0.0 };
    const ROWS: f64 = 64.0;

    /// The fewest rows that a graph with room for `room` rows has to be expected to get.
    pub fn of(&self, room: usize) -> f64 {
        self.rows.max(self.fill * room as f64)
    }
}

/// Experts of a layer in one graph.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGroupShape {
    /// The layer.
    pub layer: usize,
    /// The experts, the most chosen one first.
    pub experts: Vec<usize>,
    /// Rows of each.
    pub capacity: usize,
    /// Rows that all of them are expected to get of a chunk.
    pub expected_rows: f64,
}

impl ExpertGroupShape {
    /// Rows that a run computes.
    pub fn rows(&self) -> usize {
        self.experts.len().saturating_mul(self.capacity)
    }
}

/// The most experts of a graph: 16, 8 or 4, whatever fits the device, and fewer if not even four
/// do; or as many as asked for.
///
/// # Errors
/// What does not fit: one expert, or as many as were asked for.
pub fn group_size(
    asked: Option<usize>,
    expert_bytes: u64,
    limits: &GroupLimits,
) -> Result<usize, String> {
    let fit = limits.graph_bytes.map_or(u64::MAX, |most| most / expert_bytes.max(1));
    let most = size(limits.graph_bytes.unwrap_or(u64::MAX));
    match asked {
        _ if fit == 0 => Err(format!(
            "an expert has {} of weights there, and a graph {most} at most",
            size_needed(expert_bytes)
        )),
        Some(asked) if asked as u64 > fit => Err(format!(
            "{asked} experts have {} of weights there, and a graph {most} at most; put {fit} into a \
             group, or fewer",
            size_needed(expert_bytes.saturating_mul(asked as u64))
        )),
        Some(asked) => Ok(asked.max(1)),
        None => {
            Ok(SIZES.into_iter().find(|size| *size as u64 <= fit).unwrap_or(fit.max(1) as usize))
        }
    }
}

/// Groups a layer's experts: hot with hot, one capacity in each group, at most `size` experts. Those
/// in no group are too few or chosen too rarely for a launch.
pub fn group(
    layer: &LayerLoad<'_>,
    capacities: &[usize],
    size: usize,
    least: WorthALaunch,
) -> Vec<ExpertGroupShape> {
    let ranking = layer.used.ranking();
    let capacity = |expert: &usize| capacities.get(*expert).copied().unwrap_or(0);
    let alike = ranking.chunk_by(|a, b| capacity(a) == capacity(b));
    let parts = alike.flat_map(|tier| tier.chunks(size.max(1)));
    let shape = |experts: &[usize]| ExpertGroupShape {
        layer: layer.used.layer,
        experts: experts.to_vec(),
        capacity: experts.first().map_or(0, capacity),
        expected_rows: experts.iter().map(|e| layer.expected_rows(*e)).sum(),
    };
    let is_worth = |group: &ExpertGroupShape| group.expected_rows >= least.of(group.rows());
    parts.map(shape).filter(is_worth).collect()
}

/// Whether each group fits on a device with these limits. Groups with the most rows for their bytes
/// come first, and equal ones in the order of layers.
pub fn resident(groups: &[ExpertGroupShape], expert_bytes: u64, limits: &GroupLimits) -> Vec<bool> {
    let heat = |at: usize| groups[at].expected_rows / groups[at].experts.len().max(1) as f64;
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by(|a, b| heat(*b).total_cmp(&heat(*a)));
    let (mut bytes, mut graphs) =
        (limits.bytes.unwrap_or(u64::MAX), limits.graphs.unwrap_or(usize::MAX));
    let mut is_resident = vec![false; groups.len()];
    for at in order {
        let needs = expert_bytes.saturating_mul(groups[at].experts.len() as u64);
        if graphs > 0 && needs <= bytes {
            is_resident[at] = true;
            bytes -= needs;
            graphs -= 1;
        }
    }
    is_resident
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::expert_groups::capacity::Tiers;
    use crate::routing::used_experts;

    #[test]
    fn hot_experts_are_with_hot_ones_and_cold_ones_in_no_group() {
        let used = used_experts(3, &[1, 90, 40, 0, 80, 45, 2, 70]);
        let layer = LayerLoad { used: &used, top_k: 2, rows: 256 };
        let capacities = [16, 128, 64, 16, 128, 64, 16, 128];
        let groups = group(&layer, &capacities, 2, WorthALaunch::default());
        let experts: Vec<&[usize]> = groups.iter().map(|g| &g.experts[..]).collect();
        assert_eq!(experts, [&[1, 4][..], &[7], &[5, 2]]);
        assert_eq!(groups.iter().map(|g| g.capacity).collect::<Vec<_>>(), [128, 128, 64]);
        assert_eq!((groups[0].layer, groups[0].rows()), (3, 256));
        let all = group(&layer, &capacities, 2, WorthALaunch::ALWAYS);
        assert_eq!(all.last().unwrap().experts, [3], "which was never chosen");
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn graphs_are_as_large_as_a_device_takes() {
        let limits = |graph_bytes| GroupLimits { graph_bytes, ..GroupLimits::default() };
        assert_eq!(group_size(None, 150 << 20, &limits(None)), Ok(16));
        // The paper's: 150 MiB an expert, graphs of 1.2 GB.
        assert_eq!(group_size(None, 150 << 20, &limits(Some(1200 << 20))), Ok(8));
        assert_eq!(group_size(None, 150 << 20, &limits(Some(451 << 20))), Ok(3));
        assert_eq!(group_size(Some(7), 150 << 20, &limits(Some(1200 << 20))), Ok(7));
        let refused = group_size(Some(9), 150 << 20, &limits(Some(1200 << 20))).unwrap_err();
        assert!(refused.contains("1350 MiB") && refused.contains("put 8"), "{refused}");
        let refused = |bytes, most| group_size(None, bytes, &limits(Some(most))).unwrap_err();
        assert!(
            refused(150 << 20, 1 << 20).contains("150 MiB of weights there, and a graph 1 MiB")
        );
        assert!(refused(200_000, 100_000).contains("196 KiB of weights there, and a graph 97 KiB"));
    }

    #[test]
    fn what_has_most_rows_for_its_bytes_is_resident() {
        let shape = |layer, experts: usize, expected_rows| ExpertGroupShape {
            layer,
            experts: (0..experts).collect(),
            capacity: 64,
            expected_rows,
        };
        let groups =
            [shape(0, 4, 100.0), shape(1, 8, 400.0), shape(2, 2, 40.0), shape(3, 4, 120.0)];
        let on = |bytes, graphs| {
            resident(&groups, 10, &GroupLimits { graph_bytes: None, graphs, bytes })
        };
        assert_eq!(on(None, None), [true; 4]);
        assert_eq!(on(Some(100), None), [false, true, true, false]);
        assert_eq!(on(None, Some(2)), [false, true, false, true]);
        assert_eq!(on(Some(10), None), [false; 4]);
    }

    proptest! {
        #[test]
        fn groups_are_of_one_capacity_and_share_no_expert(
            counts in prop::collection::vec(0u32..1000, 1..70),
            size in 1usize..20,
            rows in 16usize..1024,
            bytes in 0u64..400,
            graphs in 0usize..8,
        ) {
            let used = used_experts(0, &counts);
            let layer = LayerLoad { used: &used, top_k: counts.len().min(4), rows };
            let capacities = Tiers::by_load().capacities(&layer);
            let groups = group(&layer, &capacities, size, WorthALaunch::ALWAYS);
            let all: Vec<usize> = groups.iter().flat_map(|g| g.experts.clone()).collect();
            let once: BTreeSet<usize> = all.iter().copied().collect();
            prop_assert_eq!((all.len(), once.len()), (counts.len(), counts.len()));
            for g in &groups {
                prop_assert!(!g.experts.is_empty() && g.experts.len() <= size);
                prop_assert!(g.experts.iter().all(|e| capacities[*e] == g.capacity));
            }
            // Those before are at least as hot as those behind.
            let hot: Vec<f64> = all.iter().map(|e| layer.expected_rows(*e)).collect();
            prop_assert!(hot.is_sorted_by(|a, b| a >= b));
            let worth = group(&layer, &capacities, size, WorthALaunch::default());
            prop_assert!(worth.iter().all(|g| groups.contains(g) && g.expected_rows >= 64.0));
            let limits = GroupLimits { graph_bytes: None, graphs: Some(graphs), bytes: Some(bytes) };
            let on = resident(&groups, 10, &limits);
            let held = groups.iter().zip(&on).filter(|(_, on)| **on);
            prop_assert!(held.clone().count() <= graphs);
            prop_assert!(held.map(|(g, _)| 10 * g.experts.len() as u64).sum::<u64>() <= bytes);
        }
    }
}
