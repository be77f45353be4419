//! Environment: input is read once, at the edge.

use crate::tidy::source::SourceText;
use crate::tidy::tree::File;
use crate::tidy::{Tree, Violation};

const RULE: &str = "environment";

/// Files that may read the environment.
const ALLOWED: &[&str] =
    &["crates/troika-cli/", "crates/troika-hub/", "crates/conformance/", "xtask/"];

/// The functions of `std::env` that read or write variables.
const VARIABLES: &[&str] = &["var", "var_os", "vars", "vars_os", "set_var", "remove_var"];

/// Checks for reads of variables, at run time and at build time.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, source) in tree.sources().filter(|(file, _)| !is_allowed(file)) {
        for (at, token) in source.plain_code() {
            if source.text(token).ends_with("env") && reads_variable(source, at) {
                found.push(Violation {
                    path: file.path.clone(),
                    line: token.line,
                    rule: RULE,
                    message: "reads the environment below the command line; take the value as an \
                              argument"
                        .to_string(),
                });
            }
        }
    }
    found
}

fn is_allowed(file: &File) -> bool {
    file.path.ends_with("build.rs") || ALLOWED.iter().any(|place| file.path.starts_with(place))
}

fn reads_variable(source: &SourceText, at: usize) -> bool {
    match source.word(at) {
        "option_env" => source.word(at + 1) == "!",
        "env" if source.word(at + 1) == "!" => !source.word(at + 3).starts_with("\"CARGO_"),
        "env" if source.reads(at + 1, &[":", ":", "{"]) => (at + 4..)
            .map(|k| source.word(k))
            .take_while(|word| !matches!(*word, "}" | ""))
            .any(|word| VARIABLES.contains(&word)),
        "env" if source.reads(at + 1, &[":", ":"]) => VARIABLES.contains(&source.word(at + 3)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn reads_are_found_below_the_command_line_only() {
        let text = "fn f() { std::env::var(\"A\") }\nuse std::env::{args, var_os};\n\
                    const A: &str = env!(\"HOME\");\nconst B: Option<&str> = option_env!(\"X\");\n\
                    const C: &str = env!(\"CARGO_PKG_VERSION\");\n// std::env::var\n\
                    fn g() { std::env::temp_dir(); }\n\
                    #[cfg(test)]\nmod tests { fn f() { std::env::var(\"A\") } }\n";
        let found = places(
            check,
            &[
                ("crates/troika-engine/src/a.rs", text),
                ("crates/troika-engine/build.rs", text),
                ("crates/troika-cli/src/a.rs", text),
                ("crates/troika-hub/src/a.rs", text),
            ],
        );
        let lines = [1, 2, 3, 4].map(|l| format!("crates/troika-engine/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }
}
