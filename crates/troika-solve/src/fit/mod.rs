//! Fits of the measurements ([`FittedTime`]), which also price shapes that were not measured: one
//! for each device and kind of segment.

mod least_squares;

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;
use troika_plan::median;
use troika_time::{FittedTime, RunWork, TERMS};

use crate::segment_part::{SegmentPart, is_whole};

/// The fits of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fits {
    /// One for each device and part of a kind of segment.
    pub runs: Vec<RunFit>,
}

/// The fitted time of runs of a kind of segment on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFit {
    /// Index of the device in the profile.
    pub device: usize,
    /// The kind of segment.
    pub segment: SegmentKind,
    /// Which part of it.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub part: SegmentPart,
    /// Their time.
    pub time: FittedTime,
    /// The median relative error on the fitted shapes.
    pub error: f64,
}

/// The knees to try.
const KNEES: [f64; 12] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0];

impl Fits {
    /// The fit of a part of a kind of segment on a device.
    pub fn get(&self, device: usize, segment: SegmentKind, part: SegmentPart) -> Option<&RunFit> {
        self.runs.iter().find(|f| (f.device, f.segment, f.part) == (device, segment, part))
    }

    /// What is wrong with fits from a file, if anything.
    pub(crate) fn fault(&self, devices: usize) -> Option<String> {
        let bad = |f: &&RunFit| f.device >= devices || !f.time.is_sane();
        let found = self.runs.iter().find(bad)?;
        Some(format!("a fit of {} that gives no times", found.segment.name()))
    }
}

/// Fits runs that are alike, given their work and their nanoseconds. Returns the median relative
/// error, too. `None` without runs.
pub(crate) fn fit(samples: &[(RunWork, f64)], stairs: bool) -> Option<(FittedTime, f64)> {
    if samples.is_empty() {
        return None;
    }
    let of_knee = |knee: &f64| {
        let rows: Vec<([f64; TERMS], f64)> =
            samples.iter().map(|(work, ns)| (FittedTime::features(work, *knee), *ns)).collect();
        let (terms, error) = least_squares::relative(&rows);
        (error, *knee, terms)
    };
    let best = KNEES.iter().map(of_knee).min_by(|a, b| a.0.total_cmp(&b.0));
    let (_, knee, terms) = best?;
    let mut time = FittedTime { knee, terms, stairs, factors: Vec::new() };
    let mut rows: Vec<f64> = samples.iter().map(|(work, _)| work.room).collect();
    rows.sort_by(f64::total_cmp);
    rows.dedup();
    let factor = |room: f64| {
        let here = samples.iter().filter(|(work, _)| work.room == room);
        let ratios = here.map(|(work, ns)| ns / time.sum(work)).collect();
        (room, median(ratios).unwrap_or(0.0))
    };
    time.factors = rows.into_iter().map(factor).collect();
    let errors = samples.iter().map(|(work, ns)| (time.ns(work) / ns - 1.0).abs());
    let error = median(errors.collect())?;
    Some((time, error))
}
