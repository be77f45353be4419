//! Glossary: one meaning per word. Retired words must not return, and a generic word may name at
//! most one type of the workspace; other types need a more specific name.

use std::collections::BTreeMap;

use proc_macro2::Ident;
use syn::visit::{self, Visit};

use crate::tidy::source::name;
use crate::tidy::{File, Tree, Violation};

const RULE: &str = "glossary";

/// Words that must not be names any more, in this spelling, with their replacements.
const RETIRED: &[(&str, &str)] = &[
    ("Acts", "`ActivationFormat`"),
    ("Ahead", "a name with `Prefetch`"),
    ("Batch", "`ForwardBatch` for rows that run at once, `CommandList` for submissions in order"),
    ("Extra", "`ZeroPointCorrection`, or what it adds"),
    ("Feed", "`SequenceInput`"),
    ("Flying", "`InFlight`"),
    ("Made", "what was made, as `WeightRows`"),
    ("Need", "`WeightRequirement`, or what requires what"),
    ("Slot", "`WeightRole` for what a weight is for, else a name that says what lies there"),
    ("Step", "`ForwardBatch` for rows that run at once, `CompiledOp` for an op that is ready"),
    ("Turns", "a name with `TripCount`"),
    ("Unfit", "a name that ends in `Error`"),
    ("Want", "`WantedLogits`, or what is wanted"),
    ("acts", "`activations`"),
    ("again", "`retry`, or what is done once more, as `recompute_tokens`"),
    ("ahead", "a name with `prefetch`"),
    ("few", "`small_q` in attention, else a name with what there are few of"),
    ("land", "`complete`"),
    ("many", "`large_q` in attention, else a name with what there are many of"),
    ("turns", "`trip_count`"),
];

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
        for (name, line, is_type) in definitions.found {
            if let Some((word, instead)) = RETIRED.iter().find(|(word, _)| *word == name) {
                let message = format!("`{word}` is no name here any more; say {instead}");
                found.push(Violation::new(RULE, &file.path, line, message));
            }
            if is_type && GENERIC.contains(&name.as_str()) {
                types.entry(name).or_default().push((file, line));
            }
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

/// Names that a file defines outside tests, with lines and whether they are types.
#[derive(Default)]
struct Definitions {
    found: Vec<(String, usize, bool)>,
}

impl Definitions {
    fn add(&mut self, name: &Ident, is_type: bool) {
        let text = name.to_string();
        let text = text.trim_start_matches("r#").to_string();
        self.found.push((text, name.span().start().line, is_type));
    }
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item::{Enum, Mod, Struct, Trait, Type, Union};
        let is_type = matches!(item, Enum(_) | Struct(_) | Trait(_) | Type(_) | Union(_));
        if let Some(name) = name(item).filter(|_| is_type || matches!(item, Mod(_))) {
            self.add(name, is_type);
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, function: &'ast syn::Signature) {
        self.add(&function.ident, false);
        visit::visit_signature(self, function);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.add(name, false);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident, false);
        visit::visit_variant(self, variant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn retired_words_are_found_wherever_they_are_defined() {
        let text = "pub struct Step;\nenum Acts { F32 }\ntrait Feed {\n    fn land(&self);\n}\n\
                    type Want = u8;\nmod few {}\nfn again() {}\nstruct A {\n    ahead: u8,\n}\n\
                    enum B {\n    Slot,\n}\nimpl A {\n    fn turns() { struct Made; }\n}\n\
                    union Need { a: u8 }\nmod many;\n";
        let found = places(check, &[("crates/a/src/lib.rs", text)]);
        let lines = [1, 2, 3, 4, 6, 7, 8, 10, 13, 16, 18, 19];
        let mut expected: Vec<String> =
            lines.iter().map(|l| format!("crates/a/src/lib.rs:{l}")).collect();
        // The type inside the function is on its line.
        expected.insert(10, "crates/a/src/lib.rs:16".to_string());
        assert_eq!(found, expected);
    }

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
    fn uses_longer_names_associated_types_and_tests_pass() {
        let text = "use other::Step;\nfn f(step: Step, few: u8) -> other::Want { let again = 1; g() }\n\
                    struct StepCount { feed_rate: u8 }\n// struct Acts;\nconst S: &str = \"Feed\";\n\
                    impl T for A { type Part = u8; }\nimpl T for B { type Part = u8; }\n\
                    #[cfg(test)]\nmod tests { struct Part; fn few() {} }\n\
                    #[cfg(test)]\nstruct Slot;\n#[cfg(test)]\nimpl A { fn many() {} }\n#[test]\nfn many() {}\npub struct Part;\n";
        let found = places(
            check,
            &[
                ("crates/a/src/lib.rs", text),
                ("crates/a/tests/t.rs", "struct Part; struct Slot;"),
                ("crates/a/benches/b.rs", "struct Part;"),
            ],
        );
        assert!(found.is_empty(), "{found:?}");
    }
}
