//! Conformance: op and model cases run on any device.
fn main() {}
