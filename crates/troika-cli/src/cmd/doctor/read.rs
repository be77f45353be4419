//! `troika doctor --read`: reports side by side.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::CliError;
use crate::output::{self, printable};

/// The version of the format of reports.
pub const VERSION: u64 = 1;

/// Prints reports side by side, as a table.
pub fn run(files: &[PathBuf]) -> Result<(), CliError> {
    let reports = files.iter().map(|file| report(file)).collect::<Result<Vec<_>, _>>()?;
    output::write(&table(&reports))
}

fn report(file: &Path) -> Result<Value, CliError> {
    let refuse = |why: &str| CliError::of_file(file, why);
    let text = troika::device::read_text(file);
    let text = text.map_err(|e| refuse(&format!("the report cannot be read: {e}")))?;
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let (version, by) = (&value["version"], value["troika"].as_str().unwrap_or("?"));
    if value["report_of"] == "troika" && version.is_u64() && *version != VERSION {
        return Err(refuse(&format!(
            "the report is of version {version}, by troika {by}, and this troika reads version \
             {VERSION}; make it again, or read it with that troika"
        )));
    }
    match value["report_of"] == "troika" && value["entries"].is_array() {
        true => Ok(value),
        false => Err(refuse("it is no report of troika doctor --report")),
    }
}

/// A row for each thing that a report tells, a column for each report.
pub fn table(reports: &[Value]) -> String {
    let cell = |text: &Value| printable(text.as_str().unwrap_or("-")).replace('|', "/");
    let entries = |report: &Value| report["entries"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<Value> = Vec::new();
    for entry in reports.iter().flat_map(entries) {
        if !names.contains(&entry["name"]) {
            names.push(entry["name"].clone());
        }
    }
    let row = |name: String, of: &dyn Fn(&Value) -> String| {
        let cells: Vec<String> = reports.iter().map(of).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let mut out = row("report by troika".into(), &|report| cell(&report["troika"]));
    out.push_str(&format!("| --- |{}\n", " --- |".repeat(reports.len())));
    out.push_str(&row("state".into(), &|report| {
        let skipped = report["skipped"].as_array().map_or(0, Vec::len);
        format!("{} after {} s, {skipped} skipped", cell(&report["state"]), report["seconds"])
    }));
    for name in &names {
        out.push_str(&row(cell(name), &|report| {
            let found = entries(report).into_iter().find(|entry| entry["name"] == *name);
            found.map_or("-".into(), |entry| cell(&entry["says"]))
        }));
    }
    out
}
