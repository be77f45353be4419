//! Conformance of devices and models, as a library for the project's own tests.

pub mod golden;
pub mod suite;
