//! Length: a file must be short enough to read in one go.

use crate::tidy::{Tree, Violation};

const RULE: &str = "length";
const CEILING: usize = 700;
const TEST_CEILING: usize = 2000;

/// Files that may be longer, with reasons.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Checks the number of lines of each Rust file.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(tree, EXCEPTIONS)
}

fn check_with(tree: &Tree, exceptions: &[(&str, &str)]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, _) in tree.sources() {
        let lines = file.text.as_deref().unwrap_or_default().lines().count();
        let ceiling = if file.is_test() { TEST_CEILING } else { CEILING };
        let excepted = exceptions.iter().any(|(path, _)| *path == file.path);
        let message = match (lines > ceiling, excepted) {
            (true, false) => format!("{lines} lines, the ceiling is {ceiling}; split the file"),
            (false, true) => "is no longer above the ceiling; drop its exception".to_string(),
            _ => continue,
        };
        found.push(Violation { path: file.path.clone(), line: 1, rule: RULE, message });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{places, tree};

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

    #[test]
    fn exceptions_are_named_and_do_not_outlive_their_reason() {
        let list = [("a.rs", "a table"), ("b.rs", "a table")];
        let found = check_with(&tree(&[("a.rs", &"//\n".repeat(701)), ("b.rs", "")]), &list);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "b.rs");
    }
}
