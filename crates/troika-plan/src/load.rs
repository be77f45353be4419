//! Going by load: other ways to place chunks of a length, what each of them is predicted to take,
//! and the choice between them when a chunk is started.
//!
//! A plan goes by the length of a chunk alone unless it holds such ways (`by_load`) and whoever runs
//! it leaves them in it ([`Plan::decided`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;

use crate::{Phase, Plan, PlanError, Rule};

/// By what it is decided where a chunk runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Decide {
    /// By its length: the same chunk always runs in the same place.
    #[default]
    Length,
    /// By its length, by what devices have to do besides, and by how slow they have been of late.
    /// Where a chunk runs, and with it the last digits of its numbers where devices round
    /// differently, may then differ from run to run.
    Load,
}

impl Decide {
    /// All of them.
    pub const ALL: [Decide; 2] = [Decide::Length, Decide::Load];

    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Decide::Length => "length",
            Decide::Load => "load",
        }
    }

    /// The one of a name.
    pub fn parse(name: &str) -> Option<Decide> {
        Decide::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// Other ways to place the chunks of a length bucket. Part of the plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRules {
    /// The bucket, by its most rows; that of full chunks by the chunk length.
    pub up_to: usize,
    /// What the bucket's own rules are predicted to take.
    pub own: ChunkTimes,
    /// The other ways.
    pub others: Vec<OtherRules>,
}

/// Another way to place chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherRules {
    /// When it is of use, for people.
    pub name: String,
    /// Where each segment runs. Each product takes its activations in the same formats as by the
    /// bucket's own rules.
    pub rules: Vec<Rule>,
    /// What it is predicted to take.
    pub times: ChunkTimes,
}

/// What chunks of a bucket are predicted to take on an idle machine, by three of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkTimes {
    /// The shortest, with nothing cached.
    pub shortest: ChunkTime,
    /// The longest, with nothing cached.
    pub longest: ChunkTime,
    /// The longest behind as much as can be cached.
    pub behind: ChunkTime,
}

/// What a chunk is predicted to take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkTime {
    /// Its rows.
    pub rows: usize,
    /// Positions that are cached before.
    pub cached: usize,
    /// From its start to its end.
    pub us: f64,
    /// What of it each device has to do. Devices that have nothing to do are left out.
    pub devices: BTreeMap<String, DeviceTime>,
}

/// What of a chunk a device is predicted to have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTime {
    /// How long it has something to do: from when it can go on to the end of what it goes on with.
    pub busy_us: f64,
    /// From the start of the first of it to the end of the last.
    pub span_us: f64,
}

/// How much a device has to do besides a chunk that is to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLoad {
    /// How many times longer than predicted what goes through it has taken of late; at least 1.
    pub slower: f64,
    /// Microseconds until it is done with what it was given before.
    pub queued_us: f64,
}

impl Default for DeviceLoad {
    fn default() -> DeviceLoad {
        DeviceLoad { slower: 1.0, queued_us: 0.0 }
    }
}

/// A bucket's own rules are left if another way is predicted to take less of their time than this
/// share: neither predictions nor loads are exact.
const WORTH_LEAVING: f64 = 0.95;

impl ChunkTimes {
    fn points(&self) -> [&ChunkTime; 3] {
        [&self.shortest, &self.longest, &self.behind]
    }

    /// A figure of a chunk of some rows behind some cached positions: in a straight line between
    /// the shortest and the longest chunk, and by the cached positions from there.
    fn between(&self, (rows, cached): (usize, usize), of: impl Fn(&ChunkTime) -> f64) -> f64 {
        let [a, b, c] = self.points();
        let part = |n: usize, all: usize| if all == 0 { 0.0 } else { n as f64 / all as f64 };
        let part_of_rows = part(rows.saturating_sub(a.rows), b.rows.saturating_sub(a.rows));
        let alone = of(a) + (of(b) - of(a)) * part_of_rows.min(1.0);
        let behind = (of(c) - of(b)).max(0.0) * part(cached, c.cached) * part(rows, b.rows);
        alone + behind
    }

    /// What a device has to do of a chunk of some rows behind some cached positions.
    pub fn of_device(&self, device: &str, chunk: (usize, usize)) -> DeviceTime {
        let of = |t: &ChunkTime| t.devices.get(device).copied().unwrap_or_default();
        DeviceTime {
            busy_us: self.between(chunk, |t| of(t).busy_us),
            span_us: self.between(chunk, |t| of(t).span_us),
        }
    }

    /// When a chunk is done that is started now. It begins when all its devices are done with what
    /// they were given before. A device that is slower than predicted makes all longer that goes
    /// through it, however little of each layer it has to do: others wait for it there.
    pub fn done_us(&self, chunk: (usize, usize), devices: &[String], loads: &[DeviceLoad]) -> f64 {
        let (mut begins, mut longer) = (0.0_f64, 0.0);
        for (device, load) in devices.iter().zip(loads) {
            let own = self.of_device(device, chunk);
            if own.busy_us > 0.0 {
                begins = begins.max(load.queued_us);
                longer += own.span_us * (load.slower - 1.0);
            }
        }
        begins + self.between(chunk, |t| t.us) + longer
    }
}

