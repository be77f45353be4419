//! Reads text from files and standard input.

use std::path::Path;

use troika::device::{read_all, read_text};

use crate::error::CliError;

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
    let bytes = read_all(std::io::stdin().lock())
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
