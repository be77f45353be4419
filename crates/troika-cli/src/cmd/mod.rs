//! A file per verb.

pub mod bench;
pub mod completions;
pub mod devices;
pub mod run;
pub mod show;
pub mod tokenize;

use std::io::Read;

use crate::error::CliError;

/// All of standard input as text.
///
/// # Errors
/// Input that is not UTF-8 or cannot be read.
pub fn read_stdin() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|e| CliError::Failure(format!("cannot read standard input: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::Failure(format!("standard input is not UTF-8 text (byte {at} is invalid)"))
    })
}
