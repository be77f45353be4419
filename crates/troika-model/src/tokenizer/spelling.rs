//! How vocabularies spell the bytes that a token stands for.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A character for each byte, as GPT-2 does.
    ByteLevel,
    /// `\u{2581}` for a space, `<0x0A>` for a byte, as SentencePiece does.
    Pieces,
    /// Words apart by spaces, `##` before what continues one, as BERT does.
    Words,
    /// As it is.
    Plain,
}

impl Spelling {
    /// The spelling that a decoder, as JSON, turns back into text.
    pub fn of(decoder: &Value) -> Spelling {
        let text = decoder.to_string();
        let has = |name: &str| text.contains(&format!("\"type\":\"{name}\""));
        if has("ByteLevel") {
            Spelling::ByteLevel
        } else if has("Metaspace") || has("ByteFallback") || text.contains('\u{2581}') {
            Spelling::Pieces
        } else if has("WordPiece") {
            Spelling::Words
        } else {
            Spelling::Plain
        }
    }

    /// The bytes of a token in the middle of a text.
    pub fn bytes(self, token: String) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| token.into_bytes())
            }
            Spelling::Pieces => match named_byte(&token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
            Spelling::Words => match token.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {token}").into_bytes(),
            },
            Spelling::Plain => token.into_bytes(),
        }
    }
}

/// The bytes of GPT-2's characters (`bytes_to_unicode` in its `encoder.py`).
fn byte_of(c: char) -> Option<u8> {
    static BYTES: OnceLock<HashMap<char, u8>> = OnceLock::new();
    let make = || {
        let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let others = (0..=255u8).filter(|&b| !printable(b)).zip(0x100u32..);
        let others = others.filter_map(|(b, c)| Some((char::from_u32(c)?, b)));
        (0..=255u8).filter(|&b| printable(b)).map(|b| (char::from(b), b)).chain(others).collect()
    };
    BYTES.get_or_init(make).get(&c).copied()
}

/// The byte of a spelling such as `<0x0A>`.
fn named_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::{byte_of, named_byte};

    #[test]
    fn every_byte_has_a_character() {
        let mut seen: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('\u{120}'), byte_of('\u{10a}')), (Some(b' '), Some(b'\n')));
        assert_eq!(
            (named_byte("<0x0A>"), named_byte("<0xA>"), named_byte("<s>")),
            (Some(10), None, None)
        );
    }
}
