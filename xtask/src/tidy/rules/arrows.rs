//! Arrows: which crate may use which. A crate cannot import what it must not know.

use crate::tidy::{Tree, Violation};

const TABLE: &str = "xtask/src/tidy/rules/arrows.rs";

/// Crates and those that they may use, including rows for future crates. `*`: every crate.
const ROWS: &[(&str, &str)] = &[
    ("troika-graph", ""),
    ("troika-trace", ""),
    ("troika-device", "troika-graph"),
    ("troika-check", "troika-graph troika-device"),
    ("troika-cpu", "troika-graph troika-device"),
    ("troika-gpu", "troika-graph troika-device"),
    ("troika-npu", "troika-graph troika-device troika-check troika-trace"),
    ("troika-time", "troika-graph"),
    ("troika-sim", "troika-graph troika-device troika-cpu troika-time"),
    ("troika-model", "troika-graph troika-device"),
    ("troika-weights", "troika-graph troika-device troika-model"),
    ("troika-plan", "troika-graph troika-device troika-model"),
    ("troika-program", "troika-graph troika-device troika-model troika-plan"),
    (
        "troika-solve",
        "troika-graph troika-device troika-model troika-plan troika-program troika-time",
    ),
    (
        "troika-engine",
        "troika-graph troika-device troika-model troika-plan troika-program troika-trace",
    ),
    ("troika-hub", ""),
    (
        "troika",
        "troika-graph troika-trace troika-device troika-check troika-cpu troika-gpu troika-npu \
         troika-sim troika-time troika-model troika-weights troika-plan troika-program \
         troika-solve troika-engine",
    ),
    (
        "troika-lab",
        "troika troika-graph troika-trace troika-time troika-device troika-check troika-model \
         troika-weights troika-plan troika-program troika-solve troika-engine",
    ),
    ("troika-server", "troika troika-engine"),
    ("troika-cli", "troika troika-lab troika-hub troika-server"),
    ("conformance", "*"),
    ("xtask", ""),
];

/// Checks the manifests: what a crate does not depend on, it is unable to import.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|f| is_manifest(&f.path)) {
        let text = file.text.as_deref().unwrap_or_default();
        let mut add = |line: usize, message: String| {
            found.push(Violation::new("arrows", &file.path, line, message));
        };
        match text.parse::<toml::Table>() {
            Ok(table) => manifest(text, &table, add),
            Err(error) => add(1, format!("does not parse: {error}")),
        }
    }
    found
}

fn is_manifest(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts.as_slice(), ["crates", _, "Cargo.toml"] | ["xtask", "Cargo.toml"])
}

fn manifest(text: &str, table: &toml::Table, mut add: impl FnMut(usize, String)) {
    let name = table.get("package").and_then(|p| p.get("name")?.as_str()).unwrap_or_default();
    let Some((_, allowed)) = ROWS.iter().find(|(row, _)| *row == name) else {
        return add(1, format!("{name} has no row in {TABLE}; add one that says what it may use"));
    };
    let may = |used: &str| *allowed == "*" || allowed.split(' ').any(|name| name == used);
    for (key, used) in dependencies(table) {
        // A crate of this workspace that has no row is reported itself.
        let ours = ROWS.iter().any(|(row, _)| *row == used);
        if ours && !may(used) {
            let line = text.lines().position(|l| l.trim_start().starts_with(key)).unwrap_or(0) + 1;
            add(line, format!("{name} may not use {used}; the allowed arrows are in {TABLE}"));
        }
    }
}

/// The names and packages of a crate's dependencies, except the ones for its tests, which are free.
fn dependencies(table: &toml::Table) -> Vec<(&str, &str)> {
    let targets = table.get("target").and_then(|t| t.as_table()).into_iter().flatten();
    let sections = targets.filter_map(|(_, t)| t.as_table()).chain([table]);
    let mut found = Vec::new();
    for section in sections {
        for kind in ["dependencies", "build-dependencies"] {
            let list = section.get(kind).and_then(|d| d.as_table()).into_iter().flatten();
            found.extend(list.map(|(key, value)| {
                let package = value.get("package").and_then(|p| p.as_str());
                (key.as_str(), package.unwrap_or(key))
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{places, tree};

    const GRAPH: (&str, &str) =
        ("crates/troika-graph/Cargo.toml", "[package]\nname = \"troika-graph\"\n");

    #[test]
    fn an_upward_dependency_is_found() {
        let found = places(
            check,
            &[
                GRAPH,
                (
                    "crates/troika-device/Cargo.toml",
                    "[package]\nname = \"troika-device\"\n[dependencies]\n\
                 troika-graph.workspace = true\ntroika-model = \"1\"\n",
                ),
            ],
        );
        assert_eq!(found, ["crates/troika-device/Cargo.toml:5"]);
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
