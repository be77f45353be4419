//! Circles: the modules of a folder must not import each other in a loop.
//!
//! Each folder is checked separately: its files and subfolders are nodes, and there is an arrow
//! from one to another if anything in the first names anything in the second. A re-exported name
//! (`pub use`) counts for the module that defines it. A folder's own file (`mod.rs`, `lib.rs`) may
//! use its parts, and a part may use what stands in the folder's file; where both do, it is a loop,
//! too. A few of those are left; there must not be more.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::modules::{Crate, Path};
use crate::tidy::{Tree, Violation};

const RULE: &str = "circles";
/// The limit for loops between a folder and its parts in the whole workspace.
const LIMIT: usize = 5;

/// Arrows in a folder: from one of its modules to another, with the names involved.
type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A folder's arrows. Its own file has the name [`OWN`].
const OWN: &str = "(own file)";

/// Checks every crate.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(tree, LIMIT)
}

fn check_with(tree: &Tree, limit: usize) -> Vec<Violation> {
    let (mut found, mut own) = (Vec::new(), Vec::new());
    for root in roots(tree) {
        for (folder, mut arrows) in folders(&Crate::read(tree, &root)) {
            let path = [std::slice::from_ref(&root), folder.as_slice()].concat().join("/");
            let add = |circle: &[String], arrows: &Arrows| {
                Violation::new(RULE, &path, 1, sentence(circle, arrows))
            };
            let whole = circles(&arrows);
            let through = whole.iter().filter(|circle| circle.iter().any(|node| node == OWN));
            own.extend(through.map(|circle| add(circle, &arrows)));
            arrows.remove(OWN);
            arrows.values_mut().for_each(|to| _ = to.remove(OWN));
            found.extend(circles(&arrows).iter().map(|circle| add(circle, &arrows)));
        }
    }
    if own.len() > limit {
        let message = format!(
            "{} folders and parts of theirs import each other, there may be {limit}; move what \
             they share to a file of its own",
            own.len()
        );
        found.push(Violation::new(RULE, "crates", 1, message));
        found.extend(own);
    }
    found
}

/// The source folders of all crates.
fn roots(tree: &Tree) -> Vec<String> {
    let paths = tree.files.iter().map(|file| file.path.as_str());
    let mut roots: Vec<String> = paths
        .filter_map(|p| p.strip_suffix("/lib.rs").or_else(|| p.strip_suffix("/main.rs")))
        .filter(|folder| folder.ends_with("src"))
        .map(str::to_string)
        .collect();
    roots.dedup();
    roots
}

/// The arrows of every folder that has any.
fn folders(krate: &Crate) -> BTreeMap<Path, Arrows> {
    let mut folders: BTreeMap<Path, Arrows> = BTreeMap::new();
    for (from, module) in &krate.modules {
        for (to, name) in module.paths.iter().filter_map(|path| krate.definition(from, path)) {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let node = |path: &Path| path.get(shared).map_or(OWN, String::as_str).to_string();
            let arrows = folders.entry(from[..shared].to_vec()).or_default();
            arrows.entry(node(from)).or_default().entry(node(&to)).or_default().insert(name);
        }
    }
    folders
}

/// Sets of nodes that reach each other.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reach = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(node) = open.pop() {
            for next in arrows.get(node).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|node| (node, reach(node))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (node, seen) in &reached {
        if !seen.contains(*node) || found.iter().any(|circle| circle.contains(node)) {
            continue;
        }
        let back = |other: &&String| reached.get(other).is_some_and(|s| s.contains(*node));
        found.push(seen.iter().filter(back).cloned().collect());
    }
    found
}

fn sentence(circle: &[String], arrows: &Arrows) -> String {
    let mut parts = Vec::new();
    for from in circle {
        for (to, names) in arrows.get(from).into_iter().flatten() {
            if circle.contains(to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                parts.push(format!("{from} -> {to} ({})", names.join(", ")));
            }
        }
    }
    format!(
        "modules that import each other: {}; move what they share to one below",
        parts.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let violations = check(&tree(files));
        violations.iter().map(|v| format!("{}: {}", v.path, v.message)).collect()
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let found = found(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\nmod d;\npub use b::B;\n"),
            ("crates/a/src/b.rs", "use crate::c::{self, C};\npub struct B;\n"),
            ("crates/a/src/c.rs", "pub struct C;\nfn f() -> crate::B { crate::B }\n"),
            ("crates/a/src/d.rs", "use super::c::C;\nuse crate::B;\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src: "), "{found:?}");
        assert!(found[0].contains("b -> c (C, c); c -> b (B)"), "{found:?}");
    }

    #[test]
    fn imports_within_macros_are_found() {
        let uses = |text: &str| {
            let c = format!("pub struct C;\n{text}\n");
            let b = "use super::c::C;\npub const STYLE: &str = \"\";\npub struct Named;\n";
            found(&[
                ("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
                ("crates/a/src/b.rs", b),
                ("crates/a/src/c.rs", &c),
            ])
        };
        for text in [
            "fn f() { format!(\"<style>{}</style>\", crate::b::STYLE); }",
            "fn f() { assert!(a(&[super::b::Named]).is_empty(), \"{}\", 1); }",
            "macro_rules! m { ($x:ident) => { $crate::b::$x }; (a) => { $crate::b::STYLE } }",
        ] {
            let found = uses(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("b -> c (C); c -> b ("), "{found:?}");
        }
        let others = "fn f(&self) { m!(pub(super) fn g() { a::b::STYLE; x.b(c: b::Named) }) }";
        assert!(uses(others).is_empty(), "{:?}", uses(others));
    }

    #[test]
    fn folders_that_import_each_other_are_found_and_parts_of_one_are_not() {
        let found = found(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
            ("crates/a/src/b/mod.rs", "mod x;\nmod y;\npub use x::X;\npub struct Own;\n"),
            ("crates/a/src/b/x.rs", "use super::Own;\npub struct X;\n"),
            ("crates/a/src/b/y.rs", "use super::{Own, X};\nuse crate::c::z::Z;\n"),
            ("crates/a/src/c/mod.rs", "pub mod z;\nuse crate::b::*;\nfn f(x: X) {}\n"),
            ("crates/a/src/c/z.rs", "pub struct Z;\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/src: "), "{found:?}");
        assert!(found[0].contains("b -> c (Z)"), "{found:?}");
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let found = found(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests { use crate::c::C; }\npub struct B;\n"),
            ("crates/a/src/c.rs", "use super::b::B;\nuse other::b::B as D;\npub struct C;\n"),
            ("crates/a/tests/t.rs", "use a::B;\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_loop_of_three_is_one_circle_and_who_only_looks_at_it_is_not_in_it() {
        let found = found(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\nmod d;\nmod e;\n"),
            ("crates/a/src/b.rs", "use crate::c::C;\npub struct B;\n"),
            ("crates/a/src/c.rs", "use crate::d::D;\npub struct C;\n"),
            ("crates/a/src/d.rs", "use crate::b::B;\npub struct D;\n"),
            ("crates/a/src/e.rs", "use crate::b::B;\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("b -> c (C); c -> d (D); d -> b (B)"), "{found:?}");
        assert!(!found[0].contains("e ->"), "{found:?}");
    }
}
