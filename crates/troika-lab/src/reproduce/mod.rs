//! Reproduces tables of papers on virtual SoCs.
//!
//! Each target is an experiment on the engine, with the paper's value and a tolerance that was
//! fixed before any simulator existed. Constants of the SoC files may be chosen by calibration
//! targets (CAL), but not by held-out ones (HO). Structural ones (STR) must simply hold.

mod baselines;
mod charts;
mod decode;
mod lab;
mod machine;
mod outcome;
mod prefill;
mod presets;
mod processors;
mod report;
mod system;

use charts::Chart;
use lab::Lab;
pub use outcome::{Item, Kind, Outcome, Target, Verdict};

use crate::SimulateError;

/// All targets, in the papers' order.
pub fn targets() -> Vec<Target> {
    let lists = [
        processors::TARGETS,
        baselines::ANCHORS,
        prefill::TARGETS,
        decode::TARGETS,
        system::TARGETS,
        baselines::TARGETS,
        machine::TARGETS,
    ];
    let mut all: Vec<Target> = lists.into_iter().flatten().copied().collect();
    all.sort_by_key(|t| t.id);
    all
}

/// A target and its result.
pub struct Reproduced {
    /// The target.
    pub target: Target,
    /// Its result.
    pub outcome: Outcome,
}

/// The results of experiments, and the figures drawn of them.
pub struct Report {
    /// In the papers' order.
    pub results: Vec<Reproduced>,
    charts: Vec<Chart>,
}

/// Runs experiments: those with the given ids, in any case of letters, or all of them. What needs
/// this machine's time or devices runs only where it is named.
///
/// # Errors
/// A failing simulation.
pub fn reproduce(ids: &[String]) -> Result<Report, SimulateError> {
    let wanted = |t: &Target| ids.is_empty() || ids.iter().any(|id| id.eq_ignore_ascii_case(t.id));
    let mut lab = Lab::new(!ids.is_empty())?;
    let mut results = Vec::new();
    for target in targets().into_iter().filter(wanted) {
        let outcome = (target.run)(&mut lab)?;
        results.push(Reproduced { target, outcome });
    }
    let charts = charts::all(&mut lab, ids.is_empty())?;
    Ok(Report { results, charts })
}

impl Report {
    /// The report as a self-contained page of HTML.
    pub fn html(&self) -> String {
        report::html(&self.results, &self.charts)
    }

    /// The summary in sentences.
    pub fn sentences(&self) -> Vec<String> {
        sentences(&self.results)
    }
}

fn median(mut list: Vec<f64>) -> Option<f64> {
    list.sort_by(f64::total_cmp);
    let middle = list.len() / 2;
    match list.len() {
        0 => None,
        n if n % 2 == 1 => Some(list[middle]),
        _ => Some((list[middle - 1] + list[middle]) / 2.0),
    }
}

/// Passed and executed targets of a kind, and the median error.
fn summary(results: &[Reproduced], kind: Kind) -> (usize, usize, Option<f64>) {
    let of_kind = || results.iter().filter(move |r| r.target.kind == kind && r.outcome.ran());
    let passed = of_kind().filter(|r| r.outcome.pass()).count();
    let errors = of_kind().flat_map(|r| r.outcome.errors()).map(f64::abs).collect();
    (passed, of_kind().count(), median(errors))
}

/// The summary in sentences.
fn sentences(results: &[Reproduced]) -> Vec<String> {
    let percent = |m: Option<f64>| m.map_or("none".into(), |m| format!("{:.1} %", m * 100.0));
    let mut all: Vec<String> = Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let (passed, ran, error) = summary(results, kind);
            let (name, words, error) = (kind.name(), kind.words(), percent(error));
            (ran > 0)
                .then(|| format!("{name} ({words}): {passed} of {ran} pass, median error {error}"))
        })
        .collect();
    let of = |kind| summary(results, kind).2;
    if let (Some(cal), Some(ho)) = (of(Kind::Cal), of(Kind::Ho))
        && ho > 2.0 * cal
    {
        all.push("The median error of held-out targets is more than twice that of calibration: the models are fitted more closely than they predict.".into());
    }
    let not_run = results.iter().filter(|r| !r.outcome.ran()).count();
    if not_run > 0 {
        all.push(format!("{not_run} were not run; they count as not passed."));
    }
    all
}
