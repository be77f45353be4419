//! `troika report`.

use std::path::Path;

use troika::plan::{Calibration, RoutingTrace, Transitions};
use troika::trace::{TraceReport, heat_map, read_chrome};

use super::routing::RoutingSummary;
use crate::error::CliError;
use crate::file::{read_bytes, read_file};
use crate::output;

/// Tasks that took longest are listed up to this number.
const TOP: usize = 20;

/// Prints the tables.
pub fn run(file: &Path) -> Result<(), CliError> {
    let bytes = read_bytes(file)?;
    let failed = |why: String| CliError::of_file(file, why);
    if RoutingTrace::begins(&bytes) {
        let trace = RoutingTrace::from_bytes(&bytes).map_err(|e| failed(e.to_string()))?;
        let transitions = Transitions::of(&trace);
        let summary = RoutingSummary::of(&trace, &transitions, &[]);
        return experts(&summary.ok_or_else(|| failed("it has no layers".into()))?);
    }
    drop(bytes);
    let text = read_file(file)?;
    let events = match read_chrome(&text) {
        Ok(events) => events,
        Err(e) => {
            let calibration = Calibration::from_json(&text).ok();
            let summary = calibration.and_then(|c| RoutingSummary::of_calibration(&c));
            return experts(&summary.ok_or_else(|| failed(e.to_string()))?);
        }
    };
    output::write(&TraceReport::of(events).text(TOP))
}

/// The heat map of experts, and the tables.
fn experts(summary: &RoutingSummary) -> Result<(), CliError> {
    let map = heat_map(&summary.counts().collect());
    output::write(format!("{map}{}", summary.table()).trim_start())
}
