//! Files named by flags.

use std::io::{self, Write};
use std::path::Path;

use troika::trace::Tracer;

use crate::error::CliError;
use crate::output;

/// Checks that a file, if one is named, can be written, before the work for its contents begins.
pub fn check(what: &str, path: Option<&Path>) -> Result<(), CliError> {
    let can_write = |path| troika::can_write(path).map_err(|e| failed(what, path, &e));
    path.map_or(Ok(()), can_write)
}

fn failed(what: &str, path: &Path, e: &io::Error) -> CliError {
    CliError::Failure(format!("cannot write the {what} {}: {e}", path.display()))
}

/// Writes a file, or replaces one.
///
/// # Errors
/// The file cannot be written; nothing is left behind then.
pub fn write(
    what: &str,
    path: &Path,
    fill: impl Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    troika::write_file(path, fill).map_err(|e| failed(what, path, &e))
}

/// Writes the trace, if a file is named for it.
pub fn write_trace(tracer: &Tracer, path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| write("trace", path, |out| tracer.write_chrome(out)))
}

/// Writes a file of JSON, as it would be printed.
pub fn write_json(what: &str, path: &Path, json: &str) -> Result<(), CliError> {
    let text = output::json_text(json);
    write(what, path, |out| out.write_all(text.as_bytes()))
}
