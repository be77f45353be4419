//! One file per rule.

mod arrows;
mod circles;
mod families;
mod glossary;
mod hygiene;
mod length;
mod limits;
mod safety;

use super::{Tree, Violation};

/// A rule: a function from the tree to violations.
type Rule = fn(&Tree) -> Vec<Violation>;

/// Every rule.
pub const ALL: &[Rule] = &[
    arrows::check,
    circles::check,
    families::check,
    glossary::check,
    hygiene::check,
    length::check,
    limits::check,
    safety::check,
];
