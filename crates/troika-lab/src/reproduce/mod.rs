//! Reproduces tables of papers on virtual SoCs.
//!
//! Each target is an experiment on the engine, with the paper's value and a tolerance that was
//! fixed before any simulator existed. Constants of the SoC files may be chosen by calibration
//! targets (CAL), but not by held-out ones (HO). Structural ones (STR) must simply hold.

mod baselines;
mod buffers;
mod caches;
mod decode;
mod experts;
mod lab;
mod machine;
mod memory;
mod outcome;
mod outliers;
mod planner;
mod prefill;
mod preload;
mod presets;
mod processors;
mod profiles;
mod scheduling;
mod system;
mod two_cpus;

use serde_json::{Value, json};
use troika::DeviceOptions;
use troika::plan::median;

use lab::Lab;
use outcome::{Experiment, Kind, Outcome, RunWhen, Target, Verdict};

use crate::LabError;

/// A table of all claims, in the papers' order.
const CLAIMS: &str = include_str!("claims.md");

const EXPERIMENTS: [&[Experiment]; 15] = [
    baselines::EXPERIMENTS,
    buffers::EXPERIMENTS,
    caches::EXPERIMENTS,
    decode::EXPERIMENTS,
    experts::EXPERIMENTS,
    machine::EXPERIMENTS,
    memory::EXPERIMENTS,
    outliers::EXPERIMENTS,
    planner::EXPERIMENTS,
    prefill::EXPERIMENTS,
    preload::EXPERIMENTS,
    processors::EXPERIMENTS,
    profiles::EXPERIMENTS,
    scheduling::EXPERIMENTS,
    system::EXPERIMENTS,
];

/// All targets, in the papers' order.
fn targets() -> impl Iterator<Item = Target> {
    CLAIMS.lines().filter_map(|line| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let (id, kind) = (cells.next()?, Kind::parse(cells.next()?)?);
        let (claim, tolerance) = (cells.next()?, cells.next()?);
        let run = EXPERIMENTS.iter().copied().flatten().find(|e| e.id == id)?.run;
        Some(Target { id, kind, claim, tolerance, run })
    })
}

/// The ids of all targets, in the papers' order.
pub fn reproduced_ids() -> Vec<&'static str> {
    targets().map(|t| t.id).collect()
}

struct Reproduced {
    target: Target,
    outcome: Outcome,
}

/// The results of experiments.
pub struct Report {
    /// In the papers' order.
    results: Vec<Reproduced>,
}

/// Runs experiments: those with the given ids, in any case of letters, or all of them. What needs
/// this machine's time or devices runs only where it is named, on `devices`; `None`: two CPUs of a
/// thread.
///
/// # Errors
/// A failing simulation.
pub fn reproduce_on(ids: &[String], devices: Option<DeviceOptions>) -> Result<Report, LabError> {
    let wanted = |t: &Target| ids.is_empty() || ids.iter().any(|id| id.eq_ignore_ascii_case(t.id));
    let mut lab = Lab::new()?;
    lab.devices = devices.unwrap_or(lab.devices);
    let mut results = Vec::new();
    for target in targets().filter(wanted) {
        let outcome = match target.run {
            RunWhen::Always(run) => run(&mut lab)?,
            RunWhen::Named(_, run) if !ids.is_empty() => run(&mut lab)?,
            RunWhen::Named(why, _) | RunWhen::Elsewhere(why) => Outcome::not_run(why),
        };
        results.push(Reproduced { target, outcome });
    }
    Ok(Report { results })
}

impl Report {
    /// The report as a list of JSON.
    pub fn json(&self) -> Value {
        self.results.iter().map(fields).collect()
    }

