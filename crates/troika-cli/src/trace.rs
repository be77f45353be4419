//! Writing the trace file.

use std::path::Path;

use troika::trace::Tracer;

use crate::error::CliError;
use crate::file;

/// Whether the trace can be written, asked before a model is opened and an answer made.
///
/// # Errors
/// A folder in the file's place, or one that is not there or cannot be written to.
pub fn check(path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| file::check("trace", path))
}

/// Writes the trace, if one was asked for.
///
/// # Errors
/// A file that cannot be written; nothing is left behind then.
pub fn save(tracer: &Tracer, path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| file::write("trace", path, |out| tracer.write_chrome(out)))
}
