//! `troika report`.

use troika::trace::{TraceReport, read_chrome};

use crate::error::CliError;
use crate::flags::ReportArgs;
use crate::input::read_file;
use crate::{file, output};

/// Prints the tables, and writes the page.
///
/// # Errors
/// A file that is no trace, or one that cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), CliError> {
    file::check("report", args.out.as_deref())?;
    let name = args.trace.display().to_string();
    let events = read_chrome(&read_file(&args.trace)?);
    let events = events.map_err(|e| CliError::Failure(format!("{name}: {e}")))?;
    let report = TraceReport::of(events);
    if let Some(page) = &args.out {
        let html = report.html(&format!("Troika: {name}"), args.top);
        file::write("report", page, |to| to.write_all(html.as_bytes()))?;
    }
    output::write(&report.text(args.top))
}
