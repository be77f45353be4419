//! Which rows and columns of a chunk's values lie in which memory space.

use std::ops::Range;

use troika_device::SpaceId;

/// A buffer for a value or some of its columns; a row of it is `cols` wide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// Where it lies.
    pub space: SpaceId,
    /// The columns that it has room for.
    pub cols: Range<usize>,
    /// The value's row that the buffer begins with. `None`: the first row. Others begin where the
    /// device's alignment ([`troika_device::Caps::offset_alignment`]) would not let it bind the row
    /// inside a larger buffer.
    pub row: Option<usize>,
}

impl Instance {
    /// Room for columns of all rows.
    pub fn new(space: SpaceId, cols: Range<usize>) -> Instance {
        Instance { space, cols, row: None }
    }
}

/// A rectangle of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub cols: Range<usize>,
}

/// The intersection of two ranges, which may be empty.
pub(crate) fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl Area {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cols.is_empty()
    }

    /// The intersection, if it is not empty.
    fn common(&self, other: &Area) -> Option<Area> {
        let rows = common(&self.rows, &other.rows);
        Some(Area { rows, cols: common(&self.cols, &other.cols) }).filter(|a| !a.is_empty())
    }

    /// Appends the rest of this area without another one: the parts above, below, left and right of
    /// their intersection.
    fn without(&self, other: &Area, out: &mut Vec<Area>) {
        let Some(both) = self.common(other) else { return out.push(self.clone()) };
        let rows = |rows| Area { rows, cols: self.cols.clone() };
        let cols = |cols| Area { rows: both.rows.clone(), cols };
        let parts = [
            rows(self.rows.start..both.rows.start),
            rows(both.rows.end..self.rows.end),
            cols(self.cols.start..both.cols.start),
            cols(both.cols.end..self.cols.end),
        ];
        out.extend(parts.into_iter().filter(|a| !a.is_empty()));
    }
}

/// Which areas of a value its instances hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Residency {
    held: Vec<(Instance, Area)>,
}

/// An area that an instance lacks and another one holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub from: Instance,
    pub area: Area,
}

impl Residency {
    /// Notes that an instance holds an area.
    pub fn add(&mut self, instance: Instance, area: Area) {
        self.held.push((instance, area));
    }

    /// The instances that hold anything.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.held.iter().map(|(i, _)| i)
    }

    /// What an instance lacks of an area, and where to get it: from host memory if possible. Areas
    /// that no instance holds are left out.
    pub fn missing(&self, instance: &Instance, area: &Area) -> Vec<Missing> {
        let mut lacks = vec![area.clone()];
        let mut found = Vec::new();
        self.take(&mut lacks, |i| i == instance, |_, _| {});
        for host in [true, false] {
            self.take(
                &mut lacks,
                |i| (i.space == SpaceId::HOST) == host && i != instance,
                |from, area| found.push(Missing { from: from.clone(), area }),
            );
        }
        found
    }

    /// Removes from `lacks` what some instances hold, and lists each removed part.
    fn take(
        &self,
        lacks: &mut Vec<Area>,
        from: impl Fn(&Instance) -> bool,
        mut found: impl FnMut(&Instance, Area),
    ) {
        for (instance, area) in self.held.iter().filter(|(i, _)| from(i)) {
            let mut left = Vec::new();
            for lack in lacks.iter() {
                if let Some(both) = lack.common(area) {
                    found(instance, both);
                }
                lack.without(area, &mut left);
            }
            *lacks = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn area(rows: Range<usize>, cols: Range<usize>) -> Area {
        Area { rows, cols }
    }

    #[test]
    fn what_is_there_is_not_fetched_again() {
        let own = Instance::new(SpaceId::unique(), 0..8);
        let host = Instance::new(SpaceId::HOST, 0..8);
        let mut r = Residency::default();
        r.add(host.clone(), area(0..4, 0..5));
        r.add(own.clone(), area(0..4, 5..8));
        let need = area(0..4, 0..8);
        let from = |from: &Instance, area| vec![Missing { from: from.clone(), area }];
        assert_eq!(r.missing(&own, &need), from(&host, area(0..4, 0..5)));
        assert_eq!(r.missing(&host, &need), from(&own, area(0..4, 5..8)));
        assert_eq!(r.missing(&host, &area(1..2, 2..5)), []);
        r.add(own.clone(), area(0..4, 0..5));
        assert_eq!(r.missing(&own, &need), []);
        let dense = Instance::new(SpaceId::HOST, 4..6);
        let both = r.missing(&dense, &area(3..4, 4..6));
        assert_eq!(
            both,
            [(&host, 4..5), (&own, 5..6)]
                .map(|(i, cols)| Missing { from: i.clone(), area: area(3..4, cols) })
        );
        assert_eq!(Residency::default().missing(&host, &need), []);
    }

    proptest! {
        /// Cell by cell: a needed cell that only other instances hold is fetched exactly once, from
        /// one of them.
        #[test]
        fn each_cell_is_fetched_once(
            held in proptest::collection::vec((0..3usize, 0..6usize, 1..6usize, 0..6usize, 1..6usize), 0..6),
            need in (0..6usize, 1..6usize, 0..6usize, 1..6usize),
        ) {
            let instances = [
                Instance::new(SpaceId::HOST, 0..12),
                Instance::new(SpaceId::unique(), 0..12),
                Instance::new(SpaceId::HOST, 2..9),
            ];
            let mut r = Residency::default();
            for (i, row, rows, col, cols) in &held {
                r.add(instances[*i].clone(), area(*row..row + rows, *col..col + cols));
            }
            let need = area(need.0..need.0 + need.1, need.2..need.2 + need.3);
            let found = r.missing(&instances[1], &need);
            let has = |i: &Instance, row: usize, col: usize| {
                r.held.iter().any(|(j, a)| i == j && a.rows.contains(&row) && a.cols.contains(&col))
            };
            for row in 0..12 {
                for col in 0..12 {
                    let inside = need.rows.contains(&row) && need.cols.contains(&col);
                    let fetched: Vec<&Missing> = found
                        .iter()
                        .filter(|m| m.area.rows.contains(&row) && m.area.cols.contains(&col))
                        .collect();
                    let elsewhere = has(&instances[0], row, col) || has(&instances[2], row, col);
                    let wanted = inside && !has(&instances[1], row, col) && elsewhere;
                    prop_assert_eq!(fetched.len(), usize::from(wanted));
                    prop_assert!(fetched.iter().all(|m| has(&m.from, row, col)));
                }
            }
        }
    }
}
