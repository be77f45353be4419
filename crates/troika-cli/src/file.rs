//! Files named by flags, and standard input.

use std::io::{self, Write};
use std::path::Path;

use troika::device::{read_all, read_text};
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

/// The text of the file that `-f` names; all of standard input where that is `-`, or nothing.
pub fn read_input(file: Option<&Path>) -> Result<String, CliError> {
    file.filter(|file| !is_stdin(file)).map_or_else(read_stdin, read_file)
}

/// Whether a file's name stands for standard input.
pub fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// All of standard input as text, without a byte order mark.
fn read_stdin() -> Result<String, CliError> {
    let bytes = read_all(io::stdin().lock())
        .map_err(|e| CliError::Failure(format!("cannot read standard input: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::Failure(format!("standard input is not UTF-8 text (byte {at} is invalid)"))
    })?;
    Ok(without_mark(text))
}

/// A file's text, without a byte order mark.
pub fn read_file(file: &Path) -> Result<String, CliError> {
    read_text(file).map(without_mark).map_err(|e| CliError::of_file(file, e))
}

/// A file's bytes.
pub fn read_bytes(file: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::File::open(file).and_then(read_all).map_err(|e| CliError::of_file(file, e))
}

/// Some editors write the mark U+FEFF before a text; a model would read it as a word.
fn without_mark(mut text: String) -> String {
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    text
}
