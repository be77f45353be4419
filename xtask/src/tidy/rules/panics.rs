//! Panics and prints: libraries return errors and leave output to the command.

use crate::tidy::source::SourceText;
use crate::tidy::tree::File;
use crate::tidy::{Tree, Violation};

const RULE: &str = "panics";
/// How many lines an `INVARIANT:` comment may be above the `expect` that it justifies.
const REACH: usize = 4;

/// Crates that may write to the user.
const EDGE: &[&str] = &["troika-cli", "conformance"];
const PRINTS: &[&str] = &["println", "print", "eprintln", "eprint"];
const PANICS: &[&str] = &["dbg", "todo", "unimplemented", "panic"];

/// Checks code outside tests.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, source) in tree.sources() {
        let Some(name) = file.crate_name() else { continue };
        for (at, token) in source.plain_code() {
            let Some(message) = judge(file, name, source, at) else { continue };
            found.push(Violation {
                path: file.path.clone(),
                line: token.line,
                rule: RULE,
                message,
            });
        }
    }
    found
}

fn judge(file: &File, name: &str, source: &SourceText, at: usize) -> Option<String> {
    let word = source.word(at);
    let edge = EDGE.contains(&name) || file.path.ends_with("build.rs");
    if source.word(at + 1) == "!" && source.word(at + 2) != "=" {
        if PRINTS.contains(&word) && !edge {
            return Some(format!("`{word}!` in a library; return the text instead"));
        }
        if PANICS.contains(&word) {
            return Some(format!("`{word}!` outside tests; return an error"));
        }
    }
    let method = at > 0 && source.word(at - 1) == "." && source.word(at + 1) == "(";
    match word {
        "unwrap" if method => Some("`.unwrap()` outside tests; return an error".to_string()),
        "expect" if method && source.word(at + 2).contains('"') => {
            let line = source.code[at].token.line;
            (!source.comment_above(line, REACH, &["INVARIANT:"])).then(|| {
                "`.expect()` without an `INVARIANT:` comment that says why it holds".to_string()
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    const TEXT: &str = "fn f() {\n    println!(\"a\");\n    dbg!(1);\n    todo!();\n    \
                        unimplemented!();\n    a.unwrap();\n    panic!(\"b\");\n    \
                        a.expect(\"c\");\n}\n";

    #[test]
    fn panics_and_prints_are_found_in_libraries() {
        let found = places(check, &[("crates/troika-graph/src/a.rs", TEXT)]);
        let lines = [2, 3, 4, 5, 6, 7, 8].map(|l| format!("crates/troika-graph/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }

    #[test]
    fn the_edge_may_print_but_not_panic() {
        let found = places(check, &[("crates/troika-cli/src/a.rs", TEXT)]);
        assert_eq!(found.len(), 6);
        assert!(!found.contains(&"crates/troika-cli/src/a.rs:2".to_string()));
    }

    #[test]
    fn tests_comments_strings_and_excused_expects_pass() {
        let text = "// a.unwrap() panic!()\nconst S: &str = \"todo!()\";\n\
                    /// ```\n/// a.unwrap();\n/// ```\nfn f() {\n    a.unwrap_or(1);\n    \
                    // INVARIANT: filled above.\n    a.expect(\"c\");\n    parser.expect(token);\n\
                    if todo != 1 {}\n}\n\
                    #[cfg(test)]\nmod tests { fn f() { a.unwrap(); panic!() } }\n";
        let found = places(
            check,
            &[
                ("crates/troika-graph/src/a.rs", text),
                ("crates/troika-graph/tests/a.rs", TEXT),
                ("xtask/src/a.rs", TEXT),
            ],
        );
        assert!(found.is_empty(), "{found:?}");
    }
}
