//! `troika reproduce`: reproduces tables of papers on virtual SoCs.
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

use serde_json::{Value, json};

use crate::error::CliError;
use crate::flags::ReproduceArgs;
use crate::{file, output};
use lab::Lab;
use outcome::{Kind, Outcome, Target, Verdict};

/// All targets, in the papers' order.
fn targets() -> Vec<Target> {
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
struct Reproduced {
    target: Target,
    outcome: Outcome,
}

/// Runs the requested experiments and prints the papers' values and ours.
///
/// # Errors
/// An unknown id, a full disk, or a failing simulation.
pub fn run(args: &ReproduceArgs) -> Result<(), CliError> {
    file::check("report", &args.report)?;
    let all = targets();
    let wanted =
        |t: &Target| args.ids.is_empty() || args.ids.iter().any(|id| id.eq_ignore_ascii_case(t.id));
    let unknown = args.ids.iter().find(|id| !all.iter().any(|t| id.eq_ignore_ascii_case(t.id)));
    if let Some(id) = unknown {
        let known: Vec<&str> = all.iter().map(|t| t.id).collect();
        let why = format!("there is no target {id:?}; the targets are {}", known.join(", "));
        return Err(CliError::Usage(why));
    }
    let mut lab = Lab::new(!args.ids.is_empty())?;
    let mut results = Vec::new();
    for target in all.into_iter().filter(wanted) {
        let outcome = (target.run)(&mut lab)?;
        results.push(Reproduced { target, outcome });
    }
    let html = report::html(&results, &charts::all(&mut lab, args.ids.is_empty())?);
    file::write("report", &args.report, |out| out.write_all(html.as_bytes()))?;
    if args.json {
        return output::json(&Value::Array(results.iter().map(fields).collect()));
    }
    output::write(&table(&results))?;
    output::note_line(&format!("report: {}", args.report.display()));
    Ok(())
}

/// A single number, or a list of several.
fn numbers(list: &[f64]) -> Value {
    let round = |x: f64| (x * 1e4).round() / 1e4;
    match list {
        [one] => json!(round(*one)),
        more => more.iter().map(|x| round(*x)).collect(),
    }
}

fn fields(r: &Reproduced) -> Value {
    let (t, o) = (&r.target, &r.outcome);
    let (printed, ours, error) = match &o.verdict {
        Verdict::NotRun(why) => (json!(t.claim), json!(format!("not run: {why}")), json!("none")),
        Verdict::Words { printed, ours, .. } => (json!(printed), json!(ours), json!("none")),
        Verdict::Numbers { .. } => {
            (numbers(&o.printed()), numbers(&o.ours()), numbers(&o.errors()))
        }
    };
    json!({
        "id": t.id, "claim": t.claim, "kind": t.kind.name(), "printed": printed, "ours": ours,
        "error": error, "tolerance": t.tolerance, "pass": o.pass(), "items": o.labels(),
        "note": o.note,
    })
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

fn table(results: &[Reproduced]) -> String {
    let mut text = String::from(
        "All figures are virtual but those of H30 and H32: modelled times, not measurements of a \
         phone.\n\n\
         | id | | claim | what | printed | ours | error | tolerance | |\n\
         | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
    );
    for r in results {
        let (t, o) = (&r.target, &r.outcome);
        for (i, line) in o.lines().into_iter().enumerate() {
            let [what, printed, ours, error] = line;
            let first = |s: &'static str| if i == 0 { s } else { "" };
            let pass = if i == 0 { o.word() } else { "" };
            text.push_str(&format!(
                "| {} | {} | {} | {what} | {printed} | {ours} | {error} | {} | {pass} |\n",
                first(t.id),
                first(t.kind.name()),
                first(t.claim),
                first(t.tolerance),
            ));
        }
    }
    text.push('\n');
    sentences(results).iter().for_each(|s| text.push_str(&format!("{s}\n")));
    text
}
