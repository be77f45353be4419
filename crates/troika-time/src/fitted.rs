//! Times by a fit of measurements, also of what was not measured.
//!
//! Time is a sum with non-negative coefficients: a fixed part, reading weights, multiplying the rows
//! above a knee (below it they are free beside reading), values between ops, and attention. The
//! error of the sum at the measured numbers of rows is a factor, interpolated between them. With
//! static shapes, time is a staircase with a factor per shape.

use serde::{Deserialize, Serialize};

use crate::work::RunWork;

/// Number of coefficients of a fit.
pub const TERMS: usize = 6;

/// The fitted time of runs that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedTime {
    /// Rows multiplied at no extra cost while weights are read.
    pub knee: f64,
    /// Nanoseconds: fixed, per value of a row, byte of weights, product above the knee, product
    /// with a cached position, byte of the cache.
    pub terms: [f64; TERMS],
    /// Whether time follows the compiled shapes in steps.
    pub stairs: bool,
    /// By ascending numbers of rows, the ratio of the measured time to the sum.
    pub factors: Vec<(f64, f64)>,
}

/// Limits no real measurement reaches: nanoseconds (11 days), and rows.
const MOST: f64 = 1e15;

impl FittedTime {
    /// The time of a run in nanoseconds.
    pub fn ns(&self, work: &RunWork) -> f64 {
        self.sum(work) * self.factor(work.room)
    }

    /// The time without the factor of its number of rows.
    pub fn sum(&self, work: &RunWork) -> f64 {
        let features = FittedTime::features(work, self.knee);
        let sum: f64 = self.terms.iter().zip(features).map(|(c, f)| c * f).sum();
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

    /// What each coefficient is multiplied with.
    pub fn features(w: &RunWork, knee: f64) -> [f64; TERMS] {
        let above = (w.room - knee).max(0.0);
        [1.0, w.room * w.columns, w.weight_bytes, w.products * above, w.attended, w.cache_bytes]
    }

    /// Whether it gives times for any work: its numbers are sane, and rows ascend.
    pub fn is_sane(&self) -> bool {
        let fine = |v: &f64| (0.0..=MOST).contains(v);
        self.terms.iter().all(fine)
            && self.terms.iter().any(|v| *v > 0.0)
            && fine(&self.knee)
            && self.factors.iter().all(|(r, x)| *r > 0.0 && *x > 0.0 && fine(x))
            && self.factors.windows(2).all(|p| p[0].0 < p[1].0)
    }
}
