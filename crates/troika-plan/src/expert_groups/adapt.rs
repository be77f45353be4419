//! Which groups of experts are on a device while a model runs: as a calibration says at first, then
//! by what rows choose.

use super::grouping::GroupLimits;

/// How fast residency follows what rows choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptSettings {
    /// What earlier rows count for after each chunk, from 0 to below 1: the mean is over about `1 /
    /// (1 - decay)` chunks.
    pub decay: f64,
    /// A group has to be hotter by this share than what leaves for it.
    pub margin: f64,
    /// For so many steps in a row.
    pub patience: usize,
    /// The most groups that enter in a step.
    pub swaps: usize,
}

impl Default for AdaptSettings {
    fn default() -> Self {
        AdaptSettings { decay: 0.9, margin: 0.25, patience: 3, swaps: 1 }
    }
}

/// A group that may be on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveGroup {
    /// Its layer.
    pub layer: usize,
    /// Its experts.
    pub experts: Vec<usize>,
    /// Bytes that it takes on the device.
    pub bytes: u64,
    /// Rows that it is expected to get of a chunk.
    pub expected_rows: f64,
    /// With fewer rows of a chunk it does not enter, and with less than half of them it leaves.
    pub least_rows: f64,
    /// Whether it is there.
    pub is_resident: bool,
}

/// A change: what leaves, then what enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMove {
    /// Numbers of the groups that leave.
    pub out: Vec<usize>,
    /// The number of the group that enters, if one does.
    pub into: Option<usize>,
}

/// Decides which groups are resident. It is fed the rows of each step, one or more chunks, and has
/// no clock and no chance in it: equal rows give equal changes.
#[derive(Clone, Debug)]
pub struct AdaptiveResidency {
    settings: AdaptSettings,
    limits: GroupLimits,
    groups: Vec<AdaptiveGroup>,
    /// Rows of each group since the last step.
    seen: Vec<f64>,
    /// Steps for which each group was hotter than those that would leave for it, or if it is there
    /// too cold to stay.
    steps: Vec<usize>,
    /// Groups that the device does not take.
    barred: Vec<bool>,
}

impl AdaptiveResidency {
    /// Groups on a device with such limits. What is resident beyond them begins outside, the
    /// coldest first.
    pub fn new(settings: AdaptSettings, limits: GroupLimits, groups: Vec<AdaptiveGroup>) -> Self {
        let (seen, steps) = (vec![0.0; groups.len()], vec![0; groups.len()]);
        let barred = vec![false; groups.len()];
        let mut all = AdaptiveResidency { settings, limits, groups, seen, steps, barred };
        for at in all.coldest() {
            let (bytes, graphs) = all.held();
            all.groups[at].is_resident = all.fits(bytes, graphs);
        }
        all
    }

    /// The groups as they are now; `expected_rows` follows what rows chose.
    pub fn groups(&self) -> &[AdaptiveGroup] {
        &self.groups
    }

    /// The limits.
    pub fn limits(&self) -> &GroupLimits {
        &self.limits
    }

    /// Notes how many rows chose each expert of a layer.
    pub fn saw(&mut self, layer: usize, counts: &[u64]) {
        for (group, seen) in self.groups.iter().zip(&mut self.seen) {
            if group.layer == layer {
                let rows = group.experts.iter().filter_map(|e| counts.get(*e));
                *seen += rows.map(|rows| *rows as f64).sum::<f64>();
            }
        }
    }

    /// Notes that the device did not take a group: it leaves, and does not enter again.
    pub fn bar(&mut self, group: usize) {
        if let (Some(group), Some(barred)) =
            (self.groups.get_mut(group), self.barred.get_mut(group))
        {
            (group.is_resident, *barred) = (false, true);
        }
    }

    /// Ends a step of so many chunks: says what changes, and takes it as changed.
    pub fn step(&mut self, chunks: f64) -> Vec<GroupMove> {
        let keeps = self.settings.decay.clamp(0.0, 1.0).powf(chunks);
        for (group, seen) in self.groups.iter_mut().zip(&mut self.seen) {
            let rows = *seen / chunks.max(f64::MIN_POSITIVE);
            group.expected_rows = keeps * group.expected_rows + (1.0 - keeps) * rows;
            *seen = 0.0;
        }
        let mut moves: Vec<GroupMove> = self.too_cold();
        let mut outside: Vec<usize> =
            (0..self.groups.len()).filter(|at| !self.groups[*at].is_resident).collect();
        outside.sort_by(|a, b| self.heat(*b).total_cmp(&self.heat(*a)));
        let mut entered = 0;
        for into in outside {
            let Some(out) = self.leaves_for(into) else {
                self.steps[into] = 0;
                continue;
            };
            self.steps[into] += 1;
            if entered < self.settings.swaps && self.steps[into] >= self.settings.patience {
                out.iter().for_each(|at| self.place(*at, false));
                self.place(into, true);
                entered += 1;
                moves.push(GroupMove { out, into: Some(into) });
            }
        }
        moves
    }

