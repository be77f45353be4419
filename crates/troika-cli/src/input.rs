//! Texts that are read: files, and standard input.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::CliError;

/// Longest text that is read: many times what any context holds, and less than memory, so that a
/// device that never ends gets a sentence, too.
const LONGEST: u64 = 256 << 20;

/// All bytes of an input that ends.
fn read_all(input: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(LONGEST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        0..=LONGEST => Ok(bytes),
        _ => Err(std::io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20))),
    }
}

/// All of standard input as text.
///
/// # Errors
/// Input that is not UTF-8 or cannot be read.
pub fn read_stdin() -> Result<String, CliError> {
    let bytes = read_all(std::io::stdin().lock())
        .map_err(|e| CliError::Failure(format!("cannot read standard input: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::Failure(format!("standard input is not UTF-8 text (byte {at} is invalid)"))
    })
}

/// A file's text.
///
/// # Errors
/// A file that cannot be read, or is not UTF-8.
pub fn read_file(file: &Path) -> Result<String, CliError> {
    let failed = |why: String| CliError::Failure(format!("{}: {why}", file.display()));
    let bytes = File::open(file).and_then(read_all).map_err(|e| failed(e.to_string()))?;
    String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8 text".into()))
}
