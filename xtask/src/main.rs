//! Project chores: tidy rules, test data.
fn main() {}
