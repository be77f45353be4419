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
