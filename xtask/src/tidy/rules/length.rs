//! Length: a file must be short enough to read in one go.

use crate::tidy::{Tree, Violation};

const CEILING: usize = 700;
const TEST_CEILING: usize = 2000;

/// Checks the number of lines of each Rust file.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        let lines = file.text.as_deref().unwrap_or_default().lines().count();
        let ceiling = if file.test { TEST_CEILING } else { CEILING };
        if lines > ceiling {
            let message = format!("{lines} lines, the ceiling is {ceiling}; split the file");
            found.push(Violation::new("length", &file.path, 1, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn long_files_are_found() {
        let (long, huge) = ("//\n".repeat(701), "fn f() {}\n".repeat(2001));
        let found = places(
            check,
            &[
                ("crates/a/src/long.rs", &long),
                ("crates/a/src/just.rs", &long[3..]),
                ("crates/a/tests/t.rs", &long),
                ("crates/a/tests/u.rs", &huge),
                ("notes.md", &huge),
            ],
        );
        assert_eq!(found, ["crates/a/src/long.rs:1", "crates/a/tests/u.rs:1"]);
    }
}
