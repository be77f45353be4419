//! `troika doctor --read`: reports side by side.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::report::VERSION;
use crate::error::CliError;
use crate::output::{self, printable};

/// Prints reports side by side, as a table.
///
/// # Errors
/// A file that cannot be read, that is no report, or one of another version.
pub fn run(files: &[PathBuf]) -> Result<(), CliError> {
    let reports = files.iter().map(|file| report(file)).collect::<Result<Vec<_>, _>>()?;
    output::write(&table(&reports))
}

fn report(file: &Path) -> Result<Value, CliError> {
    let refuse = |why: String| CliError::Failure(format!("{}: {why}", file.display()));
    let text = troika::device::read_text(file);
    let text = text.map_err(|e| refuse(format!("the report cannot be read: {e}")))?;
    let no_report = || refuse("it is no report of troika doctor --report".into());
    let value: Value = serde_json::from_str(&text).map_err(|_| no_report())?;
    if value["report_of"] != "troika" || !value["version"].is_u64() {
        return Err(no_report());
    }
    let version = value["version"].as_u64();
    if version != Some(VERSION) {
        let (version, by) = (version.unwrap_or_default(), &value["troika"]);
        let by = by.as_str().unwrap_or("of unknown version");
        return Err(refuse(format!(
            "the report is of version {version}, by troika {by}, and this troika reads version \
             {VERSION}; make it again, or read it with that troika"
        )));
    }
    if !value["entries"].is_array() {
        return Err(no_report());
    }
    Ok(value)
}

/// A row for each thing that a report tells, a column for each report.
pub fn table(reports: &[Value]) -> String {
    let cell = |text: &str| printable(text).replace('|', "/");
    let entries = |report: &Value| report["entries"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for name in reports.iter().flat_map(entries).filter_map(|e| Some(e["name"].as_str()?.into())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |report: &Value, name: &str| {
        let found = entries(report).into_iter().find(|entry| entry["name"] == name);
        found.map_or("-".into(), |entry| cell(entry["says"].as_str().unwrap_or("-")))
    };
    let text = |report: &Value, key: &str| cell(report[key].as_str().unwrap_or("-"));
    let row = |name: &str, of: &dyn Fn(&Value) -> String| {
        let cells: Vec<String> = reports.iter().map(of).collect();
        format!("| {} | {} |\n", cell(name), cells.join(" | "))
    };
    let mut out = row("report by troika", &|report| text(report, "troika"));
    out.push_str(&format!("| --- |{}\n", " --- |".repeat(reports.len())));
    out.push_str(&row("state", &|report| {
        let skipped = report["skipped"].as_array().map_or(0, Vec::len);
        let not = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        format!("{}{not}, {} s", text(report, "state"), report["seconds"])
    }));
    for name in &names {
        out.push_str(&row(name, &|report| of(report, name)));
    }
    out
}