impl LoadRules {
    /// Where a chunk of some rows behind some cached positions is predicted to be done first: 0 by
    /// the bucket's own rules, or the number of another way, counted from 1. `devices` are the
    /// plan's, with the load of each. The same loads always give the same way.
    pub fn choose(&self, chunk: (usize, usize), devices: &[String], loads: &[DeviceLoad]) -> usize {
        let done = |times: &ChunkTimes| times.done_us(chunk, devices, loads);
        let mut best = (done(&self.own) * WORTH_LEAVING, 0);
        for (i, other) in self.others.iter().enumerate() {
            let us = done(&other.times);
            if us < best.0 {
                best = (us, i + 1);
            }
        }
        best.1
    }

    /// The times of a way, by its number.
    pub fn times(&self, way: usize) -> &ChunkTimes {
        way.checked_sub(1).and_then(|i| self.others.get(i)).map_or(&self.own, |o| &o.times)
    }
}

impl Plan {
    /// The plan as it runs where it is so decided: by length, without its other ways, and the
    /// devices of which only these made use.
    #[must_use]
    pub fn decided(mut self, by: Decide) -> Plan {
        if by == Decide::Length && !self.by_load.is_empty() {
            self.by_load.clear();
            let used: Vec<String> =
                self.all_rules().flat_map(Rule::devices).map(String::from).collect();
            self.devices.retain(|d| used.contains(d));
            let critical = self.prefill.critical_device.take();
            self.prefill.critical_device = critical.filter(|d| self.devices.contains(d));
        }
        self
    }

    /// The other ways for chunks of so many rows.
    pub fn load_rules(&self, rows: usize) -> Option<&LoadRules> {
        let up_to = self.rule_lists(Phase::Prefill).map(|l| l.0).find(|n| rows <= *n)?;
        self.by_load.iter().find(|l| l.up_to == up_to)
    }

    /// The rule for a segment in a forward batch of so many rows, in a way by its number.
    pub fn rule_in(
        &self,
        (phase, rows, way): (Phase, usize, usize),
        kind: SegmentKind,
        layer: Option<usize>,
    ) -> Option<&Rule> {
        let Some(other) = way.checked_sub(1) else {
            return self.rule_for((phase, rows), kind, layer);
        };
        let other = self.load_rules(rows).and_then(|l| l.others.get(other))?;
        other.rules.iter().find(|r| r.matches(kind, layer))
    }

    /// The lists of other ways, each with the most rows of a chunk that it is for.
    pub(crate) fn other_lists(&self) -> impl Iterator<Item = (usize, &[Rule])> {
        self.by_load.iter().flat_map(|l| {
            let up_to = l.up_to;
            l.others.iter().map(move |o| (up_to, o.rules.as_slice()))
        })
    }

    /// Other ways are of a bucket that there is, compute the same numbers but for rounding, and
    /// have times of devices of the plan.
    pub(crate) fn check_loads(&self) -> Result<(), PlanError> {
        for (i, l) in self.by_load.iter().enumerate() {
            let refuse = |why: &str| {
                let up_to = l.up_to;
                let why = format!("by_load has, for chunks of up to {up_to} rows, {why}");
                Err(PlanError::Lengths(why))
            };
            let own = self.rule_lists(Phase::Prefill).find(|(n, _)| *n == l.up_to);
            let Some((_, own)) = own else {
                return refuse("other ways, and the plan has no such bucket of lengths");
            };
            if self.by_load[..i].iter().any(|b| b.up_to == l.up_to) {
                return refuse("two lists; make one of them");
            }
            let all = l.others.iter().map(|o| &o.times).chain([&l.own]);
            for time in all.flat_map(ChunkTimes::points) {
                let known = |d: &String| self.devices.contains(d);
                if !time.devices.keys().all(known) {
                    return refuse("times of a device that the plan does not list");
                }
                let of_devices = time.devices.values().flat_map(|t| [t.busy_us, t.span_us]);
                if !of_devices.chain([time.us]).all(|us| us.is_finite() && us >= 0.0) {
                    return refuse("a time that is negative or no number");
                }
            }
            let differs = |o: &OtherRules| formats_differ(own, &o.rules);
            if let Some(kind) = l.others.iter().find_map(differs) {
                return refuse(&format!(
                    "a way in which {kind} has other activation formats or value types than by \
                     the plan's own rules; give it the same"
                ));
            }
        }
        Ok(())
    }
}

