//! Reads the small files of a model's folder.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::path::Path;

/// Several times the size of the largest tokenizer.
const LARGEST: u64 = 256 << 20;

/// Reads a config, tokenizer, template or index.
///
/// # Errors
/// The file cannot be read, is a pipe or device (which may never end), or is too large.
pub fn read_small(path: &Path) -> Result<Vec<u8>> {
    // Checked before opening: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() && !meta.is_dir() {
        return Err(Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(Error::other(format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    Ok(bytes)
}

/// Parses JSON as Python does: `NaN`, `Infinity` and `-Infinity` are numbers. They become texts of
/// these names, since no JSON value holds them: whoever wants a number refuses them by name.
///
/// # Errors
/// The text is not JSON.
pub fn parse_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    match serde_json::from_slice(bytes) {
        Err(e) if e.is_syntax() => serde_json::from_slice(&with_quotes(bytes)).or(Err(e)),
        parsed => parsed,
    }
}

/// The same text with quotes around numbers that only Python knows.
fn with_quotes(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let (mut rest, mut inside) = (bytes, false);
    while let Some((&first, after)) = rest.split_first() {
        let names: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
        if let Some(name) = names.into_iter().find(|name| !inside && rest.starts_with(name)) {
            out.extend([b"\"", name, b"\""].concat());
            rest = &rest[name.len()..];
            continue;
        }
        out.push(first);
        rest = after;
        match (inside, first) {
            (true, b'\\') => {
                out.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            (_, b'"') => inside = !inside,
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_python_writes_are_read() {
        let parse = parse_json::<serde_json::Value>;
        let text = br#"{"a": NaN, "b": [0.0, Infinity,-Infinity], "c": "a \"NaN, Infinity"}"#;
        let want = serde_json::json!({
            "a": "NaN", "b": [0.0, "Infinity", "-Infinity"], "c": "a \"NaN, Infinity",
        });
        assert_eq!(parse(text).unwrap(), want);
        for bad in [&b"{\"a\": nan}"[..], b"{NaN: 1}x", b"[Infinity", b"\"\\"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn files_are_read_and_large_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read_small(&path).unwrap(), b"{}");
        // A sparse file, which takes no disk space.
        File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(read_small(&path).unwrap_err().to_string().contains("larger than 256 MiB"));
        assert!(read_small(dir.path()).is_err());
        assert!(read_small(&dir.path().join("absent")).is_err());
        #[cfg(unix)]
        assert!(read_small(Path::new("/dev/zero")).unwrap_err().to_string().contains("regular"));
    }
}
