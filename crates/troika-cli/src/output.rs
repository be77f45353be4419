//! Writing the answer, and only the answer, to standard output.

use std::io::{self, Write};

use crate::error::CliError;

/// Writes text and flushes, so that it streams.
///
/// # Errors
/// A closed or failing standard output.
pub fn write(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Stdout)
}

/// Writes a JSON value on lines of its own.
///
/// # Errors
/// A closed or failing standard output.
pub fn json(value: &serde_json::Value) -> Result<(), CliError> {
    write(&format!("{value:#}\n"))
}

/// Tells the user something beside the answer. Nobody listening is no reason to fail.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
