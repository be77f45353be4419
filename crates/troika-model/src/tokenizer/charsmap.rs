//! Checks the character map of SentencePiece's normalizer before it is used.
//!
//! The map has a byte count, a double-array trie of that size, and zero-terminated replacements.
//! The `tokenizers` crate follows the trie's offsets without bounds checks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Checks a map from `tokenizer.json`. Returns the factor by which a text can grow.
pub(super) fn growth(base64: &str) -> Result<f64, String> {
    let bad = |what: &str| format!("the precompiled_charsmap {what}");
    let bytes = STANDARD.decode(base64).map_err(|e| bad(&format!("is no base64 ({e})")))?;
    let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| bad("is too short"))?;
    let size = u32::from_le_bytes(*size) as usize / 4 * 4;
    if size == 0 || size > rest.len() {
        return Err(bad(&format!("tells of a trie of {size} bytes, it has {}", rest.len())));
    }
    let (trie, texts) = rest.split_at(size);
    let unit = |b: &[u8]| b.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let trie: Vec<usize> = trie.chunks_exact(4).map(unit).collect();
    let texts = std::str::from_utf8(texts).map_err(|_| bad("has replacements that are no text"))?;
    walk(&trie, texts).ok_or_else(|| bad("has a trie that leads outside of it"))
}

/// The offset that a unit adds to its node's position.
fn offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

/// Visits every node that a text can reach; `None` if one is outside.
fn walk(trie: &[usize], texts: &str) -> Option<f64> {
    let ends: Vec<usize> = texts.bytes().enumerate().filter(|t| t.1 == 0).map(|t| t.0).collect();
    let mut growth = 1f64;
    let mut seen = vec![false; trie.len()];
    let mut level = vec![offset(*trie.first()?)];
    for depth in 1.. {
        let mut next = Vec::new();
        for base in level {
            for byte in 1..=255 {
                let at = base ^ byte;
                let unit = *trie.get(at)?;
                if unit & (1 << 31 | 0xff) != byte || std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                let below = at ^ offset(unit);
                if unit >> 8 & 1 == 1 {
                    let start = *trie.get(below)? & ((1 << 31) - 1);
                    let end = ends.get(ends.partition_point(|&e| e < start));
                    let text = texts.get(start..end.copied().unwrap_or(texts.len()))?;
                    growth = growth.max(text.len() as f64 / f64::from(depth));
                }
                next.push(below);
            }
        }
        if next.is_empty() {
            break;
        }
        level = next;
    }
    Some(growth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(size: u32, trie: &[u32], texts: &[u8]) -> String {
        let mut bytes = size.to_le_bytes().to_vec();
        trie.iter().for_each(|u| bytes.extend(u.to_le_bytes()));
        bytes.extend(texts);
        STANDARD.encode(bytes)
    }

    /// A trie with one key, "a", whose value is `value`.
    fn one_key(value: u32) -> Vec<u32> {
        let mut trie = vec![0; 512];
        trie[0] = 256 << 10;
        let node = 256 ^ 0x61;
        // The value is at 256 + 0x62, a distance of 3 from the node.
        trie[node] = 3 << 10 | 1 << 8 | 0x61;
        trie[node ^ 3] = value;
        trie
    }

    #[test]
    fn a_map_in_order_is_measured() {
        assert_eq!(growth(&encode(2048, &one_key(2), b"x\0four\0")), Ok(4.0));
        assert_eq!(growth(&encode(2048, &one_key(0), b"x\0four\0")), Ok(1.0));
    }

    #[test]
    fn what_leads_outside_is_refused() {
        for (size, trie, texts) in [
            (2048, one_key(100), &b"x\0"[..]),
            (2048, one_key(1), "é\0".as_bytes()),
            (2048, vec![0; 100], b""),
            (0, vec![], b""),
            // Eight characters that request 8 GB.
            (u32::MAX, vec![], b""),
            (1024, one_key(0)[..256].to_vec(), b"x\0"),
            (2048, one_key(0), b"\xff\0"),
        ] {
            assert!(growth(&encode(size, &trie, texts)).is_err(), "{size}");
        }
        assert!(growth("").is_err());
        assert!(growth("not base64!").is_err());
    }

    #[test]
    fn a_trie_in_a_circle_ends() {
        let mut trie = one_key(0);
        // "a" leads back to where "a" starts.
        trie[256 ^ 0x61] = 0x61 << 10 | 0x61;
        assert_eq!(growth(&encode(2048, &trie, b"x\0")), Ok(1.0));
    }
}
