//! The project's own rules. A rule worth writing down is worth testing.
//!
//! Each rule is a file in `rules`: a function from the tree to violations, tested with planted
//! violations.

mod lex;
mod modules;
mod rules;
mod source;
#[cfg(test)]
mod testing;
mod tree;

use std::fmt;

pub use tree::Tree;

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path from the root, with forward slashes.
    pub path: String,
    /// Line, counted from one.
    pub line: usize,
    /// Name of the rule.
    pub rule: &'static str,
    /// What is wrong and what to do, as a sentence.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// All violations, ordered by location.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found: Vec<Violation> = rules::ALL.iter().flat_map(|rule| rule(tree)).collect();
    found.sort();
    found.dedup();
    found
}
