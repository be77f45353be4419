//! The file of a profile, and what was measured.

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;

use crate::fit::{Fits, RunFit, fit};
use crate::segment_part::{SegmentPart, is_whole};
use troika_plan::{ModelId, PlanDevice, fault};
use troika_time::{FittedTime, RunWork};

/// The version of profile files that this build reads and writes.
pub const PROFILE_VERSION: u32 = 5;

/// Half of the measurements of a settled time are below this many times the undisturbed one.
const SETTLED: f64 = 1.05;

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// What was measured, and where.
    pub subject: ProfileSubject,
    /// Whether all measurements are done.
    pub complete: bool,
    /// Runs of segments and pieces.
    pub runs: Vec<RunSample>,
    /// Measurements of pairs of devices.
    pub pairs: Vec<PairSample>,
    /// Measurements of devices besides runs.
    pub devices: Vec<DeviceSample>,
    /// Small models of the runs.
    #[serde(default)]
    pub fits: Fits,
    /// How good the fits are on shapes that they were not fitted to.
    #[serde(default)]
    pub regret: Option<Regret>,
}

/// What a profile was measured for and on. A profile is valid only if all of it matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSubject {
    /// The version of Troika.
    pub program: String,
    /// The machine: its processor and system.
    pub machine: String,
    /// The model.
    pub model: ModelId,
    /// The types of its weights and of its cache.
    pub types: Vec<String>,
    /// The devices in order.
    pub devices: Vec<ProfiledDevice>,
}

/// A measured device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfiledDevice {
    /// Its name.
    pub name: String,
    /// Its numerics.
    pub numerics: String,
    /// The numbers of rows it is compiled for; empty: any.
    pub row_buckets: Vec<usize>,
    /// The facts it reports.
    pub facts: Vec<(String, String)>,
}

impl ProfiledDevice {
    /// The description of an available device.
    pub fn of(device: &PlanDevice) -> ProfiledDevice {
        ProfiledDevice {
            name: device.name.clone(),
            numerics: device.caps.numerics.clone(),
            row_buckets: device.caps.row_buckets.clone(),
            facts: device.caps.facts.clone(),
        }
    }
}

/// A measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSample {
    /// Index of the device in the subject.
    pub device: usize,
    /// The graph's name among [`super::profiled_graphs`].
    pub graph: String,
    /// The kind of segment.
    pub segment: SegmentKind,
    /// Which part of it.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub part: SegmentPart,
    /// Its share of the columns, in 64ths.
    pub share: u32,
    /// Its work.
    pub work: RunWork,
    /// Rows needed.
    pub rows: usize,
    /// Positions cached before it.
    pub cached: usize,
    /// Whether the fits leave it out.
    pub held_out: bool,
    /// The measured times in nanoseconds. Use [`RunSample::undisturbed_ns`].
    pub ns: Spread,
    /// How often the shape was measured.
    pub visits: usize,
}

impl RunSample {
    /// Whether it is the run of a whole segment.
    pub fn is_whole(&self) -> bool {
        self.share == 64 && self.part == SegmentPart::Whole
    }

    /// The time of the run on an idle machine: the lowest tenth of all measurements. Disturbances
    /// only make runs longer.
    pub fn undisturbed_ns(&self) -> f64 {
        self.ns.low.max(1.0)
    }

    /// Weights and cache read, in 10^9 bytes per second.
    pub fn gb_s(&self) -> f64 {
        (self.work.weight_bytes + self.work.cache_bytes) / self.undisturbed_ns()
    }
}

/// Which run is meant.
#[derive(Clone, Copy, Debug)]
pub struct RunAt<'a> {
    /// Index of the device.
    pub device: usize,
    /// The graph's name.
    pub graph: &'a str,
    /// Rows needed.
    pub rows: usize,
    /// Positions cached before it.
    pub cached: usize,
}

/// The spread of repeated measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The 10th percentile.
    pub low: f64,
    /// The 90th percentile.
    pub high: f64,
    /// The number of measurements.
    pub count: usize,
}

