//! Compiled grammars that are kept: agents send the same tools with each turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::mask::Grammar;

/// The grammars that are kept, at most, and the bytes of the texts by which they are known.
const MOST: usize = 32;
const BYTES: usize = 4 << 20;

/// Grammars by their constraints' texts, the one used last at the end.
#[derive(Default)]
pub struct KeptGrammars(Mutex<VecDeque<(String, Arc<Grammar>)>>);

impl KeptGrammars {
    pub fn get(&self, text: &str) -> Option<Arc<Grammar>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|(known, _)| known == text)?;
        let found = kept.remove(found)?;
        let grammar = found.1.clone();
        kept.push_back(found);
        Some(grammar)
    }

    /// Keeps the grammar of a text, and drops those that were used longest ago.
    pub fn keep(&self, text: String, grammar: &Arc<Grammar>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((text, grammar.clone()));
        let mut bytes: usize = kept.iter().map(|(text, _)| text.len()).sum();
        while kept.len() > MOST || bytes > BYTES {
            let Some((text, _)) = kept.pop_front() else { return };
            bytes -= text.len();
        }
    }
}
