//! Text files written by people, and sizes for them to read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The longest text that is read: much longer than any plan, profile or prompt, but shorter than
/// memory, so that endless input gives an error.
const LONGEST: u64 = 256 << 20;

/// Reads an input to its end.
///
/// # Errors
/// The input cannot be read, or is longer than 256 MiB.
pub fn read_all(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(LONGEST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        0..=LONGEST => Ok(bytes),
        _ => Err(io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20))),
    }
}

/// Reads a text file.
///
/// # Errors
/// The file cannot be read, is longer than 256 MiB, or is not UTF-8.
pub fn read_text(file: &Path) -> io::Result<String> {
    let bytes = File::open(file).and_then(read_all)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

/// A number of bytes for people, in whole MiB, or KiB below one: never 0 for what is not.
pub fn size(bytes: u64) -> String {
    in_units(bytes, |bytes, unit| bytes / unit)
}

/// The same of what is needed: rounded up.
pub fn size_needed(bytes: u64) -> String {
    in_units(bytes, u64::div_ceil)
}

fn in_units(bytes: u64, count: fn(u64, u64) -> u64) -> String {
    let units = [(1 << 20, "MiB"), (1 << 10, "KiB")];
    let (unit, name) = units.into_iter().find(|u| bytes >= u.0).unwrap_or((1, "bytes"));
    format!("{} {name}", count(bytes, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_shown_as_0() {
        let both = |bytes| [size(bytes), size_needed(bytes)];
        assert_eq!(both(1023), ["1023 bytes"; 2]);
        assert_eq!(both(1025), ["1 KiB", "2 KiB"]);
        assert_eq!(both((5 << 20) + 1), ["5 MiB", "6 MiB"]);
    }

    #[test]
    fn inputs_that_never_end_are_refused() {
        assert_eq!(read_all(&b"text"[..]).unwrap(), b"text");
        let error = read_all(io::repeat(b' ')).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 256 MiB");
        #[cfg(unix)]
        assert!(read_text(Path::new("/dev/zero")).is_err());
    }
}
