//! How often experts were chosen.

use crate::median::median;

/// How often each expert of a layer was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUse {
    /// The layer's number in the model.
    pub layer: usize,
    /// By expert.
    pub counts: Vec<f64>,
}

impl ExpertUse {
    /// How often experts were chosen in all.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Each expert's share of all choices, in parts of a million; empty if they are all alike.
    pub fn parts(&self) -> Vec<u32> {
        let all = self.total();
        let alike = self.counts.windows(2).all(|pair| pair[0] == pair[1]);
        if alike || all.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
            return Vec::new();
        }
        self.counts.iter().map(|count| (count / all * 1e6).round() as u32).collect()
    }

    /// The busiest expert's count as a multiple of the mean (`r_l` of NPUMoE): 1 is balanced.
    pub fn imbalance(&self) -> f64 {
        let most = self.counts.iter().copied().fold(0.0, f64::max);
        let mean = self.total() / self.counts.len().max(1) as f64;
        if mean > 0.0 { most / mean } else { 1.0 }
    }

    /// The experts, the most chosen one first; of equals the one with the lower number.
    pub fn ranking(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.counts.len()).collect();
        all.sort_by(|a, b| self.counts[*b].total_cmp(&self.counts[*a]));
        all
    }

    /// Experts that were never chosen.
    pub fn unused(&self) -> usize {
        self.counts.iter().filter(|count| **count == 0.0).count()
    }

    /// The share of all choices that are one of the `most` most chosen experts.
    pub fn share_of_top(&self, most: usize) -> f64 {
        let top: f64 = self.ranking().iter().take(most).map(|e| self.counts[*e]).sum();
        top / self.total().max(1.0)
    }

    /// Overlap@K: the share of this text's `k` most chosen experts that are also among the `k` most
    /// chosen of another text.
    pub fn overlap(&self, seen: &ExpertUse, k: usize) -> f64 {
        let (ours, theirs) = (self.ranking(), seen.ranking());
        let theirs = &theirs[..k.min(theirs.len())];
        let both = ours.iter().take(k).filter(|e| theirs.contains(e)).count();
        both as f64 / k.min(self.counts.len()).max(1) as f64
    }
}

/// Overlap@K of two texts, the median over layers; `None` without layers that both have.
pub fn median_overlap(offline: &[ExpertUse], seen: &[ExpertUse], k: usize) -> Option<f64> {
    let other = |of: &ExpertUse| seen.iter().find(|other| other.layer == of.layer);
    median(offline.iter().filter_map(|of| Some(of.overlap(other(of)?, k))).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{ExpertUse, median_overlap};

    /// A layer with these counts.
    pub(crate) fn of(layer: usize, counts: &[u32]) -> ExpertUse {
        ExpertUse { layer, counts: counts.iter().copied().map(f64::from).collect() }
    }

    #[test]
    fn figures_of_a_layer() {
        let used = of(0, &[4, 0, 8, 4]);
        assert_eq!((used.imbalance(), used.unused(), used.share_of_top(2)), (2.0, 1, 0.75));
        assert_eq!(used.ranking(), [2, 0, 3, 1]);
        let none = of(0, &[0, 0]);
        assert_eq!((none.imbalance(), none.share_of_top(1)), (1.0, 0.0));
        assert_eq!(of(0, &[]).overlap(&none, 4), 0.0);
    }

    #[test]
    fn overlap_is_the_share_of_the_busiest_that_both_have() {
        let (a, b) = (of(0, &[9, 8, 7, 0]), of(0, &[9, 0, 7, 8]));
        assert_eq!([1, 2, 3, 4].map(|k| a.overlap(&b, k)), [1.0, 0.5, 2.0 / 3.0, 1.0]);
        assert_eq!(a.overlap(&b, 9), 1.0, "no more than there are");
        let (c, d) = (of(1, &[1, 0, 0, 0]), of(1, &[0, 1, 0, 0]));
        assert_eq!(median_overlap(&[a.clone(), c], &[b.clone(), d], 1), Some(0.5));
        assert_eq!(median_overlap(&[a], &[of(7, &[1])], 1), None);
    }
}
