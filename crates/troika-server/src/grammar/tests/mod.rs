//! Walks at random under the masks, with a small vocabulary.

mod forced;
mod held;
mod hostile;
mod schema;
mod walks;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Constrain, Grammar, Mask, Vocabulary};

const EOS: u32 = 256;

impl Vocabulary {
    /// Compiles at once, without a place.
    fn compile(&self, constrain: &Constrain) -> Result<Grammar, String> {
        self.compile_holding(constrain, ())
    }
}

/// Bytes, the end, and some longer tokens.
fn tokens() -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.push(b"<|end|>".to_vec());
    for text in ["{\"", "\": ", "\", \"", "true", "name", "12", "é", "\"}", "}}", "  ", "日本"] {
        tokens.push(text.as_bytes().to_vec());
    }
    tokens
}

fn vocabulary() -> Vocabulary {
    let tokens = tokens();
    let special = (0..tokens.len()).map(|id| id == EOS as usize).collect();
    let encode = Arc::new(|text: &[u8]| text.iter().map(|byte| u32::from(*byte)).collect());
    Vocabulary::new(tokens, special, vec![EOS], encode).unwrap()
}

fn set(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// The tokens that the mask allows.
fn choices(mask: &mut Mask, count: u32) -> Vec<u32> {
    match mask.allowed() {
        Some(allowed) => (0..count).filter(|token| set(allowed, *token)).collect(),
        None => (0..count).collect(),
    }
}

/// Walks at random to the end. After some tokens, ends strings and lists as soon as it can.
fn walk(vocabulary: &Vocabulary, constrain: &Constrain, seed: u64) -> String {
    let tokens = tokens();
    let grammar = vocabulary.compile(constrain).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut mask = grammar.start();
    let mut text = Vec::new();
    for count in 0..2000 {
        let mut may = choices(&mut mask, tokens.len() as u32);
        assert!(!may.is_empty(), "no way on behind {:?}", String::from_utf8_lossy(&text));
        if count > 60 {
            let ends = |t: &u32| *t == EOS || (*t < 256 && b"\"}]".contains(&(*t as u8)));
            let sooner: Vec<u32> = may.iter().copied().filter(ends).collect();
            may = if sooner.is_empty() { may } else { sooner };
        }
        // JSON has numbers that no f64 holds.
        if text.last().is_some_and(u8::is_ascii_digit) {
            may.retain(|token| !matches!(*token, 69 | 101));
        }
        let token = may[random.next_u32() as usize % may.len()];
        if token == EOS {
            assert_eq!(mask.error(), None);
            return String::from_utf8(text).unwrap();
        }
        text.extend(&tokens[token as usize]);
        mask.accept(token);
    }
    panic!("no end: {}", String::from_utf8_lossy(&text));
}