    /// The report as a table and some sentences.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "All figures are virtual but those of H30, H32, L27, L28, M26 to M29, C01, C02 and C05 to \
             C07: modelled times, not measurements of a phone.\n\n\
         | id | | claim | what | printed | ours | error | tolerance | |\n\
         | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
        );
        for r in &self.results {
            let (t, o) = (&r.target, &r.outcome);
            for (i, line) in o.lines().into_iter().enumerate() {
                let [what, printed, ours, error] = line;
                let first = |s: &'static str| if i == 0 { s } else { "" };
                let pass = if i == 0 { o.word() } else { "" };
                text.push_str(&format!(
                    "| {} | {} | {} | {what} | {printed} | {ours} | {error} | {} | {pass} |\n",
                    first(t.id),
                    first(r.target.kind.name()),
                    first(t.claim),
                    first(t.tolerance),
                ));
            }
        }
        text.push('\n');
        self.sentences().iter().for_each(|s| text.push_str(&format!("{s}\n")));
        text
    }

    /// Passed and executed targets of a kind, and the median error.
    fn summary(&self, kind: Kind) -> (usize, usize, Option<f64>) {
        let of_kind =
            || self.results.iter().filter(move |r| r.target.kind == kind && r.outcome.ran());
        let passed = of_kind().filter(|r| r.outcome.pass()).count();
        let errors = of_kind().flat_map(|r| r.outcome.errors()).map(f64::abs).collect();
        (passed, of_kind().count(), median(errors))
    }

    fn sentences(&self) -> Vec<String> {
        let percent = |m: Option<f64>| m.map_or("none".into(), |m| format!("{:.1} %", m * 100.0));
        let mut all: Vec<String> = Kind::ALL
            .into_iter()
            .filter_map(|kind| {
                let (passed, ran, error) = self.summary(kind);
                let (name, words, error) = (kind.name(), kind.words(), percent(error));
                (ran > 0).then(|| {
                    format!("{name} ({words}): {passed} of {ran} pass, median error {error}")
                })
            })
            .collect();
        let of = |kind| self.summary(kind).2;
        if let (Some(cal), Some(ho)) = (of(Kind::Cal), of(Kind::Ho))
            && ho > 2.0 * cal
        {
            all.push("The median error of held-out targets is more than twice that of calibration: the models are fitted more closely than they predict.".into());
        }
        let not_run = self.results.iter().filter(|r| !r.outcome.ran()).count();
        if not_run > 0 {
            all.push(format!("{not_run} were not run; they count as not passed."));
        }
        all
    }
}

/// A single number, or a list of several.
fn numbers(list: impl Iterator<Item = f64>) -> Value {
    let rounded: Vec<f64> = list.map(|x| (x * 1e4).round() / 1e4).collect();
    match rounded[..] {
        [one] => json!(one),
        _ => json!(rounded),
    }
}

fn fields(r: &Reproduced) -> Value {
    let (t, o) = (&r.target, &r.outcome);
    let (printed, ours, error) = match &o.verdict {
        Verdict::NotRun(why) => (json!(t.claim), json!(format!("not run: {why}")), json!("none")),
        Verdict::Words { printed, ours, .. } => (json!(printed), json!(ours), json!("none")),
        Verdict::Numbers { items, .. } => {
            let (printed, ours) = (items.iter().map(|i| i.printed), items.iter().map(|i| i.ours));
            (numbers(printed), numbers(ours), numbers(o.errors().into_iter()))
        }
    };
    let labels: Vec<&str> = o.items().iter().map(|i| i.what.as_str()).collect();
    json!({
        "id": t.id, "claim": t.claim, "kind": r.target.kind.name(), "printed": printed, "ours": ours,
        "error": error, "tolerance": t.tolerance, "pass": o.pass(), "items": labels,
        "note": o.note,
    })
}

#[cfg(test)]
mod tests {
    use super::{CLAIMS, EXPERIMENTS, reproduced_ids};

    #[test]
    fn each_claim_has_its_experiment() {
        let ids = reproduced_ids();
        let claims = CLAIMS.lines().filter(|line| line.starts_with("| ")).count() - 2;
        assert_eq!((ids.len(), EXPERIMENTS.iter().map(|e| e.len()).sum()), (claims, claims));
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }
}
