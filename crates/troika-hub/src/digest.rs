//! The hash by which the Hub names a file's contents.

use std::io::{self, Read};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// Hashes a file's bytes in order. Large files are named by their SHA-256, small ones by the SHA-1
/// of git's blobs. Other servers may use names without a relation to the contents.
#[derive(Clone)]
pub struct Check {
    /// `None` if the name is not a known hash.
    context: Option<Context>,
    wanted: String,
}

impl Check {
    /// Starts for a file of `size` bytes named `etag`.
    pub fn new(etag: &str, size: u64) -> Check {
        let is_hex = etag.bytes().all(|b| b.is_ascii_hexdigit());
        let context = match etag.len() {
            64 if is_hex => Some(Context::new(&SHA256)),
            40 if is_hex => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Some(context)
            }
            _ => None,
        };
        Check { context, wanted: etag.to_ascii_lowercase() }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(context) = &mut self.context {
            context.update(bytes);
        }
    }

    /// Adds the contents of a file.
    pub fn read(&mut self, mut file: impl Read) -> io::Result<()> {
        if self.context.is_none() {
            return Ok(());
        }
        let mut buffer = Vec::new();
        while file.by_ref().take(1 << 20).read_to_end(&mut buffer)? > 0 {
            self.update(&buffer);
            buffer.clear();
        }
        Ok(())
    }

    /// Whether the bytes match the name.
    pub fn fits(self) -> bool {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        self.context.is_none_or(|context| hex(context.finish().as_ref()) == self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(etag: &str, bytes: &[u8]) -> bool {
        let mut check = Check::new(etag, bytes.len() as u64);
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        check.update(first);
        check.read(rest).expect("memory can be read");
        check.fits()
    }

    #[test]
    fn names_are_those_that_git_and_sha256sum_give() {
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert!(fits(sha256, b"hello") && !fits(sha256, b"hellO"));
        let blob = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert!(fits(blob, b"hello") && !fits(blob, b"hello "));
        assert!(fits(&blob.to_uppercase(), b"hello"));
        assert!(fits("d41d8cd98f00b204-7", b"anything"));
    }
}
