//! Conformance cases, as a library for the project's own tests.

pub mod golden;
pub mod hooked;
pub mod random;
pub mod suite;
