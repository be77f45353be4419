//! Writes the trace file.

use std::path::Path;

use troika::trace::Tracer;

use crate::error::CliError;
use crate::file;

/// Checks that the trace can be written, before a model is opened.
///
/// # Errors
/// The path is a folder, or its folder is missing or not writable.
pub fn check(path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| file::check("trace", path))
}

/// Writes the trace, if requested.
///
/// # Errors
/// The file cannot be written; nothing is left behind then.
pub fn save(tracer: &Tracer, path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| file::write("trace", path, |out| tracer.write_chrome(out)))
}
