//! Small models of the measurements that also price shapes that were not measured.
//!
//! For each device and kind of segment, time is a sum with non-negative coefficients: a fixed part,
//! reading weights, multiplying the rows above a knee (below it they are free beside reading),
//! values between ops, and attention. The error of the sum at the measured numbers of rows is a
//! factor, interpolated between them. With static shapes, time is a staircase with a factor per
//! shape.

mod least_squares;

use serde::{Deserialize, Serialize};
use troika_model::lower::SegmentKind;

use crate::cost::RunWork;

/// The fits of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fits {
    /// One for each device and kind of segment.
    pub runs: Vec<RunFit>,
}

/// Number of coefficients of a fit.
pub(crate) const TERMS: usize = 6;

/// The fitted time of runs of a kind of segment on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFit {
    /// Index of the device in the profile.
    pub device: usize,
    /// The kind of segment.
    pub segment: SegmentKind,
    /// Rows multiplied at no extra cost while weights are read.
    pub knee: f64,
    /// Nanoseconds: fixed, per value of a row, byte of weights, product above the knee, product
    /// with a cached position, byte of the cache.
    pub terms: [f64; TERMS],
    /// Whether time follows the compiled shapes in steps.
    pub stairs: bool,
    /// By ascending numbers of rows, the ratio of the measured time to the sum.
    pub factors: Vec<(f64, f64)>,
    /// The median relative error on the fitted shapes.
    pub error: f64,
}

impl RunFit {
    /// The time of a run in nanoseconds.
    pub fn ns(&self, work: &RunWork) -> f64 {
        self.sum(work) * self.factor(work.room)
    }

    fn sum(&self, work: &RunWork) -> f64 {
        let sum: f64 = self.terms.iter().zip(features(work, self.knee)).map(|(c, f)| c * f).sum();
        sum.max(1.0)
    }

    fn factor(&self, rows: f64) -> f64 {
        let above = self.factors.iter().position(|(r, _)| *r >= rows);
        let last = || self.factors.last().map_or(1.0, |f| f.1);
        let Some(at) = above else { return last() };
        let (high, factor) = self.factors[at];
        if at == 0 || high == rows || self.stairs {
            return factor;
        }
        let (low, before) = self.factors[at - 1];
        // Numbers of rows are measured in powers: interpolate on a logarithmic scale.
        let share = (rows / low).ln() / (high / low).ln();
        before + (factor - before) * share
    }
}

/// The factor of each coefficient.
fn features(w: &RunWork, knee: f64) -> [f64; TERMS] {
    let above = (w.room - knee).max(0.0);
    [1.0, w.room * w.columns, w.weight_bytes, w.products * above, w.attended, w.cache_bytes]
}

/// Limits no real measurement reaches: nanoseconds (11 days), and rows.
const MOST_TERM: f64 = 1e15;

/// The knees to try.
const KNEES: [f64; 12] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0];

impl Fits {
    /// The fit of a kind of segment on a device.
    pub fn get(&self, device: usize, segment: SegmentKind) -> Option<&RunFit> {
        self.runs.iter().find(|f| (f.device, f.segment) == (device, segment))
    }

    /// What is wrong with fits from a file, if anything.
    pub(crate) fn fault(&self, devices: usize) -> Option<String> {
        let bad = |f: &&RunFit| {
            let fine = |v: &f64| (0.0..=MOST_TERM).contains(v);
            let factors = f.factors.iter().all(|(r, x)| *r > 0.0 && *x > 0.0 && fine(x));
            let ascend = f.factors.windows(2).all(|p| p[0].0 < p[1].0);
            f.device >= devices
                || !f.terms.iter().all(fine)
                || !f.terms.iter().any(|v| *v > 0.0)
                || !fine(&f.knee)
                || !factors
                || !ascend
        };
        let found = self.runs.iter().find(bad)?;
        Some(format!("a fit of {} that gives no times", found.segment.name()))
    }
}

/// Fits runs of a kind of segment on a device, given their work and their nanoseconds. `None`
/// without runs.
pub(crate) fn fit(
    (device, segment): (usize, SegmentKind),
    samples: &[(RunWork, f64)],
    stairs: bool,
) -> Option<RunFit> {
    if samples.is_empty() {
        return None;
    }
    let of_knee = |knee: &f64| {
        let rows: Vec<([f64; TERMS], f64)> =
            samples.iter().map(|(work, ns)| (features(work, *knee), *ns)).collect();
        let (terms, error) = least_squares::relative(&rows);
        (error, *knee, terms)
    };
    let best = KNEES.iter().map(of_knee).min_by(|a, b| a.0.total_cmp(&b.0));
    let (_, knee, terms) = best?;
    let (factors, error) = (Vec::new(), 0.0);
    let mut fit = RunFit { device, segment, knee, terms, stairs, factors, error };
    let mut rows: Vec<f64> = samples.iter().map(|(work, _)| work.room).collect();
    rows.sort_by(f64::total_cmp);
    rows.dedup();
    let factor = |room: f64| {
        let here = samples.iter().filter(|(work, _)| work.room == room);
        let ratios = here.map(|(work, ns)| ns / fit.sum(work)).collect();
        (room, middle(ratios))
    };
    fit.factors = rows.into_iter().map(factor).collect();
    let errors = samples.iter().map(|(work, ns)| (fit.ns(work) / ns - 1.0).abs());
    fit.error = middle(errors.collect());
    Some(fit)
}

/// The median; 0 of no values.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
