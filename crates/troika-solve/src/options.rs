//! The ways to place one kind of segment: whole, by columns, by rows, or both.

use std::collections::{BTreeSet, HashSet};

use troika_model::lower::SegmentKind;
use troika_plan::{PlanDevice, Rule, Share, Split, Stage};

/// The unit of column shares: 1/64.
pub(super) const PARTS: u32 = 64;

/// Where a kind of segment runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Placement {
    pub device: String,
    pub split: Option<Split>,
    /// The numbers of rows to compile for; `None`: each device's own.
    pub row_buckets: Option<Vec<usize>>,
}

impl Placement {
    pub fn whole(device: &str) -> Placement {
        Placement { device: device.into(), split: None, row_buckets: None }
    }

    /// Columns divided between two devices; `share` is the first one's, in [`PARTS`].
    pub fn columns(a: &str, b: &str, share: u32) -> Placement {
        let share = share.clamp(1, PARTS - 1);
        let owner = if share * 2 >= PARTS { a } else { b };
        Placement::split(owner, Split::Columns { parts: shares(a, b, share) })
    }

    /// A split on `device`, or with the standard part there.
    pub fn split(device: &str, split: Split) -> Placement {
        Placement { device: device.into(), split: Some(split), row_buckets: None }
    }

    /// A description for people.
    pub fn describe(&self) -> String {
        let whole = || format!("whole on {}", self.device);
        self.split.as_ref().map_or_else(whole, |split| split.describe(&self.device))
    }

    /// The placement of a stage.
    pub fn of(stage: &Stage) -> Placement {
        let (device, split) = (stage.device.clone(), stage.split.clone());
        Placement { device, split, row_buckets: None }
    }
}

fn shares(a: &str, b: &str, share: u32) -> Vec<Share> {
    let part = |device: &str, share| Share { device: device.into(), share };
    vec![part(a, share), part(b, PARTS - share)]
}

/// Rules for kinds of segments. Kinds with equal placements share one.
pub(super) fn rules(placed: &[(SegmentKind, Placement)]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (kind, p) in placed {
        let same = |r: &&mut Rule| {
            (&r.device, &r.split, &r.row_buckets) == (&p.device, &p.split, &p.row_buckets)
        };
        match rules.iter_mut().find(same) {
            Some(rule) => rule.segments.get_or_insert_default().push(*kind),
            None => rules.push(Rule {
                segments: Some(vec![*kind]),
                split: p.split.clone(),
                row_buckets: p.row_buckets.clone(),
                ..Rule::on(&p.device)
            }),
        }
    }
    if let [only] = &mut rules[..] {
        only.segments = None;
    }
    rules
}

/// The input of [`KindRequest::options`].
pub(super) struct KindRequest<'a> {
    pub kind: SegmentKind,
    /// The most rows.
    pub rows: usize,
    /// Whether it is prefill: a decoded token has one row, which cannot be split.
    pub prefill: bool,
    pub devices: &'a [PlanDevice],
    /// For each device, the cost of the whole segment on it.
    pub whole_ns: &'a [f64],
}

impl KindRequest<'_> {
    /// All placements worth pricing.
    pub fn options(&self) -> Vec<Placement> {
        let names: Vec<&str> = self.devices.iter().map(|d| d.name.as_str()).collect();
        let mut all: Vec<Placement> = names.iter().map(|n| Placement::whole(n)).collect();
        for (i, a) in names.iter().enumerate() {
            for (j, b) in names.iter().enumerate() {
                if i < j && self.kind.traits().by_columns {
                    let shares = self.column_shares(i, j);
                    all.extend(shares.into_iter().map(|s| Placement::columns(a, b, s)));
                }
                if i != j && self.prefill && self.kind.traits().by_rows {
                    all.extend(self.row_splits(i, j));
                }
            }
        }
        let mut seen = HashSet::new();
        all.retain(|p| seen.insert(p.clone()));
        all
    }

    /// The first device's share with which both would end together, by their times for all.
    pub fn balanced(&self, a: usize, b: usize) -> u32 {
        let (ta, tb) = (self.whole_ns[a], self.whole_ns[b]);
        let share = f64::from(PARTS) * tb / (ta + tb);
        if share.is_finite() { (share.round() as u32).clamp(1, PARTS - 1) } else { PARTS / 2 }
    }

    fn column_shares(&self, a: usize, b: usize) -> BTreeSet<u32> {
        let balanced = self.balanced(a, b);
        let near = [0_i64, -2, 2, -4, 4, -8, 8].map(|d| i64::from(balanced) + d);
        let near = near.into_iter().filter(|s| (1..i64::from(PARTS)).contains(s));
        near.map(|s| s as u32).chain([8, 16, 24, 32, 40, 48, 56]).collect()
    }

    /// Standard lengths on one device, the rest on another or by columns on both.
    fn row_splits(&self, a: usize, b: usize) -> Vec<Placement> {
        let (device, rest) = (&self.devices[a], &self.devices[b].name);
        let fits = |n: &usize| *n < self.rows;
        let mut sets: Vec<Vec<usize>> = if device.caps.static_shapes {
            let all: Vec<usize> = device.caps.row_buckets.iter().copied().filter(fits).collect();
            let mut sets: Vec<Vec<usize>> = all.iter().map(|n| vec![*n]).collect();
            if device.caps.code_weights.is_none() {
                sets.push(all);
            }
            sets
        } else {
            // Lengths around the one that takes both devices the same time.
            let share = self.balanced(a, b) as usize;
            let near = [share, share + 4, share.saturating_sub(4), share + 8];
            let length = |s: usize| (self.rows * s / PARTS as usize).next_multiple_of(TILE_ROWS);
            near.into_iter().map(|s| vec![length(s)]).collect()
        };
        // Two equal lengths would leave a different rest.
        sets.retain(|s| !s.is_empty() && s.iter().all(|n| *n > 0 && *n < self.rows));
        sets.dedup();
        let mut all = Vec::new();
        for lengths in sets {
            let split = Split::Rows { lengths: lengths.clone(), rest: rest.clone() };
            all.push(Placement::split(&device.name, split));
            if self.kind.traits().by_columns && device.caps.static_shapes {
                let balanced = self.balanced(a, b);
                for share in [balanced, 16, 32, 48] {
                    let parts = shares(&device.name, rest, share);
                    let split = Split::Hybrid { lengths: lengths.clone(), parts };
                    all.push(Placement::split(&device.name, split));
                }
            }
        }
        all
    }
}

/// Rows are split at multiples of this number, since kernels compute several rows at once.
const TILE_ROWS: usize = 16;
