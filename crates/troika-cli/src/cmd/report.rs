//! `troika report`.

use troika::plan::{Calibration, RoutingTrace, Transitions};
use troika::trace::{HeatMap, HeatRow, TraceReport, read_chrome};

use super::routing::RoutingSummary;
use crate::error::CliError;
use crate::flags::ReportArgs;
use crate::input::{read_bytes, read_file};
use crate::{file, output};

/// Tasks that took longest are listed up to this number.
const TOP: usize = 20;

/// Prints the tables, and writes the page.
///
/// # Errors
/// A file that is neither a trace nor a calibration, or one that cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), CliError> {
    file::check("report", args.out.as_deref())?;
    let name = args.trace.display().to_string();
    let bytes = read_bytes(&args.trace)?;
    let failed = |why: String| CliError::Failure(format!("{name}: {why}"));
    if RoutingTrace::begins(&bytes) {
        let trace = RoutingTrace::from_bytes(&bytes).map_err(|e| failed(e.to_string()))?;
        let transitions = Transitions::of(&trace);
        let summary = RoutingSummary::of(&trace, &transitions, &[]);
        return experts(args, summary.ok_or_else(|| failed("it has no layers".into()))?);
    }
    drop(bytes);
    let text = read_file(&args.trace)?;
    let events = match read_chrome(&text) {
        Ok(events) => events,
        Err(e) => {
            let calibration = Calibration::from_json(&text).ok();
            let summary = calibration.and_then(|c| RoutingSummary::of_calibration(&c));
            return experts(args, summary.ok_or_else(|| failed(e.to_string()))?);
        }
    };
    let report = TraceReport::of(events);
    if let Some(page) = &args.out {
        let html = report.html(&format!("Troika: {name}"), TOP);
        file::write("report", page, |to| to.write_all(html.as_bytes()))?;
    }
    output::write(&report.text(TOP))
}

/// The heat map of experts, and the tables.
fn experts(args: &ReportArgs, summary: RoutingSummary) -> Result<(), CliError> {
    let row = |(layer, counts): (usize, &[f64])| HeatRow {
        name: format!("layer {layer}"),
        counts: counts.to_vec(),
    };
    let map = HeatMap { rows: summary.counts().map(row).collect() };
    let table = summary.table();
    if let Some(page) = &args.out {
        let html = map.page(&format!("Troika: {}", args.trace.display()), table.trim_start());
        file::write("report", page, |to| to.write_all(html.as_bytes()))?;
    }
    output::write(format!("{}{}", map.text(), table).trim_start())
}
