//! Which groups of experts are on a device while a model runs: as a calibration says at first, then
//! by what rows choose. Where a group runs changes no result.

/// How fast residency follows what rows choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptSettings {
    /// What earlier rows count for after each step, from 0 to below 1: the mean is over about `1 /
    /// (1 - decay)` steps.
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
    /// Rows that it is expected to get in a step.
    pub expected_rows: f64,
    /// Whether it is there.
    pub is_resident: bool,
}

/// A change: what leaves, then what enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSwap {
    /// Numbers of the groups that leave.
    pub out: Vec<usize>,
    /// The number of the group that enters.
    pub into: usize,
}

/// Decides which groups are resident. It is fed the rows of each step, a chunk or a prompt, and has
/// no clock and no chance in it: equal rows give equal changes.
#[derive(Clone, Debug)]
pub struct AdaptiveResidency {
    settings: AdaptSettings,
    bytes: u64,
    groups: Vec<AdaptiveGroup>,
    /// Rows of each group since the last step.
    seen: Vec<f64>,
    /// Steps for which each group was hotter than those that would leave for it.
    hotter: Vec<usize>,
}

impl AdaptiveResidency {
    /// Groups on a device of so many bytes.
    pub fn new(settings: AdaptSettings, bytes: u64, groups: Vec<AdaptiveGroup>) -> Self {
        let (seen, hotter) = (vec![0.0; groups.len()], vec![0; groups.len()]);
        AdaptiveResidency { settings, bytes, groups, seen, hotter }
    }

    /// The groups as they are now; `expected_rows` follows what rows chose.
    pub fn groups(&self) -> &[AdaptiveGroup] {
        &self.groups
    }

    /// Notes how many rows chose each expert of a layer.
    pub fn saw(&mut self, layer: usize, counts: &[u32]) {
        for (group, seen) in self.groups.iter().zip(&mut self.seen) {
            if group.layer == layer {
                let rows = group.experts.iter().filter_map(|e| counts.get(*e));
                *seen += rows.copied().map(f64::from).sum::<f64>();
            }
        }
    }

    /// Ends a step: says what changes, and takes it as changed.
    pub fn step(&mut self) -> Vec<GroupSwap> {
        let keeps = self.settings.decay.clamp(0.0, 1.0);
        for (group, seen) in self.groups.iter_mut().zip(&mut self.seen) {
            group.expected_rows = keeps * group.expected_rows + (1.0 - keeps) * *seen;
            *seen = 0.0;
        }
        let mut swaps = Vec::new();
        let mut outside: Vec<usize> =
            (0..self.groups.len()).filter(|at| !self.groups[*at].is_resident).collect();
        outside.sort_by(|a, b| self.heat(*b).total_cmp(&self.heat(*a)));
        for into in outside {
            let Some(out) = self.leaves_for(into) else {
                self.hotter[into] = 0;
                continue;
            };
            self.hotter[into] += 1;
            if swaps.len() < self.settings.swaps && self.hotter[into] >= self.settings.patience {
                out.iter().for_each(|at| self.groups[*at].is_resident = false);
                self.groups[into].is_resident = true;
                self.hotter[into] = 0;
                swaps.push(GroupSwap { out, into });
            }
        }
        swaps
    }

    /// Rows for each byte.
    fn heat(&self, at: usize) -> f64 {
        self.groups[at].expected_rows / self.groups[at].bytes.max(1) as f64
    }

    /// The coldest groups whose room a group needs; `None` if it does not fit, or if one of them is
    /// about as hot.
    fn leaves_for(&self, into: usize) -> Option<Vec<usize>> {
        let resident = || (0..self.groups.len()).filter(|at| self.groups[*at].is_resident);
        let held: u64 = resident().map(|at| self.groups[at].bytes).sum();
        let (needs, mut free) = (self.groups[into].bytes, self.bytes.saturating_sub(held));
        let mut coldest: Vec<usize> = resident().collect();
        coldest.sort_by(|a, b| self.heat(*a).total_cmp(&self.heat(*b)));
        let mut out = Vec::new();
        for at in coldest {
            if free >= needs {
                break;
            }
            if self.heat(into) <= self.heat(at) * (1.0 + self.settings.margin) {
                return None;
            }
            free += self.groups[at].bytes;
            out.push(at);
        }
        (free >= needs && self.groups[into].expected_rows > 0.0).then_some(out)
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
                is_resident: *is_resident,
            }
        };
        sizes.iter().enumerate().map(group).collect()
    }

    fn two() -> AdaptiveResidency {
        let all = groups(&[(10, 100.0, true), (10, 50.0, false)]);
        AdaptiveResidency::new(AdaptSettings::default(), 10, all)
    }

    #[test]
    fn what_becomes_hot_enters_once_and_stays() {
        let mut of = two();
        let mut changes = Vec::new();
        for step in 0..60 {
            of.saw(0, &[10, 10, 60, 40]);
            of.saw(7, &[900, 900, 0, 0]);
            changes.extend(of.step().into_iter().map(|swap| (step, swap)));
        }
        let [(step, swap)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(*swap, GroupSwap { out: vec![0], into: 1 });
        assert!((5..20).contains(step), "after {step} steps, not at the first sight");
    }

    #[test]
    fn rows_that_go_back_and_forth_move_nothing() {
        let mut of = two();
        for step in 0..200 {
            let counts = if step % 2 == 0 { [60, 60, 60, 60] } else { [70, 50, 80, 55] };
            of.saw(0, &counts);
            assert_eq!(of.step(), []);
        }
    }

    #[test]
    fn free_room_is_taken_without_a_victim() {
        let all = groups(&[(10, 100.0, true), (10, 50.0, false), (30, 900.0, false)]);
        let settings = AdaptSettings { patience: 1, ..AdaptSettings::default() };
        let mut of = AdaptiveResidency::new(settings, 25, all);
        of.saw(0, &[100, 0, 50, 0, 900, 0]);
        assert_eq!(of.step(), [GroupSwap { out: vec![], into: 1 }], "the third never fits");
    }

    proptest! {
        #[test]
        fn the_room_is_never_exceeded_and_equal_rows_give_equal_changes(
            sizes in prop::collection::vec((1u64..20, 0.0f64..100.0), 1..12),
            bytes in 1u64..60,
            steps in prop::collection::vec(prop::collection::vec(0u32..200, 24), 1..40),
            (patience, swaps) in (1usize..4, 1usize..4),
        ) {
            let settings = AdaptSettings { patience, swaps, ..AdaptSettings::default() };
            let mut room = bytes;
            let first = |(size, rows): &(u64, f64)| {
                let fits = *size <= room;
                room -= if fits { *size } else { 0 };
                (*size, *rows, fits)
            };
            let all = groups(&sizes.iter().map(first).collect::<Vec<_>>());
            let mut of = AdaptiveResidency::new(settings, bytes, all);
            let mut again = of.clone();
            for counts in &steps {
                of.saw(0, counts);
                again.saw(0, counts);
                let before: Vec<bool> = of.groups().iter().map(|g| g.is_resident).collect();
                let changes = of.step();
                prop_assert_eq!(&changes, &again.step());
                prop_assert!(changes.len() <= swaps);
                for change in &changes {
                    prop_assert!(!before[change.into] && of.groups()[change.into].is_resident);
                }
                let held = of.groups().iter().filter(|g| g.is_resident).map(|g| g.bytes).sum::<u64>();
                prop_assert!(held <= bytes);
            }
        }
    }
}
