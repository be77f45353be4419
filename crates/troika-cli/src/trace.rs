//! Writing the trace file: beside it first, then renamed, so that there is never half a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use troika::trace::Tracer;

use crate::error::CliError;

/// Writes the trace, if one was asked for.
///
/// # Errors
/// A file that cannot be written; nothing is left behind then.
pub fn save(tracer: &Tracer, path: Option<&Path>) -> Result<(), CliError> {
    let Some(path) = path else { return Ok(()) };
    let failed =
        |e: io::Error| CliError::Failure(format!("cannot write the trace {}: {e}", path.display()));
    // A pipe or device cannot be renamed over.
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return File::create(path).and_then(|f| fill(tracer, f)).map_err(failed);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = File::create(&beside).and_then(|file| {
        fill(tracer, file.try_clone()?)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    });
    written.map_err(|e| {
        // What could not be created cannot be removed either; both are reported as one.
        let _ = std::fs::remove_file(&beside);
        failed(e)
    })
}

fn fill(tracer: &Tracer, file: File) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    tracer.write_chrome(&mut out)?;
    out.flush()
}
