//! Arrows: which crate may use which. A crate cannot import what it must not know.

use std::collections::BTreeSet;

use crate::tidy::tree::File;
use crate::tidy::{Tree, Violation};

const RULE: &str = "arrows";
const TABLE: &str = "xtask/src/tidy/rules/arrows.rs";

/// The crates that a crate may use.
enum May {
    /// These crates.
    Use(&'static [&'static str]),
    /// Every crate.
    All,
}

/// The table of allowed dependencies, including rows for future crates.
const ROWS: &[(&str, May)] = &[
    ("troika-graph", May::Use(&[])),
    ("troika-trace", May::Use(&[])),
    ("troika-device", May::Use(&["troika-graph"])),
    ("troika-cpu", May::Use(&["troika-graph", "troika-device"])),
    ("troika-gpu", May::Use(&["troika-graph", "troika-device"])),
    ("troika-npu", May::Use(&["troika-graph", "troika-device"])),
    ("troika-sim", May::Use(&["troika-graph", "troika-device", "troika-cpu"])),
    ("troika-model", May::Use(&["troika-graph", "troika-device"])),
    ("troika-weights", May::Use(&["troika-graph", "troika-device", "troika-model"])),
    ("troika-plan", May::Use(&["troika-graph", "troika-device", "troika-model"])),
    ("troika-program", May::Use(&["troika-graph", "troika-device", "troika-model", "troika-plan"])),
    (
        "troika-solve",
        May::Use(&[
            "troika-graph",
            "troika-device",
            "troika-model",
            "troika-plan",
            "troika-program",
        ]),
    ),
    (
        "troika-engine",
        May::Use(&[
            "troika-graph",
            "troika-device",
            "troika-model",
            "troika-plan",
            "troika-program",
            "troika-trace",
        ]),
    ),
    ("troika-hub", May::Use(&[])),
    ("troika", May::Use(LIBRARIES)),
    (
        "troika-lab",
        May::Use(&[
            "troika",
            "troika-graph",
            "troika-trace",
            "troika-device",
            "troika-model",
            "troika-weights",
            "troika-plan",
            "troika-program",
            "troika-solve",
            "troika-engine",
        ]),
    ),
    ("troika-server", May::Use(&["troika", "troika-engine"])),
    ("troika-cli", May::Use(&["troika", "troika-lab", "troika-hub", "troika-server"])),
    ("conformance", May::All),
    ("xtask", May::Use(&[])),
];

/// The crates below the facade.
const LIBRARIES: &[&str] = &[
    "troika-graph",
    "troika-trace",
    "troika-device",
    "troika-cpu",
    "troika-gpu",
    "troika-npu",
    "troika-sim",
    "troika-model",
    "troika-weights",
    "troika-plan",
    "troika-program",
    "troika-solve",
    "troika-engine",
];

/// Checks manifests and sources.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut crates: Vec<(String, String)> = Vec::new();
    let manifests: Vec<&File> = tree.files.iter().filter(|f| is_manifest(&f.path)).collect();
    for file in &manifests {
        let Some(text) = &file.text else { continue };
        match text.parse::<toml::Table>() {
            Ok(table) => {
                if let Some(name) = package_name(&table) {
                    let folder = file.path.trim_end_matches("Cargo.toml").to_string();
                    crates.push((folder, name));
                }
            }
            Err(error) => found.push(violation(&file.path, 1, format!("does not parse: {error}"))),
        }
    }
    let names: BTreeSet<&str> = crates.iter().map(|(_, name)| name.as_str()).collect();
    for (folder, name) in &crates {
        let Some((_, may)) = ROWS.iter().find(|(row, _)| row == name) else {
            let message =
                format!("{name} has no row in {TABLE}; add one that says what it may use");
            found.push(violation(&format!("{folder}Cargo.toml"), 1, message));
            continue;
        };
        let May::Use(allowed) = may else { continue };
        let forbidden =
            |used: &str| used != name && is_ours(used, &names) && !allowed.contains(&used);
        manifest(tree, folder, name, &forbidden, &mut found);
        sources(tree, folder, name, &forbidden, &mut found);
    }
    found
}

fn is_manifest(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts.as_slice(), ["crates", _, "Cargo.toml"] | ["xtask", "Cargo.toml"])
}

fn package_name(table: &toml::Table) -> Option<String> {
    Some(table.get("package")?.get("name")?.as_str()?.to_string())
}

/// Whether a name is a present or future crate of this workspace.
fn is_ours(name: &str, names: &BTreeSet<&str>) -> bool {
    names.contains(name) || ROWS.iter().any(|(row, _)| *row == name)
}

