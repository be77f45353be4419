//! Glossary: a generic word names at most one type of the workspace; other types need a more
//! specific name.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use crate::tidy::source::name;
use crate::tidy::{File, Tree, Violation};

const RULE: &str = "glossary";

/// Words that could name a type of any module: at most one type may have each.
const GENERIC: &[&str] = &[
    "Block", "Cut", "Form", "Group", "Job", "Lines", "Model", "Panel", "Part", "Piece", "Rows",
    "Run", "Source", "Spec", "Tile", "Tiles", "Wanted", "Work",
];

/// Checks the definitions of files outside tests.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut types: BTreeMap<String, Vec<(&File, usize)>> = BTreeMap::new();
    for (file, code) in tree.sources() {
        let mut definitions = Definitions::default();
        definitions.visit_file(code);
        for (name, line) in definitions.found {
            types.entry(name).or_default().push((file, line));
        }
    }
    for (name, places) in types.iter().filter(|(_, places)| places.len() > 1) {
        let n = places.len();
        let message =
            format!("`{name}` names {n} types; give each a name that says what it is one of");
        let several = |(file, line): &(&File, usize)| {
            Violation::new(RULE, &file.path, *line, message.clone())
        };
        found.extend(places.iter().map(several));
    }
    found
}

/// Types with generic names that a file defines outside tests, with lines.
#[derive(Default)]
struct Definitions {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item::{Enum, Struct, Trait, Type, Union};
        let is_type = matches!(item, Enum(_) | Struct(_) | Trait(_) | Type(_) | Union(_));
        if let Some(name) = name(item).filter(|n| is_type && GENERIC.iter().any(|g| *n == g)) {
            self.found.push((name.to_string(), name.span().start().line));
        }
        visit::visit_item(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn a_generic_word_names_one_type_of_the_workspace() {
        let one = ("crates/a/src/lib.rs", "pub struct Part;\npub enum Rows {}\n");
        let two = ("crates/b/src/lib.rs", "mod c {\n    trait Part {}\n}\nstruct RowsView;\n");
        assert!(places(check, &[one]).is_empty());
        let both = ["crates/a/src/lib.rs:1", "crates/b/src/lib.rs:2"];
        assert_eq!(places(check, &[one, two]), both);
        let message = &check(&crate::tidy::testing::tree(&[one, two]))[0].message;
        assert!(message.starts_with("`Part` names 2 types"), "{message}");
    }

    #[test]
    fn longer_names_associated_types_and_tests_pass() {
        let text = "struct PartCount;\nimpl T for A { type Part = u8; }\n\
                    impl T for B { type Part = u8; }\n#[cfg(test)]\nmod tests { struct Part; }\n\
                    #[cfg(test)]\nstruct Part;\npub struct Part;\n";
        let others = ["crates/a/tests/t.rs", "crates/a/benches/b.rs"];
        let [test, bench] = others.map(|path| (path, "struct Part;"));
        let found = places(check, &[("crates/a/src/lib.rs", text), test, bench]);
        assert!(found.is_empty(), "{found:?}");
    }
}
