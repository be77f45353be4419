//! Conformance cases, as a library so that the project's own tests run them, too.

pub mod golden;
pub mod random;
pub mod suite;
