//! The project's own rules. A rule worth writing down is worth testing; what a lint of the compiler
//! or of clippy finds needs no rule here (`Cargo.toml`, `clippy.toml`).
//!
//! Each rule is a file in `rules`: a function from the tree to violations, tested with planted
//! violations.

mod modules;
mod rules;
mod source;
#[cfg(test)]
mod testing;
mod tree;

use std::fmt;
use std::path::Path;

use tree::{File, Tree};

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    /// Path from the root, with forward slashes.
    path: String,
    /// Line, counted from one.
    line: usize,
    rule: &'static str,
    /// What is wrong and what to do, as a sentence.
    message: String,
}

impl Violation {
    fn new(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.to_string(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// Checks the project in a folder and prints the violations, ordered by location.
pub fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::load(root)?;
    let mut found: Vec<Violation> = rules::ALL.iter().flat_map(|rule| rule(&tree)).collect();
    found.sort();
    found.dedup();
    found.iter().for_each(|violation| println!("{violation}"));
    if !found.is_empty() {
        return Err(format!("{} files, {} violations", tree.files.len(), found.len()));
    }
    println!("tidy: {} files, no violations", tree.files.len());
    Ok(())
}
