//! `troika doctor`.

use serde_json::{Value, json};

use crate::doctor::{Finding, FindingState, examine};
use crate::error::CliError;
use crate::flags::DoctorArgs;
use crate::output::{self, printable};

/// Says what can be used, what could be better and what is missing.
///
/// # Errors
/// No model runs.
pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    output::keep_apart();
    let findings = examine(&args.machine());
    let is_needed = |f: &&Finding| !f.optional && f.state == FindingState::Missing;
    let lacking: Vec<&str> = findings.iter().filter(is_needed).map(|f| f.topic).collect();
    match args.json {
        true => {
            let list: Vec<Value> = findings.iter().map(as_json).collect();
            output::json(&json!({ "runs": lacking.is_empty(), "findings": list }))?;
        }
        false => output::write(&as_text(&findings, &lacking))?,
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
    let summary = format!("{runs}; {better} can be better, {missing} are missing\n");
    lines.chain(std::iter::once(summary)).collect()
}
