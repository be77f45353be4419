//! Placement by load: alternative rules for chunks of a length, their predicted times, and the
//! choice between them when a chunk starts.
//!
//! A plan goes by the length of a chunk alone, unless it has alternatives (`by_load`) and
//! [`Plan::decided`] keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;

use crate::{Phase, Plan, PlanError, Rule};

/// What decides where a chunk runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Decide {
    /// Its length: equal chunks always run in the same place.
    #[default]
    Length,
    /// Its length, the other work of devices, and how slow they were recently. Runs may then differ
    /// in where a chunk runs, and in the last digits of its numbers if devices round differently.
    Load,
}

impl Decide {
    /// All values.
    pub const ALL: [Decide; 2] = [Decide::Length, Decide::Load];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Decide::Length => "length",
            Decide::Load => "load",
        }
    }

    /// The value with a given name.
    pub fn parse(name: &str) -> Option<Decide> {
        Decide::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// Alternative rules for the chunks of a length bucket. Part of the plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRules {
    /// The bucket's longest chunk; for full chunks, the chunk length.
    pub up_to: usize,
    /// The predicted times of the bucket's own rules.
    pub own: ChunkTimes,
    /// The alternatives.
    pub others: Vec<OtherRules>,
}

/// An alternative placement of chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherRules {
    /// When it is useful, for people.
    pub name: String,
    /// Where each segment runs. Each product uses the same activation formats as with the bucket's
    /// own rules.
    pub rules: Vec<Rule>,
    /// Its predicted times.
    pub times: ChunkTimes,
}

/// The predicted times of three chunks of a bucket on an idle machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkTimes {
    /// The shortest chunk, with nothing cached.
    pub shortest: ChunkTime,
    /// The longest chunk, with nothing cached.
    pub longest: ChunkTime,
    /// The longest chunk, with as much cached as possible.
    pub behind: ChunkTime,
}

/// The predicted time of a chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkTime {
    /// Its rows.
    pub rows: usize,
    /// Positions cached before it.
    pub cached: usize,
    /// From its start to its end.
    pub us: f64,
    /// The part of each device. Devices without work are left out.
    pub devices: BTreeMap<String, DeviceTime>,
}

/// The predicted part of a device in a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTime {
    /// How long it has work: from when each task could begin to its end, summed up.
    pub busy_us: f64,
    /// From the start of its first task to the end of its last.
    pub span_us: f64,
}

/// The load of a device besides the chunk to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLoad {
    /// How many times longer than predicted its work took recently; at least 1.
    pub slower: f64,
    /// Microseconds until it finishes its earlier work.
    pub queued_us: f64,
}

impl Default for DeviceLoad {
    fn default() -> DeviceLoad {
        DeviceLoad { slower: 1.0, queued_us: 0.0 }
    }
}

/// An alternative is used if its predicted time is below this share of the bucket's own: neither
/// predictions nor loads are exact.
const WORTH_LEAVING: f64 = 0.95;

impl ChunkTimes {
    fn points(&self) -> [&ChunkTime; 3] {
        [&self.shortest, &self.longest, &self.behind]
    }

    /// Interpolates a figure linearly: by rows between the shortest and the longest chunk, and by
    /// cached positions beyond.
    fn between(&self, (rows, cached): (usize, usize), of: impl Fn(&ChunkTime) -> f64) -> f64 {
        let [a, b, c] = self.points();
        let part = |n: usize, all: usize| if all == 0 { 0.0 } else { n as f64 / all as f64 };
        let part_of_rows = part(rows.saturating_sub(a.rows), b.rows.saturating_sub(a.rows));
        let alone = of(a) + (of(b) - of(a)) * part_of_rows.min(1.0);
        let behind = (of(c) - of(b)).max(0.0) * part(cached, c.cached) * part(rows, b.rows);
        alone + behind
    }

    /// The part of a device in a chunk of (rows, cached positions).
    pub fn of_device(&self, device: &str, chunk: (usize, usize)) -> DeviceTime {
        let of = |t: &ChunkTime| t.devices.get(device).copied().unwrap_or_default();
        DeviceTime {
            busy_us: self.between(chunk, |t| of(t).busy_us),
            span_us: self.between(chunk, |t| of(t).span_us),
        }
    }

    /// When a chunk that starts now is done. It begins when all its devices have finished their
    /// earlier work. A slow device delays all work that passes through it, however small its part
    /// of each layer, since others wait for it there.
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
    /// The rules with which a chunk of (rows, cached positions) is predicted to be done first: 0
    /// for the bucket's own, else the number of the alternative, from 1. `devices` are the plan's,
    /// with their loads. Equal loads give equal choices.
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

    /// The times of the bucket's own rules (0) or of an alternative, by number.
    pub fn times(&self, way: usize) -> &ChunkTimes {
        way.checked_sub(1).and_then(|i| self.others.get(i)).map_or(&self.own, |o| &o.times)
    }
}

impl Plan {
    /// The plan as it runs: with [`Decide::Length`], it loses its alternatives and the devices that
    /// only these use.
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

    /// The alternatives for chunks of `rows` rows.
    pub fn load_rules(&self, rows: usize) -> Option<&LoadRules> {
        let up_to = self.rule_lists(Phase::Prefill).map(|l| l.0).find(|n| rows <= *n)?;
        self.by_load.iter().find(|l| l.up_to == up_to)
    }

    /// The rule for a segment in a forward batch, by rows and number of the alternative.
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

    /// The rule lists of all alternatives, each with its longest chunk.
    pub(crate) fn other_lists(&self) -> impl Iterator<Item = (usize, &[Rule])> {
        self.by_load.iter().flat_map(|l| {
            let up_to = l.up_to;
            l.others.iter().map(move |o| (up_to, o.rules.as_slice()))
        })
    }

    /// Checks that alternatives belong to existing buckets, compute the same numbers but for
    /// rounding, and have times for devices of the plan.
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

/// A kind of segment for which two lists of rules use different formats.
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
        // More rows than the longest chunk add nothing; devices without work have no span.
        let span = |device, chunk| times.of_device(device, chunk).span_us;
        assert!(span("a", (101, 1000)) > span("a", (101, 0)) + 99.0);
        assert_eq!(times.of_device("c", (101, 0)), DeviceTime::default());
    }

    #[test]
    fn without_load_chunks_go_by_length_and_with_it_to_who_ends_first() {
        for chunk in [(1, 0), (60, 0), (101, 0), (101, 1000)] {
            assert_eq!(chosen(chunk, [1.0; 2], [0.0; 2]), 0, "{chunk:?}");
            // Work queued for both delays both alike.
            assert_eq!(chosen(chunk, [1.0; 2], [1e6; 2]), 0, "{chunk:?}");
        }
        let full = (101, 0);
        // 190 against 150, 200 and 300.
        assert_eq!(chosen(full, [2.0, 1.0], [0.0; 2]), 1);
        // 1000 against 240, 200 and 1650.
        assert_eq!(chosen(full, [11.0, 1.0], [0.0; 2]), 2);
        // 180 against 270, 400 and 150.
        assert_eq!(chosen(full, [1.0, 2.0], [0.0; 2]), 3);
        // Work queued for one device: 400 against 440, 200 and 450.
        assert_eq!(chosen(full, [1.0; 2], [300.0, 0.0]), 2);
        // A gain below the margin does not count: 140.5 against 144.5.
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