    /// Groups leave that get too few rows to stay.
    fn too_cold(&mut self) -> Vec<GroupMove> {
        let mut moves = Vec::new();
        for at in 0..self.groups.len() {
            let AdaptiveGroup { expected_rows, least_rows, is_resident, .. } = self.groups[at];
            if !is_resident {
                continue;
            }
            self.steps[at] = if expected_rows < least_rows / 2.0 { self.steps[at] + 1 } else { 0 };
            if self.steps[at] >= self.settings.patience {
                self.place(at, false);
                moves.push(GroupMove { out: vec![at], into: None });
            }
        }
        moves
    }

    fn place(&mut self, at: usize, is_resident: bool) {
        (self.groups[at].is_resident, self.steps[at]) = (is_resident, 0);
    }

    /// Rows for each byte.
    fn heat(&self, at: usize) -> f64 {
        self.groups[at].expected_rows / self.groups[at].bytes.max(1) as f64
    }

    /// Those that are resident, the coldest first.
    fn coldest(&self) -> Vec<usize> {
        let resident = (0..self.groups.len()).filter(|at| self.groups[*at].is_resident);
        let mut all: Vec<usize> = resident.collect();
        all.sort_by(|a, b| self.heat(*a).total_cmp(&self.heat(*b)));
        all
    }

    /// Bytes and number of those that are resident.
    fn held(&self) -> (u64, usize) {
        let resident = self.groups.iter().filter(|group| group.is_resident);
        resident.fold((0, 0), |(bytes, graphs), group| {
            (u64::saturating_add(bytes, group.bytes), graphs + 1)
        })
    }

    fn fits(&self, bytes: u64, graphs: usize) -> bool {
        self.limits.bytes.is_none_or(|most| bytes <= most)
            && self.limits.graphs.is_none_or(|most| graphs <= most)
    }

