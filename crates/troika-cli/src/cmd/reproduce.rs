//! `troika reproduce`: reproduces tables of papers on virtual SoCs.

use serde_json::{Value, json};
use troika_lab::reproduce::{Report, Reproduced, Verdict, reproduce, targets};

use crate::error::CliError;
use crate::flags::ReproduceArgs;
use crate::{file, output};

/// Runs the requested experiments and prints the papers' values and ours.
///
/// # Errors
/// An unknown id, a full disk, or a failing simulation.
pub fn run(args: &ReproduceArgs) -> Result<(), CliError> {
    file::check("report", &args.report)?;
    let all = targets();
    let unknown = args.ids.iter().find(|id| !all.iter().any(|t| id.eq_ignore_ascii_case(t.id)));
    if let Some(id) = unknown {
        let known: Vec<&str> = all.iter().map(|t| t.id).collect();
        let why = format!("there is no target {id:?}; the targets are {}", known.join(", "));
        return Err(CliError::Usage(why));
    }
    let report = reproduce(&args.ids)?;
    let html = report.html();
    file::write("report", &args.report, |out| out.write_all(html.as_bytes()))?;
    if args.json {
        return output::json(&Value::Array(report.results.iter().map(fields).collect()));
    }
    output::write(&table(&report))?;
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

fn table(report: &Report) -> String {
    let mut text = String::from(
        "All figures are virtual but those of H30 and H32: modelled times, not measurements of a \
         phone.\n\n\
         | id | | claim | what | printed | ours | error | tolerance | |\n\
         | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
    );
    for r in &report.results {
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
    report.sentences().iter().for_each(|s| text.push_str(&format!("{s}\n")));
    text
}