impl Spread {
    /// The spread of some measurements.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().saturating_sub(1) as f64;
            sorted.get((share * last).round() as usize).copied().unwrap_or(0.0)
        };
        Spread { median: at(0.5), low: at(0.1), high: at(0.9), count: sorted.len() }
    }

    /// Whether more measurements would tell little: half of these are within 5 % of the undisturbed
    /// time.
    fn is_settled(&self) -> bool {
        self.count > 2 && self.median <= self.low * SETTLED
    }
}

/// Measurements of a pair of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSample {
    /// Index of the device that is waited for.
    pub from: usize,
    /// The device that waits.
    pub to: usize,
    /// From the end of a run to the start of the next, with a predicted wait.
    pub predicted_ns: Spread,
    /// The same with a device that sleeps until woken.
    pub blocking_ns: Spread,
    /// The slowdowns of `to` while `from` is busy with a run of as many rows.
    pub slowdowns: Vec<Slowdown>,
}

/// How much a device slows down while another one is busy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// Rows of the runs.
    pub rows: usize,
    /// The time of a run beside another one, divided by its time alone: at least 1.
    pub factor: f64,
}

/// Measurements of a device besides runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSample {
    /// From handing over a list to learning of its end, without its runs.
    pub submit_ns: Spread,
    /// The time to compile a segment.
    pub compile_ns: Spread,
    /// Copies between its own memory and the host's, as (bytes, nanoseconds); else empty.
    pub copies: Vec<(u64, f64)>,
    /// The same of rows that a function of the host reads and writes, where it runs such.
    #[serde(default)]
    pub functions: Vec<(u64, f64)>,
    /// The same of loading a graph of experts again, by the bytes of its weights.
    #[serde(default)]
    pub loads: Vec<(u64, f64)>,
}

/// The loss from choosing by the fits, on shapes that they were not fitted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regret {
    /// Number of choices.
    pub choices: usize,
    /// The median loss, as a share of the best time.
    pub median: f64,
    /// The largest loss.
    pub worst: f64,
    /// Number of predicted runs.
    pub runs: usize,
    /// The median relative error of the predictions.
    pub error: f64,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ProfileError {
    /// Not a valid profile.
    #[error("it is not a profile ({0}); measure again with troika profile")]
    Parse(String),
    /// A profile of something else.
    #[error("the profile is of another {what}: {found}, here it is {here}; measure again")]
    Foreign {
        /// What differs.
        what: &'static str,
        /// The profile's value.
        found: String,
        /// The current value.
        here: String,
    },
    /// Measuring was stopped early.
    #[error("the profile is not complete; run troika profile again, it goes on where it ended")]
    Incomplete,
    /// Another version, or impossible numbers.
    #[error("the profile has {0}; measure again")]
    Numbers(String),
}

impl Profile {
    /// An empty profile.
    pub fn new(subject: ProfileSubject) -> Profile {
        let devices = vec![DeviceSample::default(); subject.devices.len()];
        Profile {
            version: PROFILE_VERSION,
            subject,
            complete: false,
            runs: Vec::new(),
            pairs: Vec::new(),
            devices,
            fits: Fits::default(),
            regret: None,
        }
    }

    /// Whether runs of a kind of segment were measured on a device.
    pub fn has_price(&self, device: &str, segment: SegmentKind) -> bool {
        let place = self.subject.devices.iter().position(|d| d.name == device);
        place.is_some_and(|at| self.runs.iter().any(|r| (r.device, r.segment) == (at, segment)))
    }

    /// Parses the text of a profile file.
    ///
    /// # Errors
    /// The text is not a profile of this version.
    pub fn from_json(text: &str) -> Result<Profile, ProfileError> {
        let version = serde_json::from_str::<serde_json::Value>(text);
        let version = version.ok().and_then(|v| v.get("version")?.as_u64());
        if let Some(found) = version.filter(|&v| v != u64::from(PROFILE_VERSION)) {
            let why = format!("version {found}, this build reads {PROFILE_VERSION}");
            return Err(ProfileError::Numbers(why));
        }
        let profile: Profile =
            serde_json::from_str(text).map_err(|e| ProfileError::Parse(fault(&e)))?;
        profile.check_numbers()?;
        Ok(profile)
    }