/// A kind of segment whose numbers two lists of rules do not compute alike.
fn formats_differ(own: &[Rule], other: &[Rule]) -> Option<&'static str> {
    let meet = |a: &Rule, b: &Rule| {
        let layers = match (a.layers, b.layers) {
            (Some(a), Some(b)) => (a.first..=a.last).any(|l| a.contains(l) && b.contains(l)),
            _ => true,
        };
        SegmentKind::ALL.into_iter().find(|k| {
            let of = |r: &Rule| r.segments.as_ref().is_none_or(|kinds| kinds.contains(k));
            layers && of(a) && of(b)
        })
    };
    let alike = |a: &Rule, b: &Rule| (a.values, &a.activations) == (b.values, &b.activations);
    let pairs = own.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
    let mut unlike = pairs.filter(|(a, b)| !alike(a, b));
    unlike.find_map(|(a, b)| meet(a, b)).map(|k| k.name())
}

#[cfg(test)]
mod tests {
    use super::{ChunkTime, ChunkTimes, DeviceLoad, DeviceTime, LoadRules, OtherRules};

    fn time(rows: usize, cached: usize, us: f64, devices: [f64; 2]) -> ChunkTime {
        let names = ["a", "b"].into_iter().zip(devices).filter(|(_, us)| *us > 0.0);
        let time = |span_us: f64| DeviceTime { busy_us: span_us / 2.0, span_us };
        let devices = names.map(|(name, us)| (name.to_string(), time(us))).collect();
        ChunkTime { rows, cached, us, devices }
    }

    /// From 1 to 101 rows; each cached position costs the first device a hundredth of a row.
    fn times(us: f64, devices: [f64; 2]) -> ChunkTimes {
        let behind = if devices[0] > 0.0 { 100.0 } else { 0.0 };
        ChunkTimes {
            shortest: time(1, 0, us / 10.0, devices.map(|us| us / 10.0)),
            longest: time(101, 0, us, devices),
            behind: time(101, 1000, us + behind, [devices[0] + behind, devices[1]]),
        }
    }

    fn rules() -> LoadRules {
        let other = |name: &str, times| OtherRules { name: name.into(), rules: vec![], times };
        LoadRules {
            up_to: 101,
            own: times(100.0, [90.0, 80.0]),
            others: vec![
                other("mostly b", times(140.0, [10.0, 130.0])),
                other("only b", times(200.0, [0.0, 200.0])),
                other("only a", times(150.0, [150.0, 0.0])),
            ],
        }
    }

    fn chosen(chunk: (usize, usize), slower: [f64; 2], queued_us: [f64; 2]) -> usize {
        let devices = ["a".to_string(), "b".to_string()];
        let load = |d: usize| DeviceLoad { slower: slower[d], queued_us: queued_us[d] };
        rules().choose(chunk, &devices, &[load(0), load(1)])
    }

    #[test]
    fn figures_are_on_straight_lines() {
        let times = times(100.0, [90.0, 80.0]);
        let devices = ["a".to_string(), "b".to_string()];
        let done = |chunk| times.done_us(chunk, &devices, &[DeviceLoad::default(); 2]);
        for (chunk, us) in [((1, 0), 10.0), ((51, 0), 55.0), ((101, 0), 100.0), ((101, 500), 150.0)]
        {
            assert!((done(chunk) - us).abs() < 1e-9, "{chunk:?}: {}", done(chunk));
        }
        // More rows than the longest has are no fewer; who has nothing to do has none.
        let span = |device, chunk| times.of_device(device, chunk).span_us;
        assert!(span("a", (101, 1000)) > span("a", (101, 0)) + 99.0);
        assert_eq!(times.of_device("c", (101, 0)), DeviceTime::default());
    }

    #[test]
    fn without_load_chunks_go_by_length_and_with_it_to_who_ends_first() {
        for chunk in [(1, 0), (60, 0), (101, 0), (101, 1000)] {
            assert_eq!(chosen(chunk, [1.0; 2], [0.0; 2]), 0, "{chunk:?}");
            // Both wait alike for what is queued for both.
            assert_eq!(chosen(chunk, [1.0; 2], [1e6; 2]), 0, "{chunk:?}");
        }
        let full = (101, 0);
        // 190 against 150, 200 and 300.
        assert_eq!(chosen(full, [2.0, 1.0], [0.0; 2]), 1);
        // 1000 against 240, 200 and 1650.
        assert_eq!(chosen(full, [11.0, 1.0], [0.0; 2]), 2);
        // 180 against 270, 400 and 150.
        assert_eq!(chosen(full, [1.0, 2.0], [0.0; 2]), 3);
        // What is queued for one device: 400 against 440, 200 and 450.
        assert_eq!(chosen(full, [1.0; 2], [300.0, 0.0]), 2);
        // A gain of less than predictions are worth is none: 140.5 against 144.5.
        assert_eq!(chosen(full, [1.45, 1.0], [0.0; 2]), 0);
    }

    #[test]
    fn ways_are_numbered_with_the_buckets_own_first() {
        let rules = rules();
        assert_eq!(rules.times(0), &rules.own);
        assert_eq!(rules.times(2), &rules.others[1].times);
        assert_eq!(rules.times(9), &rules.own);
    }
}