/// A crate's dependencies, except those of its tests, which are free.
fn dependencies(table: &toml::Table) -> Vec<(String, String)> {
    let mut sections: Vec<&toml::Table> = vec![table];
    if let Some(targets) = table.get("target").and_then(|t| t.as_table()) {
        sections.extend(targets.values().filter_map(|t| t.as_table()));
    }
    let mut found = Vec::new();
    for section in sections {
        for kind in ["dependencies", "build-dependencies"] {
            let Some(list) = section.get(kind).and_then(|d| d.as_table()) else { continue };
            for (key, value) in list {
                let package = value.get("package").and_then(|p| p.as_str()).unwrap_or(key);
                found.push((key.clone(), package.to_string()));
            }
        }
    }
    found
}

fn manifest(
    tree: &Tree,
    folder: &str,
    name: &str,
    forbidden: &dyn Fn(&str) -> bool,
    found: &mut Vec<Violation>,
) {
    let path = format!("{folder}Cargo.toml");
    let text = tree.files.iter().find(|f| f.path == path).and_then(|f| f.text.as_deref());
    let text = text.unwrap_or_default();
    let Ok(table) = text.parse::<toml::Table>() else { return };
    for (key, package) in dependencies(&table) {
        if forbidden(&package) {
            let line = text.lines().position(|l| l.trim_start().starts_with(&key)).unwrap_or(0) + 1;
            found.push(violation(&path, line, sentence(name, &package)));
        }
    }
}

/// Finds `use troika_x` and `troika_x::` outside tests.
fn sources(
    tree: &Tree,
    folder: &str,
    name: &str,
    forbidden: &dyn Fn(&str) -> bool,
    found: &mut Vec<Violation>,
) {
    for (file, source) in tree.sources().filter(|(f, _)| f.path.starts_with(folder)) {
        for (at, token) in source.plain_code() {
            let used = source.text(token).replace('_', "-");
            if !forbidden(&used) {
                continue;
            }
            let before = at.checked_sub(1).map_or("", |k| source.word(k));
            let path = source.reads(at + 1, &[":", ":"]) && !matches!(before, ":" | ".");
            if path || matches!(before, "use" | "crate") && at > 0 {
                found.push(violation(&file.path, token.line, sentence(name, &used)));
            }
        }
    }
}

fn sentence(name: &str, used: &str) -> String {
    format!("{name} may not use {used}; the allowed arrows are in {TABLE}")
}

fn violation(path: &str, line: usize, message: String) -> Violation {
    Violation { path: path.to_string(), line, rule: RULE, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{places, tree};

    const GRAPH: (&str, &str) =
        ("crates/troika-graph/Cargo.toml", "[package]\nname = \"troika-graph\"\n");

    #[test]
    fn an_upward_dependency_is_found_in_manifest_and_source() {
        let found = places(
            check,
            &[
                GRAPH,
                (
                    "crates/troika-device/Cargo.toml",
                    "[package]\nname = \"troika-device\"\n[dependencies]\n\
                 troika-graph.workspace = true\ntroika-model = \"1\"\n",
                ),
                (
                    "crates/troika-device/src/lib.rs",
                    "use troika_graph::a;\nuse troika_engine as e;\nfn f() { troika_plan::g() }\n\
                 // troika_cpu::x\n#[cfg(test)]\nmod tests { use troika_cpu::h; }\n",
                ),
            ],
        );
        let lib = "crates/troika-device/src/lib.rs";
        let want = ["crates/troika-device/Cargo.toml:5", &format!("{lib}:2"), &format!("{lib}:3")];
        assert_eq!(found, want);
    }

    #[test]
    fn renamed_and_target_dependencies_are_seen() {
        let found = places(
            check,
            &[(
                "crates/troika-graph/Cargo.toml",
                "[package]\nname = \"troika-graph\"\n[target.'cfg(unix)'.dependencies]\n\
             other = { package = \"troika-cpu\", version = \"1\" }\n\
             [dev-dependencies]\ntroika-engine = \"1\"\n",
            )],
        );
        assert_eq!(found, ["crates/troika-graph/Cargo.toml:4"]);
    }

    #[test]
    fn an_unknown_crate_asks_for_a_row() {
        let found = check(&tree(&[
            GRAPH,
            ("crates/troika-tpu/Cargo.toml", "[package]\nname = \"troika-tpu\"\n"),
        ]));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("add one"), "{}", found[0]);
    }
}