    /// Whether a text starts like a profile.
    pub fn begins(text: &str) -> bool {
        text.strip_prefix('\x7b').is_some_and(|fields| fields.starts_with("\"version\":"))
    }

    /// The text of a profile file.
    #[expect(
        clippy::expect_used,
        reason = "maps have string keys, and no value fails to serialize"
    )]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a profile is plain data") + "\n"
    }

    fn check_numbers(&self) -> Result<(), ProfileError> {
        let refuse = |what: String| Err(ProfileError::Numbers(what));
        let count = self.subject.devices.len();
        if self.devices.len() != count {
            return refuse(format!("figures of {} devices, not {count}", self.devices.len()));
        }
        let good = |s: &Spread| [s.median, s.low].iter().all(|v| v.is_finite() && *v >= 0.0);
        for r in &self.runs {
            let shaped = r.rows > 0 && (1..=64).contains(&r.share);
            if r.device >= count || !good(&r.ns) || r.ns.low <= 0.0 || !shaped {
                return refuse(format!("a run of {} without a device or a time", r.graph));
            }
        }
        for p in &self.pairs {
            let slow = p.slowdowns.iter().all(|s| s.factor.is_finite() && s.factor >= 1.0);
            let named = p.from < count && p.to < count && p.from != p.to;
            if !named || !good(&p.predicted_ns) || !good(&p.blocking_ns) || !slow {
                return refuse("a pair of devices without a time".into());
            }
        }
        let mut pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let known = |(a, b): &(usize, usize)| {
            a == b || self.pairs.iter().any(|p| (p.from, p.to) == (*a, *b))
        };
        if self.complete && !pairs.all(|pair| known(&pair)) {
            return refuse("no time of a hand-over between two of the devices".into());
        }
        if self.devices.iter().any(|d| !good(&d.submit_ns) || !good(&d.compile_ns)) {
            return refuse("a device without times of its lists or of its code".into());
        }
        if let Some(why) = self.fits.fault(count) {
            return refuse(why);
        }
        let fitted =
            |r: &&RunSample| r.held_out || self.fits.get(r.device, r.segment, r.part).is_some();
        if let Some(r) = self.runs.iter().find(|r| self.complete && !fitted(r)) {
            return refuse(format!("runs of {} without a fit", r.segment.name()));
        }
        Ok(())
    }

    /// Checks that the profile is complete and matches the current subject.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, here: &ProfileSubject) -> Result<(), ProfileError> {
        self.check_subject(here)?;
        if self.complete { Ok(()) } else { Err(ProfileError::Incomplete) }
    }

    /// Checks that the profile matches the current subject.
    ///
    /// # Errors
    /// What differs.
    pub fn check_subject(&self, here: &ProfileSubject) -> Result<(), ProfileError> {
        let said = |s: &ProfileSubject| {
            let names: Vec<&str> = s.devices.iter().map(|d| d.name.as_str()).collect();
            let types = s.types.join(", ");
            [s.program.clone(), s.machine.clone(), s.model.to_string(), types, names.join(", ")]
        };
        let whats = ["version of Troika", "machine", "model", "kind of weights", "list of devices"];
        let mut all = whats.into_iter().zip(said(&self.subject)).zip(said(here));
        if let Some(((what, found), here)) = all.find(|((_, a), b)| a != b) {
            return Err(ProfileError::Foreign { what, found, here });
        }
        let mut devices = self.subject.devices.iter().zip(&here.devices);
        let Some((a, b)) = devices.find(|(a, b)| a != b) else { return Ok(()) };
        let [found, here] = [a, b].map(|d| {
            let own = d.facts.iter().filter(|f| !(a.facts.contains(f) && b.facts.contains(f)));
            let numerics = (a.numerics != b.numerics).then(|| d.numerics.clone());
            let facts = numerics.into_iter().chain(own.map(|(k, v)| format!("{k} {v}")));
            format!("{} with {}", d.name, facts.collect::<Vec<_>>().join(", "))
        });
        Err(ProfileError::Foreign { what: "device", found, here })
    }

    /// Fits the runs that are not held out, and measures the quality on the others.
    pub fn fit(&mut self) {
        let mut runs = Vec::new();
        for device in 0..self.subject.devices.len() {
            for (segment, part) in self.parts(device) {
                let fitted = self.fit_of(device, &[segment], part);
                let fit = |(time, error)| RunFit { device, segment, part, time, error };
                runs.extend(fitted.map(fit));
            }
        }
        self.fits = Fits { runs };
        self.regret = Some(Regret::of(self));
    }

    /// The parts of segments that were measured on a device.
    fn parts(&self, device: usize) -> Vec<(SegmentKind, SegmentPart)> {
        let of = |kind| {
            let runs = self.runs.iter().filter(move |r| (r.device, r.segment) == (device, kind));
            let mut parts: Vec<SegmentPart> = runs.map(|r| r.part).collect();
            parts.sort_unstable();
            parts.dedup();
            parts.into_iter().map(move |part| (kind, part))
        };
        SegmentKind::ALL.into_iter().flat_map(of).collect()
    }

    /// Fits the runs of a part of some kinds of segments on a device that are not held out. Returns
    /// the median relative error, too.
    pub fn fit_of(
        &self,
        device: usize,
        kinds: &[SegmentKind],
        part: SegmentPart,
    ) -> Option<(FittedTime, f64)> {
        let of = |r: &&RunSample| {
            (r.device, r.part) == (device, part) && kinds.contains(&r.segment) && !r.held_out
        };
        let samples = self.runs.iter().filter(of).map(|r| (r.work, r.undisturbed_ns()));
        let samples: Vec<(RunWork, f64)> = samples.collect();
        // Each group has a shape of its own.
        let stairs = !self.subject.devices[device].row_buckets.is_empty();
        fit(&samples, stairs && part != SegmentPart::Group)
    }

    /// Adds a run, or another measurement of a known one.
    pub fn add(&mut self, run: RunSample) {
        let same = |r: &&mut RunSample| {
            (r.device, &r.graph, r.rows, r.cached) == (run.device, &run.graph, run.rows, run.cached)
        };
        let Some(known) = self.runs.iter_mut().find(same) else {
            return self.runs.push(run);
        };
        known.visits += run.visits;
        known.ns = Spread {
            median: known.ns.median.min(run.ns.median),
            low: known.ns.low.min(run.ns.low),
            high: known.ns.high.max(run.ns.high),
            count: known.ns.count + run.ns.count,
        };
    }

    /// The most positions that a measured run has seen, its own rows among them. Prices of more are
    /// extrapolated.
    pub fn most_positions(&self) -> usize {
        // Rows of groups are pairs of a row and an expert.
        let parts = [SegmentPart::Whole, SegmentPart::Products];
        let whole = self.runs.iter().filter(|r| parts.contains(&r.part));
        whole.map(|r| r.cached.saturating_add(r.rows)).max().unwrap_or(0)
    }

    /// Whether a run was measured so many times, or as often as it takes.
    pub fn is_known(&self, run: &RunAt<'_>, visits: usize) -> bool {
        let found = self.of_graph(run).find(|r| r.rows == run.rows);
        found.is_some_and(|r| r.visits >= visits || r.ns.is_settled())
    }

    /// What a run of other rows took that computes as many of them, padded.
    pub fn of_room(&self, run: &RunAt<'_>, room: usize) -> Option<Spread> {
        self.of_graph(run).find(|r| r.work.room == room as f64).map(|r| r.ns)
    }

    /// The runs of a graph behind as many cached positions.
    fn of_graph<'a>(&'a self, run: &'a RunAt<'_>) -> impl Iterator<Item = &'a RunSample> {
        self.runs.iter().filter(|r| {
            (r.device, r.graph.as_str(), r.cached) == (run.device, run.graph, run.cached)
        })
    }
}
