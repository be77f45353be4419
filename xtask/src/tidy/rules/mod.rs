//! One file per rule.

mod arrows;
mod circles;
mod environment;
mod families;
mod glossary;
mod hygiene;
mod length;
mod panics;
mod unsafety;
mod verbs;

use super::{Tree, Violation};

/// A rule: a function from the tree to violations.
pub type Rule = fn(&Tree) -> Vec<Violation>;

/// Every rule.
pub const ALL: &[Rule] = &[
    arrows::check,
    circles::check,
    environment::check,
    families::check,
    glossary::check,
    hygiene::check,
    length::check,
    panics::check,
    unsafety::check,
    verbs::check,
];
