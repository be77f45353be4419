//! Files that flags name, with what they hold.

use std::io::{self, Write};
use std::path::Path;

use crate::error::CliError;
use crate::output;

/// Whether a file can be written, asked before the work is done whose result it is to hold.
///
/// # Errors
/// A folder in the file's place, or one that is not there or cannot be written to.
pub fn check(what: &str, path: &Path) -> Result<(), CliError> {
    troika::can_write(path).map_err(|e| failed(what, path, &e))
}

fn failed(what: &str, path: &Path, e: &io::Error) -> CliError {
    CliError::Failure(format!("cannot write the {what} {}: {e}", path.display()))
}

/// Writes a file, or replaces one.
///
/// # Errors
/// A file that cannot be written; nothing is left behind then.
pub fn write(
    what: &str,
    path: &Path,
    fill: impl Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    troika::write_file(path, fill).map_err(|e| failed(what, path, &e))
}

/// Writes a file of JSON, as it would be printed.
///
/// # Errors
/// A file that cannot be written; nothing is left behind then.
pub fn write_json(what: &str, path: &Path, json: &str) -> Result<(), CliError> {
    let text = output::json_text(json);
    write(what, path, |out| out.write_all(text.as_bytes()))
}
