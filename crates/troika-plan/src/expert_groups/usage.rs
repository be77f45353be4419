//! What groups of experts make of a chunk's rows: padding, overflow and drops.

use crate::experts::{ExpertGroupPlan, Overflow};

/// Rows that groups compute, and those that they do not. A choice is a row with one of its experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Choices.
    pub choices: u64,
    /// Choices of experts in no group.
    pub ungrouped: u64,
    /// Choices beyond a capacity that another device computes.
    pub overflow: u64,
    /// Choices beyond a capacity that are left out.
    pub dropped: u64,
    /// Rows that graphs compute, padding included.
    pub computed: u64,
    /// Runs of graphs: those without rows do not run.
    pub launches: u64,
}

impl GroupUsage {
    /// That of a chunk, by how many of its rows chose each expert.
    pub fn of_chunk(
        counts: &[usize],
        groups: &[ExpertGroupPlan],
        overflow: Overflow,
    ) -> GroupUsage {
        let mut left: Vec<u64> = counts.iter().map(|n| *n as u64).collect();
        let mut usage = GroupUsage { choices: left.iter().sum(), ..GroupUsage::default() };
        for group in groups {
            let room = group.capacity as u64;
            let mut taken = 0;
            for expert in &group.experts {
                // What earlier groups of the expert left.
                let Some(rows) = left.get_mut(*expert) else { continue };
                let of_group = (*rows).min(room);
                (*rows, taken) = (*rows - of_group, taken + of_group);
            }
            if taken > 0 {
                usage.launches += 1;
                usage.computed += room * group.experts.len() as u64;
            }
        }
        for (expert, rows) in left.into_iter().enumerate() {
            let in_group = groups.iter().any(|group| group.experts.contains(&expert));
            let of = match overflow {
                _ if !in_group => &mut usage.ungrouped,
                Overflow::Prune => &mut usage.dropped,
                Overflow::Cpu | Overflow::Pad => &mut usage.overflow,
            };
            *of += rows;
        }
        usage
    }

    /// Adds another chunk's.
    pub fn add(&mut self, other: &GroupUsage) {
        self.choices += other.choices;
        self.ungrouped += other.ungrouped;
        self.overflow += other.overflow;
        self.dropped += other.dropped;
        self.computed += other.computed;
        self.launches += other.launches;
    }

    /// Choices that groups compute.
    pub fn grouped(&self) -> u64 {
        self.choices.saturating_sub(self.ungrouped + self.overflow + self.dropped)
    }

    /// The share of computed rows that are padding.
    pub fn padding_rate(&self) -> f64 {
        self.computed.saturating_sub(self.grouped()) as f64 / self.computed.max(1) as f64
    }

    /// The share of choices that are left out.
    pub fn drop_rate(&self) -> f64 {
        self.dropped as f64 / self.choices.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::GroupUsage;
    use crate::experts::{ExpertGroupPlan, Overflow};

    fn plan(experts: &[usize], capacity: usize) -> ExpertGroupPlan {
        ExpertGroupPlan::new("npu", experts.to_vec(), capacity)
    }

    /// The paper's example: a full slice, two that are partly padded, and one of padding only.
    #[test]
    fn padding_and_drops_are_counted() {
        let groups = [plan(&[0, 1, 2, 3], 16), plan(&[5], 8)];
        let counts = [20, 3, 5, 0, 9, 0];
        let usage = GroupUsage::of_chunk(&counts, &groups, Overflow::Prune);
        let expected = GroupUsage {
            choices: 37,
            ungrouped: 9,
            overflow: 0,
            dropped: 4,
            computed: 64,
            launches: 1,
        };
        assert_eq!((usage, usage.grouped()), (expected, 24));
        assert_eq!((usage.padding_rate(), usage.drop_rate()), (40.0 / 64.0, 4.0 / 37.0));
        let kept = GroupUsage::of_chunk(&counts, &groups, Overflow::Cpu);
        assert_eq!((kept.overflow, kept.dropped, kept.drop_rate()), (4, 0, 0.0));
        assert_eq!(GroupUsage::default().padding_rate(), 0.0);
        // A second group of the busiest expert takes what the first one left.
        let divided = [plan(&[0], 16), plan(&[0, 1], 8)];
        let usage = GroupUsage::of_chunk(&counts, &divided, Overflow::Prune);
        assert_eq!((usage.grouped(), usage.dropped, usage.ungrouped), (23, 0, 14));
        assert_eq!((usage.launches, usage.computed), (2, 32));
    }

    proptest! {
        #[test]
        fn every_choice_is_somewhere(
            counts in prop::collection::vec(0usize..90, 8),
            capacity in 1usize..64,
            prune: bool,
        ) {
            let overflow = if prune { Overflow::Prune } else { Overflow::Cpu };
            let groups = [plan(&[4, 1], capacity), plan(&[7, 0, 2], 2 * capacity)];
            let usage = GroupUsage::of_chunk(&counts, &groups, overflow);
            let grouped: usize = groups.iter().flat_map(|g| g.experts.iter().map(|e| counts[*e].min(g.capacity))).sum();
            prop_assert_eq!(usage.grouped(), grouped as u64);
            prop_assert!(usage.computed >= usage.grouped());
            let mut twice = usage;
            twice.add(&usage);
            prop_assert_eq!(twice.padding_rate(), usage.padding_rate());
            prop_assert_eq!(twice.choices, 2 * usage.choices);
        }
    }
}
