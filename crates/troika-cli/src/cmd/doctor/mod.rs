//! `troika doctor`.

mod measure;
mod presets;
mod report;

use serde_json::{Value, json};
use troika::{WeightType, weight_types};

use crate::doctor::{Finding, FindingState, examine};
use crate::error::CliError;
use crate::flags::DoctorArgs;
use crate::output::{self, printable};
use crate::table::TextTable;

/// Says what can be used, what could be better and what is missing.
pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    if !args.read.is_empty() {
        return report::read(&args.read);
    }
    if let Some(file) = &args.report {
        return report::run(args, file);
    }
    output::keep_apart();
    let findings = examine(&args.machine());
    let is_needed = |f: &&Finding| !f.optional && f.state == FindingState::Missing;
    let lacking: Vec<&str> = findings.iter().filter(is_needed).map(|f| f.topic).collect();
    match args.json {
        true => {
            let list: Vec<Value> = findings.iter().map(as_json).collect();
            let weights =
                args.verbose.then(|| weight_types().iter().map(type_json).collect::<Vec<_>>());
            output::json(&json!({
                "runs": lacking.is_empty(), "findings": list, "weights": weights
            }))?;
        }
        false => output::write(&as_text(&findings, &lacking))?,
    }
    if args.verbose && !args.json {
        output::write(&weights())?;
    }
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(CliError::Failure(format!("no model can run here ({})", lacking.join(", ")))),
    }
}

fn as_json(finding: &Finding) -> Value {
    let Finding { topic, state, says, fix, .. } = finding;
    json!({ "topic": topic, "state": state.name(), "says": says, "fix": fix })
}

fn type_json(of: &WeightType) -> Value {
    let WeightType { dtype, bits, cpu, gpu } = of;
    let gpu = gpu.as_ref().map(|(layout, bits)| json!({ "layout": layout, "bits": bits }));
    json!({ "type": dtype.name(), "bits": bits, "cpu": cpu, "gpu": gpu })
}

/// The types of weights with what computes with them.
fn weights() -> String {
    let titles = ["type", "bits", "products on the cpu", "layout on gpus", "bits"];
    let mut table = TextTable::new(titles);
    for WeightType { dtype, bits, cpu, gpu } in weight_types() {
        let number = |bits: f32| format!("{bits:.2}");
        let (layout, there) = gpu.map_or_else(Default::default, |(l, b)| (l, number(b)));
        table.add([dtype.to_string(), number(bits), cpu.to_string(), layout, there]);
    }
    format!("\n{table}")
}

fn as_text(findings: &[Finding], lacking: &[&str]) -> String {
    let lines = findings.iter().map(|Finding { topic, state, says, fix, .. }| {
        let fix = fix
            .as_ref()
            .map_or(String::new(), |fix| format!("{:<29}fix: {}\n", "", printable(fix)));
        format!("{:<13}  {topic:<12}  {}\n{fix}", state.name(), printable(says))
    });
    let count = |state| findings.iter().filter(|f| f.state == state).count();
    let (better, missing) = (count(FindingState::Improvable), count(FindingState::Missing));
    let runs = if lacking.is_empty() { "a model can run" } else { "no model can run" };
    let summary = format!("{runs}; {better} can be better, {missing} missing\n");
    lines.chain(std::iter::once(summary)).collect()
}
