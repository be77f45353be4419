//! The troika command.
fn main() {}
