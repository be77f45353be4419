//! Rows that a static graph has for each expert of a layer (NPUMoE, section 4.1).

use crate::routing::ExpertUse;

/// What capacities are multiples of: sizes that neural processors are fast with (NPUMoE, section
/// 3.2).
const MULTIPLE: usize = 16;

/// How capacities follow from loads.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Tiers {
    /// The quarter of the experts that is chosen most gets four times the base capacity, the others
    /// half of it, all of it or twice as much, as their load asks for.
    #[default]
    Quartile,
    /// Multiples of the base capacity, ascending: the least that holds the expected load, or else
    /// the largest.
    Multiples(Vec<f64>),
    /// So many rows for each expert.
    Rows(usize),
    /// Room for all rows of a chunk.
    Chunk,
}

/// The multiples of [`Tiers::Quartile`].
const MULTIPLES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// A capacity for at least `rows` rows.
pub(crate) fn rounded(rows: f64) -> usize {
    (rows.ceil().max(1.0) as usize).min(1 << 32).next_multiple_of(MULTIPLE)
}

/// A layer as capacities see it.
#[derive(Clone, Copy, Debug)]
pub struct LayerLoad<'a> {
    /// How often its experts were chosen.
    pub used: &'a ExpertUse,
    /// Experts of a row.
    pub top_k: usize,
    /// Rows of a chunk.
    pub rows: usize,
}

impl LayerLoad<'_> {
    /// Rows that an expert is expected to get of a chunk: no more than there are.
    pub fn expected_rows(&self, expert: usize) -> f64 {
        let (all, experts) = (self.used.total(), self.used.counts.len().max(1));
        let count = self.used.counts.get(expert).copied().unwrap_or(0.0);
        let share = if all > 0.0 { count / all } else { 1.0 / experts as f64 };
        (share * (self.rows * self.top_k) as f64).min(self.rows as f64)
    }

    /// The base capacity: rows that each expert of a balanced layer gets.
    pub fn base_rows(&self) -> f64 {
        (self.rows * self.top_k) as f64 / self.used.counts.len().max(1) as f64
    }

    /// Rows of the busiest expert: the base capacity times the layer's imbalance.
    pub fn busiest_rows(&self) -> usize {
        (self.used.imbalance() * self.base_rows()).ceil() as usize
    }
}

impl Tiers {
    /// Half the base capacity, all of it, twice and four times as much.
    pub fn by_load() -> Tiers {
        Tiers::Multiples(MULTIPLES.to_vec())
    }

    /// The capacity of each expert of a layer: never more than the busiest one needs, nor than a
    /// chunk has rows, each rounded up.
    pub fn capacities(&self, layer: &LayerLoad<'_>) -> Vec<usize> {
        let experts = 0..layer.used.counts.len();
        let chunk = rounded(layer.rows as f64);
        let busiest = rounded(layer.busiest_rows() as f64);
        let tiers = |expert: usize, multiples: &[f64]| {
            let rows = |m: &f64| rounded(m * layer.base_rows());
            let expected = layer.expected_rows(expert);
            let enough = multiples.iter().map(rows).find(|rows| *rows as f64 >= expected);
            enough.or(multiples.last().map(rows)).unwrap_or(chunk).min(busiest).min(chunk)
        };
        match self {
            Tiers::Rows(rows) => experts.map(|_| *rows).collect(),
            Tiers::Chunk => experts.map(|_| chunk).collect(),
            Tiers::Multiples(multiples) => experts.map(|e| tiers(e, multiples)).collect(),
            Tiers::Quartile => {
                let (ranking, quarter) = (layer.used.ranking(), experts.len().div_ceil(4));
                let top = ranking.get(..quarter).unwrap_or_default();
                let most = &MULTIPLES[3..];
                experts
                    .map(|e| tiers(e, if top.contains(&e) { most } else { &MULTIPLES[..3] }))
                    .collect()
            }
        }
    }
}

impl std::fmt::Display for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tiers::Quartile => f.write_str("quartile"),
            Tiers::Chunk => f.write_str("chunk"),
            Tiers::Rows(rows) => write!(f, "rows={rows}"),
            Tiers::Multiples(all) => {
                let all: Vec<String> = all.iter().map(f64::to_string).collect();
                f.write_str(&all.join(":"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LayerLoad, Tiers, rounded};
    use crate::routing::used_experts;

    /// PhiMoE in chunks of 256: two of 16 experts, the busiest one four times as busy as the mean.
    #[test]
    fn the_papers_example_comes_out() {
        let mut counts = [12; 16];
        counts[5] = 60;
        let used = used_experts(0, &counts);
        let layer = LayerLoad { used: &used, top_k: 2, rows: 256 };
        assert_eq!((layer.base_rows(), used.imbalance()), (32.0, 4.0));
        assert_eq!(layer.busiest_rows(), 128);
        assert_eq!(layer.expected_rows(5), 128.0);
        let of = |tiers: Tiers| tiers.capacities(&layer);
        let by_load = of(Tiers::by_load());
        assert_eq!((by_load[5], by_load[0]), (128, 32));
        let quartile = of(Tiers::Quartile);
        // Of equals, those with lower numbers are the top.
        assert_eq!((quartile[5], quartile[0], quartile[2], quartile[3]), (128, 128, 128, 32));
        assert_eq!(of(Tiers::Rows(48)), [48; 16]);
        assert_eq!(of(Tiers::Chunk), [256; 16]);
        // One tier is the same for all.
        assert_eq!(of(Tiers::Multiples(vec![1.0])), [32; 16]);
    }

    #[test]
    fn balanced_layers_have_one_tier() {
        let used = used_experts(0, &[7; 8]);
        let layer = LayerLoad { used: &used, top_k: 2, rows: 256 };
        for tiers in [Tiers::Quartile, Tiers::by_load()] {
            assert_eq!(tiers.capacities(&layer), [64; 8]);
        }
    }

    proptest! {
        #[test]
        fn capacities_are_friendly_and_enough_where_a_tier_is(
            counts in prop::collection::vec(0u32..1000, 1..40),
            top_k in 1usize..9,
            rows in 1usize..2000,
            tiers in prop::sample::select(vec![Tiers::Quartile, Tiers::by_load(), Tiers::Chunk]),
        ) {
            let (used, top_k) = (used_experts(0, &counts), top_k.min(counts.len()));
            let layer = LayerLoad { used: &used, top_k, rows };
            let capacities = tiers.capacities(&layer);
            prop_assert_eq!(capacities.len(), counts.len());
            let busiest = rounded(layer.busiest_rows() as f64);
            let base = layer.base_rows();
            for (expert, capacity) in capacities.iter().enumerate() {
                prop_assert!(*capacity >= 16 && capacity.is_multiple_of(16));
                prop_assert!(*capacity <= rounded(rows as f64));
                if tiers == Tiers::Chunk {
                    continue;
                }
                prop_assert!(*capacity <= busiest);
                let expected = layer.expected_rows(expert);
                // Every expert that a tier holds has room for what it is expected to get.
                let holds = expected <= base * if tiers == Tiers::Quartile { 2.0 } else { 4.0 };
                prop_assert!(!holds || *capacity as f64 >= expected.floor(), "{capacity} for {expected}");
            }
            // A busier expert never has less room.
            let ranking = used.ranking();
            prop_assert!(ranking.windows(2).all(|w| capacities[w[0]] >= capacities[w[1]]));
        }
    }
}