    /// The coldest groups whose room a group needs; `None` if it does not fit or is not worth it, or
    /// if one of them is about as hot.
    fn leaves_for(&self, into: usize) -> Option<Vec<usize>> {
        let group = &self.groups[into];
        let is_worth = group.expected_rows > 0.0 && group.expected_rows >= group.least_rows;
        if self.barred[into] || !is_worth {
            return None;
        }
        let (held, count) = self.held();
        let (mut bytes, mut graphs) = (held.saturating_add(group.bytes), count + 1);
        let mut out = Vec::new();
        for at in self.coldest() {
            if self.fits(bytes, graphs) {
                break;
            }
            if self.heat(into) <= self.heat(at) * (1.0 + self.settings.margin) {
                return None;
            }
            bytes -= self.groups[at].bytes;
            graphs -= 1;
            out.push(at);
        }
        self.fits(bytes, graphs).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(sizes: &[(u64, f64, bool)]) -> Vec<AdaptiveGroup> {
        let group = |(at, (bytes, expected_rows, is_resident)): (usize, &(u64, f64, bool))| {
            let (layer, experts) = (0, vec![2 * at, 2 * at + 1]);
            AdaptiveGroup {
                layer,
                experts,
                bytes: *bytes,
                expected_rows: *expected_rows,
                least_rows: 0.0,
                is_resident: *is_resident,
            }
        };
        sizes.iter().enumerate().map(group).collect()
    }

    fn bytes(most: u64) -> GroupLimits {
        GroupLimits { bytes: Some(most), ..GroupLimits::default() }
    }

    fn two() -> AdaptiveResidency {
        let all = groups(&[(10, 100.0, true), (10, 50.0, false)]);
        AdaptiveResidency::new(AdaptSettings::default(), bytes(10), all)
    }

    #[test]
    fn what_becomes_hot_enters_once_and_stays() {
        let mut of = two();
        let mut changes = Vec::new();
        for step in 0..60 {
            of.saw(0, &[10, 10, 60, 40]);
            of.saw(7, &[900, 900, 0, 0]);
            changes.extend(of.step(1.0).into_iter().map(|swap| (step, swap)));
        }
        let [(step, swap)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(*swap, GroupMove { out: vec![0], into: Some(1) });
        assert!((5..20).contains(step), "after {step} steps, not at the first sight");
    }

    #[test]
    fn rows_that_go_back_and_forth_move_nothing() {
        let mut of = two();
        for step in 0..200 {
            let counts = if step % 2 == 0 { [60, 60, 60, 60] } else { [70, 50, 80, 55] };
            of.saw(0, &counts);
            assert_eq!(of.step(1.0), []);
        }
    }

    #[test]
    fn free_room_is_taken_without_a_victim() {
        let all = groups(&[(10, 100.0, true), (10, 50.0, false), (30, 900.0, false)]);
        let settings = AdaptSettings { patience: 1, ..AdaptSettings::default() };
        let mut of = AdaptiveResidency::new(settings, bytes(25), all);
        of.saw(0, &[100, 0, 50, 0, 900, 0]);
        assert_eq!(
            of.step(1.0),
            [GroupMove { out: vec![], into: Some(1) }],
            "the third never fits"
        );
    }

    #[test]
    fn what_gets_few_rows_leaves_and_what_the_device_does_not_take_stays_outside() {
        let mut all = groups(&[(10, 100.0, true), (10, 100.0, true), (10, 30.0, false)]);
        all.iter_mut().for_each(|group| group.least_rows = 40.0);
        let mut of = AdaptiveResidency::new(AdaptSettings::default(), bytes(20), all);
        let changes = |of: &mut AdaptiveResidency, counts: &[u64]| -> Vec<GroupMove> {
            let step = |_| {
                of.saw(0, counts);
                of.step(1.0)
            };
            (0..80).flat_map(step).collect()
        };
        let leaves = [GroupMove { out: vec![1], into: None }];
        assert_eq!(changes(&mut of, &[60, 60, 5, 5, 15, 15]), leaves, "30 rows are not worth it");
        let enters = [GroupMove { out: vec![], into: Some(2) }];
        assert_eq!(changes(&mut of, &[60, 60, 5, 5, 30, 20]), enters);
        of.bar(2);
        let few = changes(&mut of, &[20, 5, 25, 0, 90, 90]);
        assert_eq!(few, [], "25 rows are enough to stay, and too few to enter");
        assert!(!of.groups()[2].is_resident);
    }

    #[test]
    fn a_long_step_counts_as_many_short_ones() {
        let (mut once, mut often) = (two(), two());
        once.saw(0, &[100, 100, 600, 400]);
        once.step(10.0);
        for _ in 0..10 {
            often.saw(0, &[10, 10, 60, 40]);
            often.step(1.0);
        }
        for (a, b) in once.groups().iter().zip(often.groups()) {
            assert!((a.expected_rows - b.expected_rows).abs() < 1e-9);
        }
    }

    #[test]
    fn what_is_beyond_the_limits_begins_outside() {
        let all = groups(&[(10, 30.0, true), (10, 10.0, true), (10, 20.0, true)]);
        let resident = |limits| {
            let of = AdaptiveResidency::new(AdaptSettings::default(), limits, all.clone());
            of.groups().iter().map(|g| g.is_resident).collect::<Vec<_>>()
        };
        assert_eq!(resident(bytes(25)), [true, false, true]);
        let graphs = GroupLimits { graphs: Some(1), ..GroupLimits::default() };
        assert_eq!(resident(graphs), [true, false, false]);
    }

    proptest! {
        #[test]
        fn the_room_is_never_exceeded_and_equal_rows_give_equal_changes(
            sizes in prop::collection::vec((1u64..20, 0.0f64..100.0), 1..12),
            bytes in 1u64..60,
            graphs in prop::option::of(1usize..6),
            least in 0.0f64..60.0,
            steps in prop::collection::vec(prop::collection::vec(0u64..200, 24), 1..40),
            (patience, swaps) in (1usize..4, 1usize..4),
        ) {
            let settings = AdaptSettings { patience, swaps, ..AdaptSettings::default() };
            let first = |(size, rows): &(u64, f64)| (*size, *rows, true);
            let mut all = groups(&sizes.iter().map(first).collect::<Vec<_>>());
            all.iter_mut().for_each(|group| group.least_rows = least);
            let limits = GroupLimits { graph_bytes: None, graphs, bytes: Some(bytes) };
            let mut of = AdaptiveResidency::new(settings, limits, all);
            let mut again = of.clone();
            for counts in &steps {
                of.saw(0, counts);
                again.saw(0, counts);
                let before: Vec<bool> = of.groups().iter().map(|g| g.is_resident).collect();
                let changes = of.step(1.0);
                prop_assert_eq!(&changes, &again.step(1.0));
                prop_assert!(changes.iter().filter(|c| c.into.is_some()).count() <= swaps);
                // One after the other, they lead to what is there now, and never beyond the limits.
                let mut now = before;
                for change in &changes {
                    for out in &change.out {
                        prop_assert!(std::mem::replace(&mut now[*out], false));
                    }
                    if let Some(into) = change.into {
                        prop_assert!(!std::mem::replace(&mut now[into], true));
                    }
                    let there = || of.groups().iter().zip(&now).filter(|(_, is)| **is);
                    prop_assert!(there().map(|(g, _)| g.bytes).sum::<u64>() <= bytes);
                    prop_assert!(graphs.is_none_or(|most| there().count() <= most));
                }
                prop_assert!(of.groups().iter().zip(&now).all(|(g, now)| g.is_resident == *now));
            }
        }
    }
}
